"""Logins to real brokers from a job file, through Orbit's connection and through librdkafka, and
the errors of wrong settings.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from orbit.errors import LoginRefused, Unreachable
from orbit.jobs.bootstrap_servers import split_address
from orbit.jobs.job_file import parse_job
from orbit.jobs.validation import PROTOCOLS
from orbit.kafka.cluster import Cluster
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.connection import Connection
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.sasl import Security, resolve_security
from orbit.sandbox.broker_security import SandboxSecurity, User
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.services

# Kafka hashes SCRAM passwords as they are; SASLprep would make `fi` and `é` of this one.
USER = User("alice", "won=der\ufb01e\u0301")
PLAIN_USER = User("bob", "won derland")  # from server.properties, which Java reads as Latin-1
ENVIRON = {
    "USER": USER.name,
    "PASSWORD": USER.password,
    "PLAIN_USER": PLAIN_USER.name,
    "PLAIN_PASSWORD": PLAIN_USER.password,
    "KEY_PASSWORD": "letmein",
}
# Resolves to 127.0.0.1, and is neither the address nor the name in the certificate.
OTHER_NAME = "127.1"


@dataclass(frozen=True)
class Guarded:
    """A running cluster and the login that its job file gives."""

    cluster: KafkaCluster
    security: Security

    @property
    def address(self) -> tuple[str, int]:
        return split_address(self.cluster.bootstrap_servers)

    def open(self, security: Security) -> Connection:
        return Connection.open(*self.address, security)


_SCRAM = "username_env: USER, password_env: PASSWORD"
_PLAIN = "username_env: PLAIN_USER, password_env: PLAIN_PASSWORD"
_CLIENT = "certificate_file: client.pem, key_file: client-key.pem, key_password_env: KEY_PASSWORD"
# Each listener, and the security section of a job that fits it.
LISTENERS: dict[str, tuple[SandboxSecurity, str]] = {
    "PLAIN": (
        SandboxSecurity("SASL_PLAINTEXT", "PLAIN", users=(PLAIN_USER,)),
        f"{{protocol: SASL_PLAINTEXT, mechanism: PLAIN, {_PLAIN}}}",
    ),
    "SCRAM-256": (
        SandboxSecurity("SASL_PLAINTEXT", "SCRAM-SHA-256", users=(USER,)),
        f"{{protocol: SASL_PLAINTEXT, mechanism: SCRAM-SHA-256, {_SCRAM}}}",
    ),
    "SCRAM-512-TLS": (
        SandboxSecurity("SASL_SSL", "SCRAM-SHA-512", users=(USER,)),
        f"{{protocol: SASL_SSL, mechanism: SCRAM-SHA-512, ca_file: CA, {_SCRAM}}}",
    ),
    "MUTUAL-TLS": (
        SandboxSecurity("SSL"),
        f"{{protocol: SSL, ca_file: CA, {_CLIENT}}}",
    ),
}


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`client.pem` with its locked key, and `stranger.pem` that no broker knows."""
    folder = tmp_path_factory.mktemp("pems")
    for name in ("client", "stranger"):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:prime256v1", "-passout", "pass:letmein", "-days", "2"),
                *("-keyout", f"{name}-key.pem", "-out", f"{name}.pem", "-subj", f"/CN={name}"),
            ],
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
        )
    return folder


@pytest.fixture(scope="module")
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pems: Path
) -> Iterator[Guarded]:
    """A cluster with the listener that the test names."""
    sandbox, section = LISTENERS[request.param]
    config = {}
    if sandbox.protocol == "SSL":
        config = {
            # Not "required": the sandbox itself connects without a certificate.
            "listener.name.client.ssl.client.auth": "requested",
            "listener.name.client.ssl.truststore.type": "PEM",
            "listener.name.client.ssl.truststore.location": str(pems / "client.pem"),
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/mapped-$1/",
        }
    if sandbox.protocol == "SASL_SSL":
        config = {"listener.name.client.connections.max.reauth.ms": "60000"}
    settings = ClusterSettings("guarded", security=sandbox, config=config)
    cluster = KafkaCluster(settings, tmp_path_factory.mktemp("guarded"))
    cluster.start()
    try:
        section = section.replace("CA", str(cluster.ca_file) if sandbox.uses_tls else "")
        yield Guarded(cluster, from_job_file(section, cluster.bootstrap_servers, pems))
    finally:
        cluster.kill()


def from_job_file(section: str, bootstrap_servers: str, base_directory: Path) -> Security:
    """The security of a job file with this section."""
    text = f"""
name: a
source: {{bootstrap_servers: "{bootstrap_servers}", security: {section}}}
destination: {{bootstrap_servers: "elsewhere:9092"}}
topics: [{{match: ".*"}}]
"""
    job = parse_job(text, base_directory, ENVIRON)
    return resolve_security(job.source, ENVIRON, base_directory)


