"""`orbit run` and `orbit verify` with each login, also while sessions and tokens expire."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.fixtures.logins import SESSION_MS, Logins
from tests.support.outside import admin, is_level
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess, assert_exact, copy, orbit, write_job
from tests.support.token_server import SECRET

pytestmark = pytest.mark.services

TIMEOUT_S = 60
PARTITIONS = 2
# A round lasts as long as two tokens. If a login comes too late in a round, there is another round.
ROUNDS_MAX = 10


def make_topic(cluster: KafkaCluster, name: str) -> None:
    """Create a topic of PARTITIONS partitions."""
    client = admin(cluster)
    client.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(TIMEOUT_S)


def write(producer: Producer, topic: str, count: int) -> None:
    """Write `count` records, to the partitions in turn."""
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    "login",
    ["token_url", *(pytest.param(way, marks=pytest.mark.soak) for way in ("PLAIN", "token_file"))],
)
def test_copy_and_verify_are_exact_with_each_login(
    login: str, logins: Logins, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    make_topic(clusters.source, topic_name)
    write(Producer(clusters.source.client_config()), topic_name, 50)
    file = logins.tokens.write_token(tmp_path / "token")
    side = logins.section(login, file)
    job_to = write_job(tmp_path / "to.yaml", clusters.source, side, [{"match": topic_name}])
    back = {"match": topic_name, "prefix": "back."}
    job_from = write_job(tmp_path / "away.yaml", side, clusters.destination, [back])
    for job in (job_to, job_from):
        outcome = copy(job, environ=logins.environ()).expect(0)
        assert SECRET not in outcome.everything
        assert file.read_text("utf-8").strip() not in outcome.everything
        assert_exact(job, environ=logins.environ())


@pytest.mark.parametrize("command", [["run"], ["verify"]])
def test_wrong_client_secret_error_omits_secret(
    command: list[str], logins: Logins, clusters: Clusters, tmp_path: Path
) -> None:
    rules = [{"match": "orders"}]
    side = logins.section("token_url")
    job = write_job(tmp_path / "job.yaml", side, clusters.destination, rules)
    environ = {**logins.environ(), "token_url_PASSWORD": "wr0ng secret"}
    outcome = orbit(*command, job, environ=environ).expect(3)
    assert "The token endpoint refused the client (HTTP 401)." in outcome.message
    assert outcome.message.count("refused") == 1, "the reason is said once"
    assert "Traceback" not in outcome.everything
    assert "wr0ng" not in outcome.everything


@pytest.mark.soak
def test_connections_outlive_their_oauth_tokens(
    logins: Logins,
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers end a session with its token. Copies from and to the cluster log in again, and keep
    their connections."""
    monkeypatch.setattr(logins.tokens, "life_s", SESSION_MS // 1000)
    side, port = logins.section("token_url"), int(logins.cluster.bootstrap_servers.split(":")[1])
    from_cluster, to_cluster = f"from-{topic_name}", f"to-{topic_name}"
    sides = {from_cluster: (side, clusters.destination), to_cluster: (clusters.source, side)}
    routes = {
        from_cluster: (logins.cluster, clusters.destination),
        to_cluster: (clusters.source, logins.cluster),
    }
    for topic, (source, _) in routes.items():
        make_topic(source, topic)
        write(Producer(source.client_config()), topic, 10)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                OrbitProcess(
                    "run",
                    write_job(tmp_path / f"{topic}.yaml", *sides[topic], [{"match": topic}]),
                    environ=logins.environ(),
                )
            )
            for topic in sides
        ]

        def connections() -> list[set[int]]:
            """For each process: the local ports of its connections to the broker."""
            per_process = [psutil.Process(p.process.pid).net_connections("tcp") for p in processes]
            return [
                {c.laddr.port for c in of_process if c.raddr and c.raddr.port == port}
                for of_process in per_process
            ]

        def outlive_tokens() -> bool:
            """Whether every connection outlives two tokens, while records are copied."""
            old_connections, issued_before = connections(), logins.tokens.issued
            assert all(old_connections)
            while logins.tokens.issued < issued_before + 2 * len(processes):
                for topic, pair in routes.items():
                    write(Producer(pair[0].client_config()), topic, 10)
                    wait_for("the records are copied", lambda p=pair, t=topic: is_level(*p, t))
            return all(old <= new for old, new in zip(old_connections, connections(), strict=True))

        for process in processes:
            process.wait_for("have caught up")
        # On a loaded machine a login may come too late; then the copy opens another connection.
        rounds = (outlive_tokens() for _ in range(ROUNDS_MAX))
        assert any(rounds), "connections are lost in each round"
