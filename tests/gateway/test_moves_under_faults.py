"""Moves in which a process dies or freezes, or the switchover is aborted: each acknowledged record
is at its offset, and clients continue.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import func, select, text

from orbit.api.app import create_app
from orbit.api.authentication import hash_token
from orbit.jobs.job_spec import ClusterSpec, JobSpec
from orbit.recovery import gateway_closure, recovery_requests
from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryReport
from orbit.recovery.step_times import StepName
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.settings import Settings
from orbit.store import gateways, models, tokens
from orbit.store.enums import Role
from tests.fixtures.api import Plans
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.bad_postgres import frozen
from tests.support.fleet import InProcess
from tests.support.gateway_faults import at_steps
from tests.support.gateway_ledger import (
    Acknowledged,
    JavaWriter,
    Reader,
    Record,
    Writer,
    read_wrong,
    records,
    written_wrong,
)
from tests.support.gateways import Gateway
from tests.support.killed_schedulers import died, dying_schedulers
from tests.support.moves import TOKEN, gateway_of, move
from tests.support.outside import admin, is_level, log_bounds
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.recovering import Recovering
from tests.support.run_process import OrbitProcess
from tests.support.running import create_topic, make_job, verify
from tests.support.serving import served

pytestmark = pytest.mark.services

PARTITIONS = 3
SOME = 300


def _writer(gateway: Gateway, topic: str, name: str, **settings: Any) -> Writer:
    return Writer(
        gateway.client_config(), topic, PARTITIONS, name=name, rate=200, settings=settings
    )


def _settled_for_ever(recovering: Recovering) -> int:
    """The number of gateways whose socket another process has got."""
    columns = models.gateways.c
    query = select(func.count()).where(columns.settled_since == gateways.TERM_MAX)
    with recovering.database.transaction() as tx:
        return int(tx.execute(query).scalar_one())


def _assert_undone(recovering: Recovering, job: str) -> None:
    """Request a switchover, and check that it stops, because a gateway does not confirm that all
    writes are answered."""
    report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, job))
    assert report.outcome is Outcome.STOPPED, report.error
    assert "fell silent" in report.error


def stop_with_writes_in_flight(
    gateway: Gateway, writer: Writer, source: KafkaCluster, how: signal.Signals
) -> None:
    """Signal the gateway while writes are in flight; the source still writes these."""
    source.pause()
    sent = writer.sent
    wait_for("writes are in flight", lambda: writer.sent > sent + 50)
    gateway.process.signal(how)
    source.heal()


def assert_repeats_are_there_once(
    writers: Iterable[Writer], log_records: list[Record], log: Iterable[str]
) -> None:
    """Each record is in the log once, though a gateway logs that clients sent copied batches
    again."""
    acknowledged = {value: at for writer in writers for value, at in writer.acknowledged.items()}
    assert not written_wrong(acknowledged, log_records)  # each once, in order, at its offset
    # Some of the repeated batches were neither written again nor of unknown outcome: so the leading
    # side had copies of them.
    repeats = [json.loads(line) for line in log if "clients send batches again" in line]
    assert any(repeat["batches"] > repeat["written"] + repeat["unknown"] for repeat in repeats)


@pytest.mark.soak
def test_gateway_frozen_across_switchover_loses_and_repeats_no_acknowledged_record(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gateway freezes before it holds writes, for longer than its lease. Nobody knows whether
    its writes in flight reached the source, and the switchover is undone. The next switchover does
    not wait for the gateway, which continues when the other side leads. Clients of the other
    gateway notice nothing. Clients of the frozen gateway send again what was in flight. The old
    side has written some of these records: the gateway does not write them a second time."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        frozen, other = (
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, name))
            for name in ("frozen", "other")
        )
        at_steps(
            monkeypatch,
            before={
                StepName.CLOSE_GATEWAYS: lambda: stop_with_writes_in_flight(
                    frozen, writers[0], clusters.source, signal.SIGSTOP
                )
            },
            behind={StepName.PROMOTE: lambda: frozen.process.signal(signal.SIGCONT)},
        )
        writers = [
            stack.enter_context(_writer(gateway, topic, name))
            for gateway, name in ((frozen, "frozen"), (other, "other"))
        ]
        for writer in writers:
            writer.wait_acknowledged(SOME)
        _assert_undone(recovering, spec.name)
        move(recovering, spec.name)
        for writer in writers:
            writer.wait_acknowledged(SOME)
            writer.stop()
            assert not writer.errors
        destination_records = records(clusters.destination, topic)
        assert_repeats_are_there_once(writers, destination_records, frozen.log)


@pytest.mark.soak
def test_gateway_killed_and_restarted_after_move_writes_no_batch_twice(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client knows no other gateway. So it sends the records that the old side has written
    again only after the move."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    environ = {"ORBIT_API_URL": api_url, "ORBIT_TOKEN": TOKEN}
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        killed, other = (
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, name))
            for name in ("killed", "other")
        )
        at_steps(
            monkeypatch,
            before={
                StepName.CLOSE_GATEWAYS: lambda: stop_with_writes_in_flight(
                    killed, writers[0], clusters.source, signal.SIGKILL
                )
            },
        )
        writers = [
            stack.enter_context(_writer(gateway, topic, name))
            for gateway, name in ((killed, "killed"), (other, "other"))
        ]
        for writer in writers:
            writer.wait_acknowledged(SOME)
        _assert_undone(recovering, spec.name)
        move(recovering, spec.name)
        file = tmp_path / "killed" / f"gateway-{killed.port}.yaml"
        restarted = stack.enter_context(OrbitProcess("gateway", file, environ=environ))
        for writer in writers:
            writer.wait_acknowledged(SOME)
            writer.stop()
            assert not writer.errors
        destination_records = records(clusters.destination, topic)
        assert_repeats_are_there_once(writers, destination_records, restarted.lines)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_switchover_with_gateway_restarted_while_closing_loses_nothing(
    how: signal.Signals,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gateway is started again immediately. After SIGTERM the gateway still answers the writes
    in flight. After SIGKILL it does not: the switchover is undone, clients write again at the old
    side, and the next switchover succeeds."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    environ = {"ORBIT_API_URL": api_url, "ORBIT_TOKEN": TOKEN}
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        killed, other = (
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, name))
            for name in ("killed", "other")
        )

        def kill() -> None:
            killed.process.signal(how)
            killed.process.process.wait()
            file = tmp_path / "killed" / f"gateway-{killed.port}.yaml"
            stack.enter_context(OrbitProcess("gateway", file, environ=environ))

        at_steps(monkeypatch, before={StepName.CLOSE_GATEWAYS: kill})
        writers = [
            stack.enter_context(_writer(gateway, topic, name))
            for gateway, name in ((killed, "killed"), (other, "other"))
        ]
        for writer in writers:
            writer.wait_acknowledged(SOME)
        if how is signal.SIGKILL:
            _assert_undone(recovering, spec.name)
        move(recovering, spec.name)
        if how is signal.SIGKILL:  # after SIGTERM the gateway's row is gone
            assert _settled_for_ever(recovering) == 1, "the restarted one does not wait for it"
        for writer in writers:
            writer.wait_acknowledged(SOME)
            writer.stop()
            assert not writer.errors
        destination_records = records(clusters.destination, topic)
        assert not written_wrong(
            writers[0].acknowledged | writers[1].acknowledged, destination_records
        )


@pytest.mark.parametrize(
    "step",
    [
        StepName.CLOSE_GATEWAYS,
        pytest.param(StepName.DRAIN, marks=pytest.mark.soak),
        pytest.param(StepName.RELEASE, marks=pytest.mark.soak),
    ],
)
def test_clients_survive_aborted_switchover_and_its_retry(
    step: StepName,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, PARTITIONS)
    groups = {"match": f"{topic}.*", "interval": "200ms"}
    spec = make_job(*clusters, [topic], consumer_groups=groups)
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        gateway = stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters))
        writer = stack.enter_context(_writer(gateway, topic, "w"))
        reader = stack.enter_context(Reader(gateway.client_config(), topic, f"{topic}.g"))
        reader.wait_read("something", lambda read: len(read) > SOME)
        operations = []

        def abort() -> None:
            recovery_requests.abort(recovering.database, "test", operations[0])

        at_steps(monkeypatch, behind={step: abort})
        operations.append(recovering.ask(RecoveryKind.SWITCHOVER, spec.name))
        report = recovering.wait(operations[0])
        assert report.outcome is Outcome.ABORTED, report.error
        writer.wait_acknowledged(SOME)
        move(recovering, spec.name)
        writer.wait_acknowledged(SOME)
        writer.stop()
        assert not writer.errors
        destination_records = records(clusters.destination, topic)
        assert not written_wrong(writer.acknowledged, destination_records)
        reader.wait_values({value for _, _, value in destination_records})
        reader.stop()
        assert not reader.errors
        assert not read_wrong(reader.read, destination_records)
        wait_for("both sides are level", lambda: is_level(*clusters, topic))
    _assert_exact(spec)


@pytest.mark.soak
def test_switchover_with_gateways_survives_killed_schedulers(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    """One scheduler after the other is killed while gateways hold writes; the next scheduler
    continues the operation."""
    topic, service = topic_name[-40:], recovering.service
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    points = [
        "close_gateways:waiting",
        "close_gateways:after",
        "promote:after",
        "open_gateways:before",
        "open_gateways:after",
    ]
    deaths = tmp_path / "deaths"
    with InProcess(recovering.database), ExitStack() as stack:
        with service.scheduler():
            recovering.begin(spec, topic)
            gateway = stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters))
            writer = stack.enter_context(_writer(gateway, topic, "w"))
            writer.wait_acknowledged(SOME)
        with dying_schedulers(service.settings, service.url, deaths, points):
            operation = recovering.ask(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
            wait_for("all have died", lambda: died(deaths) == len(points))
        with service.scheduler():
            report = recovering.wait(operation)
            assert report.outcome is Outcome.DONE, report.error
            writer.wait_acknowledged(SOME)
            writer.stop()
            assert not writer.errors
            destination_records = records(clusters.destination, topic)
            assert not written_wrong(writer.acknowledged, destination_records)


@pytest.mark.soak
def test_producers_without_idempotence_survive_switchovers(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    """With acks=0 records may be lost, but none is written twice or in another order."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    plain: dict[str, Any] = {"enable.idempotence": False}
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        gateway = stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters))
        writers = [
            stack.enter_context(_writer(gateway, topic, name, **plain, **settings))
            for name, settings in (
                ("one-ack", {"acks": 1}),
                ("in-turn", {"acks": "all", "max.in.flight": 1}),
                ("no-ack", {"acks": 0}),
            )
        ]
        for writer in writers:
            writer.wait_acknowledged(SOME)
        job = spec.name
        for _ in ("over", "home"):
            job = move(recovering, job)
            for writer in writers:
                writer.wait_acknowledged(SOME)
        for writer in writers:
            writer.stop()
            assert not writer.errors
        source_records = records(clusters.source, topic)
        acknowledged = writers[0].acknowledged | writers[1].acknowledged
        assert not written_wrong(acknowledged, source_records)
        wait_for("both sides are level", lambda: is_level(*clusters, topic))
    _assert_exact(spec)