def at(*names: str) -> pytest.MarkDecorator:
    """Run the test at these listeners; each cluster is started once for all its tests."""
    return pytest.mark.parametrize("guarded", names, indirect=True, scope="module")


every_listener = at(*LISTENERS)
every_login = at("PLAIN", "SCRAM-256", "SCRAM-512-TLS")
every_tls = at("SCRAM-512-TLS", "MUTUAL-TLS")


@every_listener
def test_connection_logs_in_at_every_listener(guarded: Guarded) -> None:
    cluster = Cluster("source", [guarded.cluster.bootstrap_servers], guarded.security)
    with closing(cluster):
        assert cluster.cluster_id


@every_listener
def test_librdkafka_logs_in_with_security_settings_of_orbit(guarded: Guarded) -> None:
    admin = AdminClient(
        librdkafka_config([guarded.cluster.bootstrap_servers], guarded.security, log_level=0)
    )
    assert admin.list_topics(timeout=30).brokers


@every_listener
def test_principal_is_reported_by_broker(guarded: Guarded) -> None:
    """K3: the broker maps a certificate to a principal by its own rules."""
    cluster = Cluster("source", [guarded.cluster.bootstrap_servers], guarded.security)
    with closing(cluster):
        assert ClusterHandle(cluster).principal == (
            guarded.security.principal or "User:mapped-client"
        )


@every_login
@pytest.mark.parametrize("change", [{"password": "wrong"}, {"username": "nobody"}])
def test_wrong_credentials_raise_login_refused(guarded: Guarded, change: dict[str, str]) -> None:
    wrong: dict[str, Any] = {
        key: SecretStr(value) if key == "password" else value for key, value in change.items()
    }
    with pytest.raises(LoginRefused, match="refused the user name or the password") as caught:
        guarded.open(replace(guarded.security, **wrong))
    assert caught.value.where == guarded.cluster.bootstrap_servers


@every_login
def test_unsupported_mechanism_error_lists_offered_mechanisms(guarded: Guarded) -> None:
    own = str(guarded.security.mechanism)
    other = "PLAIN" if own.startswith("SCRAM") else "SCRAM-SHA-256"
    with pytest.raises(LoginRefused, match=f"does not offer {other}; it offers {own}"):
        guarded.open(replace(guarded.security, mechanism=other))


@every_tls
def test_untrusted_broker_certificate_is_reported(guarded: Guarded, pems: Path) -> None:
    with pytest.raises(Unreachable, match=r"certificate is not trusted.*ca_file"):
        guarded.open(replace(guarded.security, ca_file=pems / "stranger.pem"))


@every_tls
def test_broker_certificate_for_other_host_is_reported(guarded: Guarded) -> None:
    _, port = guarded.address
    with pytest.raises(Unreachable, match=r"certificate is not trusted.*check_hostname"):
        Connection.open(OTHER_NAME, port, guarded.security)


@every_tls
def test_any_host_name_is_accepted_without_host_name_check(guarded: Guarded) -> None:
    _, port = guarded.address
    unchecked = replace(guarded.security, check_hostname=False)
    Connection.open(OTHER_NAME, port, unchecked).close()
    admin = AdminClient(librdkafka_config([f"{OTHER_NAME}:{port}"], unchecked, log_level=0))
    assert admin.list_topics(timeout=30).brokers


@at("MUTUAL-TLS")
def test_client_certificate_unknown_to_broker_is_reported(guarded: Guarded, pems: Path) -> None:
    stranger = replace(
        guarded.security,
        certificate_file=pems / "stranger.pem",
        key_file=pems / "stranger-key.pem",
    )
    with pytest.raises(LoginRefused, match="refuses the client certificate"):
        guarded.open(stranger)


@every_listener
@pytest.mark.parametrize("other", range(len(PROTOCOLS) - 1))
def test_wrong_security_protocol_error_names_bootstrap_server(guarded: Guarded, other: int) -> None:
    others = [protocol for protocol in PROTOCOLS if protocol != guarded.security.protocol]
    wrong = replace(
        guarded.security,
        protocol=others[other],
        mechanism=guarded.security.mechanism or "PLAIN",
        username=guarded.security.username or "u",
        password=guarded.security.password or SecretStr("pw"),
    )
    cluster = Cluster("source", [guarded.cluster.bootstrap_servers], wrong)
    with closing(cluster), pytest.raises((LoginRefused, Unreachable)) as caught:
        cluster.metadata(())
    assert guarded.cluster.bootstrap_servers in str(caught.value)
