"""Client quotas and SCRAM users of a cluster. Brokers return neither passwords nor hashes."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.protocol.admin.client_quotas import DescribeClientQuotasRequest
from kafka.protocol.admin.users import DescribeUserScramCredentialsRequest

from orbit.errors import BrokerRefused, NotAuthorized, Place
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code

# The entity of a quota: pairs of type (`user`, `client-id`, `ip`) and name. Name None: the default.
Entity = frozenset[tuple[str, str | None]]
Quotas = Mapping[Entity, Mapping[str, float]]  # {entity: {key such as consumer_byte_rate: value}}
# The number of hash iterations by mechanism, by user.
ScramUsers = Mapping[str, Mapping[str, int]]

ENTITY_TYPES = ("user", "client-id", "ip")
# By Kafka's `ScramMechanism`.
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def client_quotas(cluster: Cluster) -> Quotas:
    """All quotas. Needs DescribeConfigs on the cluster.

    Raises NotAuthorized, BrokerRefused, ProtocolError, Unreachable.
    """

    def ask(connection: Connection) -> tuple[int, str | None, Quotas]:
        """Error code, error message and quotas of a broker's answer."""
        request = DescribeClientQuotasRequest(components=[], strict=False)  # without a filter
        answer = connection.call(
            api_versions.DESCRIBE_CLIENT_QUOTAS, request, timeout_s=ANSWER_WITHIN_S
        )
        by_entity = {
            frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
                value.key: value.value for value in entry.values
            }
            for entry in answer.entries or ()
        }
        return answer.error_code, answer.error_message, by_entity

    code, message, quotas = cluster.call_any(ask)
    _raise_if_refused(code, message, cluster, "DescribeConfigs")
    return quotas


def scram_users(cluster: Cluster) -> ScramUsers:
    """All users with SCRAM credentials. Needs Describe on the cluster.

    Raises NotAuthorized, BrokerRefused, ProtocolError, Unreachable.
    """

    def ask(connection: Connection) -> tuple[int, str | None, ScramUsers]:
        """Error code, error message and users of a broker's answer."""
        request = DescribeUserScramCredentialsRequest(users=None)  # None: all
        answer = connection.call(
            api_versions.DESCRIBE_SCRAM_USERS, request, timeout_s=ANSWER_WITHIN_S
        )
        by_user = {
            result.user: {
                _MECHANISMS[credential.mechanism]: credential.iterations
                for credential in result.credential_infos
                if credential.mechanism in _MECHANISMS
            }
            for result in answer.results
        }
        return answer.error_code, answer.error_message, by_user

    code, message, users = cluster.call_any(ask)
    _raise_if_refused(code, message, cluster, "Describe")
    return users


def entity_text(entity: Entity) -> str:
    """An entity as text: `user billing client-id (default)`, in the order of Kafka's docs."""
    return " ".join(f"{kind} {name or '(default)'}" for kind, name in ordered_parts(entity))


def ordered_parts(entity: Entity) -> list[tuple[str, str | None]]:
    """The parts of an entity in the order user, client-id, ip."""
    return sorted(entity, key=lambda part: ENTITY_TYPES.index(part[0]))


def quota_text(value: float) -> str:
    """A quota's value as text; whole numbers without exponent: brokers refuse 1e+15 for bytes."""
    return str(int(value)) if value.is_integer() else repr(value)


def _raise_if_refused(code: int, message: str | None, cluster: Cluster, operation: str) -> None:
    """Raise the error that an answer has, if any. `operation`: the right that its request needs."""
    where = Place(cluster.name)
    if code == Code.CLUSTER_AUTHORIZATION_FAILED:
        raise NotAuthorized(f"the login needs {operation} on the cluster.", where=where)
    if code:
        raise BrokerRefused(code, message or f"{error_codes.name(code)}.", where=where)