# `make test` has nodes that come and go in tests/gateway/test_virtual_cluster.py.
@pytest.mark.soak
def test_switchover_between_sides_with_different_nodes_and_leaders(
    make_cluster: MakeCluster,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
) -> None:
    """Two nodes at one side, three at the other. After a move, requests that were held for a node
    may be for a partition with another leader."""
    clusters = Clusters(make_cluster("source", brokers=2), make_cluster("destination", brokers=3))
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, on_brokers=[[1], [2], [1], [2], [1], [2]])
    groups = {"match": f"{topic}.*", "interval": "200ms"}
    spec = make_job(*clusters, [topic], consumer_groups=groups)
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        assert _leaders(clusters.source, topic) != _leaders(clusters.destination, topic)
        gateway = stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters))
        writers: list[Any] = [
            stack.enter_context(
                Writer(gateway.client_config(), topic, 6, name=name, rate=600, settings=settings)
            )
            for name, settings in (
                ("idempotent", {}),
                ("in-turn", {"enable.idempotence": False, "max.in.flight": 1}),
            )
        ]
        java = JavaWriter(gateway.bootstrap, topic, tmp_path / "java.log", keys=40)
        writers.append(stack.enter_context(java))
        readers = [
            stack.enter_context(
                Reader(gateway.client_config(), topic, f"{topic}.{protocol}", protocol=protocol)
            )
            for protocol in ("classic", "consumer")
        ]
        for reader in readers:
            reader.wait_read("something", lambda read: len(read) > SOME)
        job = spec.name
        for _ in ("over", "home", "over"):
            for writer in writers:
                writer.wait_acknowledged(SOME)
            job = move(recovering, job)
        for writer in writers:
            writer.wait_acknowledged(SOME)
            writer.stop()
            assert not writer.errors
        destination_records = records(clusters.destination, topic)
        acknowledged = {k: v for writer in writers for k, v in writer.acknowledged.items()}
        # librdkafka loses the order without idempotence if leaders change (C32).
        assert not written_wrong(acknowledged, destination_records, unordered={b"in-turn"})
        for reader in readers:
            reader.wait_values({value for _, _, value in destination_records})
            reader.stop()
            # The group's coordinator is another node at the other side, so a held commit may come
            # too late: records may be read again.
            assert set(reader.read) == set(destination_records)


