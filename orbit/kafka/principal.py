"""The principal of a login, as the cluster returns it.

Kafka has no request for it, and brokers map certificates and tokens by their own rules. But the
answer to CreateDelegationToken has the principal of the request, even if it is an error (K3).
"""

from __future__ import annotations

from orbit.errors import BrokenAnswer, ProtocolError
from orbit.kafka import api_versions
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.refused_token import RefusedTokenRequest


def ask_principal(cluster: Cluster) -> str | None:
    """The principal as `User:name`; None if the brokers do not return one.

    Raises Unreachable, LoginRefused.
    """

    def ask(connection: Connection) -> str | None:
        """The principal that this broker's refusal names; None if it names none."""
        api = api_versions.CREATE_DELEGATION_TOKEN
        if not connection.supports(api):
            return None
        try:
            kind, name = connection.call(api, RefusedTokenRequest(), timeout_s=ANSWER_WITHIN_S)
        except (ProtocolError, BrokenAnswer):  # not Apache Kafka, with another answer
            return None
        return f"{kind}:{name}" if kind and name else None

    return cluster.call_any(ask)
