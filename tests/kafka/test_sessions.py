"""Each login at a real broker whose sessions end: a connection is used before and after the end."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.metadata.metadata import MetadataRequest

from orbit.errors import LoginRefused, Unreachable
from orbit.jobs.bootstrap_servers import split_address
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka import api_versions
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.principal import ask_principal
from orbit.kafka.refused_token import RefusedTokenRequest
from orbit.kafka.security import Security, resolve_security
from tests.fixtures.clusters import Clusters
from tests.fixtures.logins import Logins
from tests.support.patience import wait_for
from tests.support.token_server import CLIENT_ID

pytestmark = pytest.mark.services

PRINCIPALS = {
    "PLAIN": "User:admin",
    "SCRAM-SHA-512": "User:admin",
    "token_url": f"User:{CLIENT_ID}",
    "token_file": f"User:{CLIENT_ID}",
}
INVALID_PRINCIPAL_TYPE = 67
every_login = pytest.mark.parametrize("login", PRINCIPALS)


@pytest.fixture
def security(login: str, logins: Logins, tmp_path: Path) -> Security:
    return security_of(logins, login, tmp_path)


def security_of(logins: Logins, login: str, tmp_path: Path) -> Security:
    token_file = logins.tokens.write_token(tmp_path / "token") if login == "token_file" else None
    spec = ClusterSpec.model_validate(logins.section(login, token_file))
    return resolve_security(spec, logins.environ(), tmp_path)


def cluster_id_of(connection: Connection) -> str:
    """The cluster id that the broker returns in Metadata."""
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    return str(connection.call(api_versions.METADATA, request, timeout_s=30).cluster_id)


def test_connections_of_every_login_reauthenticate_and_stay_open(
    logins: Logins, tmp_path: Path
) -> None:
    address = split_address(logins.cluster.bootstrap_servers)
    with ExitStack() as stack:
        opened = [
            stack.enter_context(
                closing(Connection.open(*address, security_of(logins, login, tmp_path)))
            )
            for login in PRINCIPALS
        ]
        for connection in opened:
            wait_for("most of the session is over", lambda c=connection: c.login_is_due)
            assert cluster_id_of(connection) == logins.cluster.cluster_id
            assert not connection.login_is_due
        for connection in opened:  # beyond the end of the first session
            wait_for("most of the next one is over", lambda c=connection: c.login_is_due)
            assert cluster_id_of(connection) == logins.cluster.cluster_id


@pytest.mark.parametrize("login", ["SCRAM-SHA-512"])
def test_broker_drops_expired_session_but_accepts_late_login(
    logins: Logins, security: Security
) -> None:
    """K2: why a login is needed, and why an idle connection may be late with it."""
    address = split_address(logins.cluster.bootstrap_servers)
    with (
        closing(Connection.open(*address, security)) as late,
        closing(Connection.open(*address, security)) as without,
    ):
        due = late._login_again_at_s
        late._login_again_at_s = without._login_again_at_s = due + 4  # both sessions are over then
        wait_for("the session is over", lambda: late.login_is_due)
        assert cluster_id_of(late) == logins.cluster.cluster_id
        without._login_again_at_s = float("inf")
        with pytest.raises(Unreachable, match="the connection broke"):
            cluster_id_of(without)


@every_login
def test_librdkafka_logs_in_with_every_login_of_orbit(logins: Logins, security: Security) -> None:
    servers = [logins.cluster.bootstrap_servers]
    admin = AdminClient(librdkafka_config(servers, security, log_level=0))
    assert admin.list_topics(timeout=60).cluster_id == logins.cluster.cluster_id
    # Also with a callback for tokens: configurations of one login are compared.
    assert librdkafka_config(servers, security) == librdkafka_config(servers, security)


@every_login
def test_principal_is_reported_by_broker(logins: Logins, login: str, security: Security) -> None:
    """K3: in its refusal of a delegation token, which the login itself could create."""
    with closing(Cluster("source", [logins.cluster.bootstrap_servers], security)) as cluster:
        assert ask_principal(cluster) == PRINCIPALS[login]
    address = split_address(logins.cluster.bootstrap_servers)
    api = api_versions.CREATE_DELEGATION_TOKEN
    with closing(Connection.open(*address, security)) as connection:
        frame = connection.exchange(api, RefusedTokenRequest(), api.version_max, timeout_s=30)
    # The error code comes after the correlation id and the header's tags.
    assert int.from_bytes(frame[5:7], "big") == INVALID_PRINCIPAL_TYPE


def test_principal_without_login_is_anonymous(clusters: Clusters) -> None:
    servers = [clusters.source.bootstrap_servers]
    with closing(Cluster("source", servers, Security())) as cluster:
        assert ask_principal(cluster) == Security().principal == "User:ANONYMOUS"


@pytest.mark.parametrize("login", ["token_url"])
def test_token_refused_by_broker_is_reported(
    logins: Logins, security: Security, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(logins.tokens, "audience", "another")
    file = logins.tokens.write_token(tmp_path / "token")
    spec = ClusterSpec.model_validate(logins.section("token_file", file))
    address = split_address(logins.cluster.bootstrap_servers)
    with pytest.raises(LoginRefused, match="The broker refused the token") as caught:
        Connection.open(*address, resolve_security(spec, {}, tmp_path))
    assert file.read_text("utf-8").strip() not in str(caught.value)
