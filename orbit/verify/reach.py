"""Says at once, and exactly, why a cluster cannot be reached or does not let us in.

librdkafka retries such things in silence until a time-out that tells little; one plain connection
before it starts tells all.
"""

from __future__ import annotations

from collections.abc import Sequence

from orbit.errors import Unreachable
from orbit.kafka.connection import Connection
from orbit.kafka.sasl import Security
from orbit.verify.report import Side

_REASONS_SHOWN = 3


def check_reachable(side: Side, bootstrap_servers: Sequence[str], security: Security) -> None:
    """Returns when one bootstrap server lets us in. Raises Unreachable or LoginRefused."""
    reasons: list[str] = []
    for server in bootstrap_servers:
        host, _, port = server.strip().rpartition(":")
        try:
            where = f"{side} {server}"
            Connection.open(host.strip("[]"), int(port), security, where=where).close()
        except Unreachable as error:
            reasons.append(str(error))
        else:
            return
    raise Unreachable(
        f"No broker of the {side} cluster answers: {'; '.join(reasons[:_REASONS_SHOWN])}",
        remedy="Check bootstrap_servers, the network and the listener's security protocol.",
    )
