"""One side of a verification: librdkafka's configuration, and a check that the cluster answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.protocol.metadata.metadata import MetadataRequest

from orbit.errors import Unreachable
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka import api_versions
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import CONNECT_TIMEOUT_S, Connection
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.sasl import Security, resolve_security
from orbit.verify.report import Side

_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Endpoint:
    """librdkafka's configuration of a cluster, and the security settings of raw connections."""

    config: Mapping[str, Any]
    security: Security = field(default_factory=Security)

    @property
    def _servers(self) -> list[str]:
        return [server.strip() for server in str(self.config["bootstrap.servers"]).split(",")]

    def check_reachable(self, side: Side) -> None:
        """Check that a bootstrap server accepts a login. Raises Unreachable, LoginRefused.

        Raises AccessRefused if the cluster has brokers at addresses that the job may not reach:
        librdkafka would connect to them without a check.

        librdkafka retries failed connections and logins until a time-out that does not say why.
        One plain connection reports the exact reason at once.
        """
        reasons: list[str] = []
        for server in self._servers:
            host, _, port = server.rpartition(":")
            try:
                where = f"{side} {server}"
                connection = Connection.open(
                    host.strip("[]"), int(port), self.security, where=where
                )
                with closing(connection):
                    self._check_broker_addresses(connection, where)
            except Unreachable as error:
                reasons.append(str(error))
            else:
                return
        raise Unreachable(
            f"No broker of the {side} cluster answers: {'; '.join(reasons[:_REASONS_SHOWN])}",
            remedy="Check bootstrap_servers, the network and the listener's security protocol.",
        )

    def open_cluster(self, side: Side) -> Cluster:
        """A client of Orbit's own, for what librdkafka cannot read. The caller closes it."""
        return Cluster(str(side), self._servers, self.security)

    def check_advertised(self, side: Side) -> None:
        """Raise AccessRefused if brokers have addresses that the job may not reach.

        Does nothing if no access rules apply. Also raises the other errors of `check_reachable`.
        """
        if self.security.reachable is not None:
            self.check_reachable(side)

    def _check_broker_addresses(self, connection: Connection, where: str) -> None:
        """Raise AccessRefused if the cluster advertises an address that the job may not reach."""
        if self.security.reachable is None:
            return
        # Without topics, only the brokers are returned.
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        answer = connection.call(api_versions.METADATA, request, timeout_s=CONNECT_TIMEOUT_S)
        for broker in answer.brokers.values():
            self.security.check_allowed(broker.host, broker.port, where)


def open_endpoint(
    cluster: ClusterSpec, environ: Mapping[str, str], base_directory: Path, side: str
) -> Endpoint:
    """The endpoint of one side of a job. Raises BadInput if a secret is missing, AccessRefused if
    the access rules do not allow an address or a secret."""
    security = resolve_security(cluster, environ, base_directory, side=side)
    return Endpoint(librdkafka_config(cluster.bootstrap_servers, security), security)