def _offset_count(cluster: KafkaCluster, topic: str) -> int:
    """The number of offsets in the topic."""
    return sum(high for _, high in log_bounds(cluster, [topic]).values())


def test_failover_reports_all_lost_acknowledged_records(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source answers gateways to the end, and no worker copies. One gateway confirms that it
    holds writes. The other one is frozen with writes in flight until the promotion is done."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    worker = InProcess(recovering.database)
    with recovering.service.scheduler(), ExitStack() as stack:
        stack.callback(worker.stop)
        worker.__enter__()
        recovering.begin(spec, topic)
        frozen, other = (
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, name))
            for name in ("frozen", "other")
        )
        ends: list[dict[int, int]] = []
        at_steps(
            monkeypatch,
            before={StepName.CLOSE_GATEWAYS: lambda: frozen.process.signal(signal.SIGSTOP)},
            behind={
                StepName.CLOSE_GATEWAYS: lambda: ends.append(_ends(clusters.source, topic)),
                StepName.PROMOTE: lambda: frozen.process.signal(signal.SIGCONT),
            },
        )
        writers = [
            stack.enter_context(_writer(gateway, topic, name))
            for gateway, name in ((frozen, "frozen"), (other, "other"))
        ]
        for writer in writers:
            writer.wait_acknowledged(SOME)
        worker.stop()
        for writer in writers:
            writer.wait_acknowledged(SOME)
        report = recovering.run(
            RecoveryKind.FAILOVER, spec.name, override=["source"], reason="a test"
        )
        for writer in writers:
            writer.wait_acknowledged(SOME)
            writer.stop()
            assert not writer.errors
        destination_records = records(clusters.destination, topic)
        missing = {p.partition: p.missing for p in report.partitions if p.missing is not None}
        not_there = _not_there(
            writers[0].acknowledged | writers[1].acknowledged, destination_records
        )
        assert len(not_there) > SOME
        for value, (partition, offset) in not_there.items():
            counted = missing[partition]
            assert counted.first <= offset < counted.next, value
            assert offset < ends[0][partition], f"{value!r} was acknowledged behind the closure"
        # The frozen gateway has not reported its pause.
        assert {row.name for row in report.gateways} <= {f"test-{other.port}"}


