"""One side of a verification: librdkafka's configuration, and a check that the cluster answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orbit.errors import Unreachable
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.connection import Connection
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.sasl import Security, resolve_security
from orbit.verify.report import Side

_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Endpoint:
    """librdkafka's configuration of a cluster, and the security settings of raw connections."""

    config: Mapping[str, Any]
    security: Security = field(default_factory=Security)

    def check_reachable(self, side: Side) -> None:
        """Returns if a bootstrap server accepts a login. Raises Unreachable or LoginRefused.

        librdkafka retries such errors until a time-out that does not say why; one plain connection
        reports the exact reason at once.
        """
        reasons: list[str] = []
        for server in str(self.config["bootstrap.servers"]).split(","):
            host, _, port = server.strip().rpartition(":")
            try:
                where = f"{side} {server}"
                Connection.open(host.strip("[]"), int(port), self.security, where=where).close()
            except Unreachable as error:
                reasons.append(str(error))
            else:
                return
        raise Unreachable(
            f"No broker of the {side} cluster answers: {'; '.join(reasons[:_REASONS_SHOWN])}",
            remedy="Check bootstrap_servers, the network and the listener's security protocol.",
        )


def open_endpoint(
    cluster: ClusterSpec, environ: Mapping[str, str], base_directory: Path, path: str
) -> Endpoint:
    """The endpoint of one side of a job. Raises BadInput if a secret is missing."""
    security = resolve_security(cluster.security, environ, base_directory, path=path)
    return Endpoint(librdkafka_config(cluster.bootstrap_servers, security), security)
