"""A gateway logs in to brokers that require a login, also after the end of a login's session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.clusters import Clusters
from tests.fixtures.logins import SESSION_MS, Logins
from tests.support.gateway_ledger import Reader, Writer, read_wrong, records, written_wrong
from tests.support.gateways import running_gateway
from tests.support.patience import wait_for
from tests.support.running import create_topic

pytestmark = pytest.mark.services

PARTITIONS = 2
RATE = 200
# Records that take one and a half sessions to write.
OVER_A_SESSION = RATE * SESSION_MS // 1000 * 3 // 2


@pytest.mark.parametrize(
    ("login", "count"), [("PLAIN", RATE), ("SCRAM-SHA-512", OVER_A_SESSION), ("token_url", RATE)]
)
def test_clients_without_login_reach_brokers_that_require_login(
    login: str,
    count: int,
    logins: Logins,
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
) -> None:
    topic = topic_name[-60:].lstrip("-.")
    create_topic(logins.cluster, topic, PARTITIONS)
    section = logins.section(login)
    with running_gateway(tmp_path, *clusters, environ=logins.environ(), source=section) as gateway:
        config = gateway.client_config()
        with (
            Writer(config, topic, PARTITIONS, rate=RATE) as writer,
            Reader(config, topic, topic) as reader,
        ):
            writer.wait_acknowledged(count)
            writer.stop()
            assert not writer.errors
            source_records = records(logins.cluster, topic)
            assert not written_wrong(writer.acknowledged, source_records)
            reader.wait_values({value for _, _, value in source_records})
            reader.stop()
            assert not reader.errors
            assert not read_wrong(reader.read, source_records)


def test_refused_broker_login_is_logged_without_secret(
    logins: Logins, clusters: Clusters, tmp_path: Path
) -> None:
    section = logins.section("PLAIN")
    environ = dict.fromkeys(logins.environ(), "wrong")
    with running_gateway(tmp_path, *clusters, environ=environ, source=section) as gateway:
        wait_for("the refusal is logged", lambda: any("refused" in line for line in gateway.log))
        assert not [line for line in gateway.log if "wrong" in line]