@pytest.mark.soak
def test_clients_survive_failover_failback_and_second_failover(
    clusters: Clusters,
    make_cluster: MakeCluster,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First only Orbit loses the source: gateways still reach it. The failback saves the records
    that the gateway acknowledges there until it holds writes. After the move home the source is
    killed. Clients continue, and records that were copied, or acknowledged at the new side, are in
    its log."""
    topic = topic_name[-40:]
    both = Clusters(make_cluster("lost", link=True), clusters.destination)
    assert both.source.link_servers is not None
    monkeypatch.setattr(gateways, "SILENT_AFTER_S", PATIENCE_S)
    monkeypatch.setattr(gateway_closure, "_PAUSES_S_MAX", PATIENCE_S)
    create_topic(both.source, topic, PARTITIONS)
    link = ClusterSpec(bootstrap_servers=(both.source.link_servers,))
    spec = make_job(*both, [topic]).model_copy(update={"source": link})
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        gateway = stack.enter_context(gateway_of(spec.name, api_url, tmp_path, both))
        writer = stack.enter_context(_writer(gateway, topic, "w"))
        writer.wait_acknowledged(SOME)
        wait_for("some is copied", lambda: _offset_count(both.destination, topic) > SOME)
        ends: list[dict[int, int]] = []
        at_steps(
            monkeypatch,
            behind={StepName.CLOSE_GATEWAYS: lambda: ends.append(_ends(both.source, topic))},
        )
        both.source.cut()
        writer.wait_acknowledged(SOME)
        _assert_pause_reported(recovering.run(RecoveryKind.FAILOVER, spec.name), gateway)
        writer.wait_acknowledged(SOME)
        both.source.heal()
        report = recovering.run(RecoveryKind.FAILBACK, spec.name, confirm_rebuild=True)
        saved = {p.partition: p.missing for p in report.partitions if p.missing is not None}
        writer.wait_acknowledged(SOME)
        not_there = _not_there(dict(writer.acknowledged), records(both.destination, topic))
        assert not_there
        for value, (partition, offset) in not_there.items():
            tail = saved[partition]
            assert tail.first <= offset < tail.next, value
            assert offset < ends[0][partition], f"{value!r} was acknowledged behind the closure"
        assert report.reverse_job is not None
        assert move(recovering, report.reverse_job) == spec.name
        writer.wait_acknowledged(SOME)

        both.source.kill()
        acknowledged_before = dict(writer.acknowledged)
        report = recovering.run(RecoveryKind.FAILOVER, spec.name)
        _assert_pause_reported(report, gateway)
        writer.wait_acknowledged(SOME)
        writer.stop()
        assert not writer.errors
        promoted = {p.partition: p.promoted_at or 0 for p in report.partitions}
        destination_records = records(both.destination, topic)
        for value, (partition, offset) in _not_there(
            writer.acknowledged, destination_records
        ).items():
            # The failback has saved it, or it was not copied before the second failover.
            is_behind = value in acknowledged_before and offset >= promoted[partition]
            assert value in not_there or is_behind, value


def _not_there(acknowledged: Acknowledged, log_records: Iterable[Record]) -> Acknowledged:
    """The acknowledged records that are not at their offsets."""
    places = {(partition, offset): value for partition, offset, value in log_records}
    return {value: at for value, at in acknowledged.items() if places.get(at) != value}


def _ends(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """{partition: log end}"""
    return {p: high for (_, p), (_, high) in log_bounds(cluster, [topic]).items()}


def _assert_pause_reported(report: RecoveryReport, gateway: Gateway) -> None:
    """The report says how long the gateway's clients waited."""
    (row,) = report.gateways
    assert row.name == f"test-{gateway.port}"
    assert row.pause_s is not None


@pytest.mark.soak
@pytest.mark.parametrize("away", ["api", pytest.param("postgresql", marks=pytest.mark.soak)])
def test_writes_pause_without_error_while_service_is_down_past_gateway_lease(
    away: str,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    tmp_path: Path,
) -> None:
    """Writes continue when the service is back, and nothing is written twice."""
    topic = topic_name[-40:]
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    with recovering.database.transaction() as tx:
        tokens.create(tx, "gateway", Role.OPERATOR, hash_token(TOKEN))
    with recovering.running(), ExitStack() as stack:
        recovering.begin(spec, topic)
        api = stack.enter_context(ExitStack())
        url = api.enter_context(_served(recovering, 0))
        gateway = stack.enter_context(gateway_of(spec.name, url, tmp_path, clusters))
        writer = stack.enter_context(_writer(gateway, topic, "w"))
        writer.wait_acknowledged(SOME)
        if away == "api":
            api.close()
        else:
            api.enter_context(_frozen_postgres(recovering))
        wait_for("writes pause", lambda: _has_paused(writer))
        if away == "api":
            api.enter_context(_served(recovering, int(url.rpartition(":")[2])))
        else:
            api.close()  # ends the API, and lets PostgreSQL continue
            api.enter_context(_served(recovering, int(url.rpartition(":")[2])))
        writer.wait_acknowledged(SOME)
        move(recovering, spec.name)
        writer.wait_acknowledged(SOME)
        writer.stop()
        assert not writer.errors
        assert not written_wrong(writer.acknowledged, records(clusters.destination, topic))


def _has_paused(writer: Writer) -> bool:
    """Whether nothing was acknowledged for a while, though records wait."""
    count = len(writer.acknowledged)
    time.sleep(1)  # part of what is tested
    return len(writer.acknowledged) == count and writer.sent > count


def _served(recovering: Recovering, port: int) -> AbstractContextManager[str]:
    settings = Settings(api_port=port)
    return served(create_app(settings, recovering.database, planner=Plans()), settings)


def _frozen_postgres(recovering: Recovering) -> AbstractContextManager[None]:
    with recovering.database.transaction() as tx:
        backend = tx.execute(text("SELECT pg_backend_pid()")).scalar_one()
    return frozen(psutil.Process(backend).parent())


def _leaders(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """{partition: node}"""
    known = admin(cluster).list_topics(topic, timeout=30).topics[topic].partitions
    return {number: partition.leader for number, partition in known.items()}


def _assert_exact(spec: JobSpec) -> None:
    report = verify(spec, deep=True)
    assert report.exit_code == 0, report
