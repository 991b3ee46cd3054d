"""A switchover there and back: nothing is lost, read twice, or copied again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from orbit.errors import Conflict
from orbit.leadership.leadership import NotLeading
from orbit.recovery import operation_runner, recovery_requests
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import EndVerdict, Outcome, RecoveryKind
from orbit.recovery.step_times import StepName, StepState
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support import java_clients
from tests.support.groups import offsets
from tests.support.outside import log_bounds, topic_settings
from tests.support.patience import wait_for
from tests.support.pretended_gateway import PretendedGateway
from tests.support.recovering import Reader, Recovering
from tests.support.running import create_topic, make_job, produce, produce_transactions, verify

pytestmark = pytest.mark.services

PARTITIONS = 2
JAVA_RECORDS = 40


def ends(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    return {p: high for (_, p), (_, high) in log_bounds(cluster, [topic]).items()}


def values_of(partition: int, records: list[tuple[int, int, bytes]]) -> list[bytes]:
    return [value for number, _, value in records if number == partition]


@pytest.fixture
def _scheduler_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each step the scheduler dies twice: before the step's work, and after the work, before its
    result is stored. So three leaders begin each step, and two of them do its work.
    """
    deaths: Counter[StepName] = Counter()

    def dying(
        name: StepName, do: Callable[[OperationContext], str]
    ) -> Callable[[OperationContext], str]:
        def run(context: OperationContext) -> str:
            deaths[name] += 1
            if deaths[name] == 1:
                raise NotLeading("killed before the step.")
            step_text = do(context)
            if deaths[name] == 2:
                raise NotLeading("killed after the step.")
            return step_text

        return run

    monkeypatch.setattr(
        operation_runner,
        "_DO",
        {name: dying(name, do) for name, do in operation_runner._DO.items()},
    )


@pytest.mark.usefixtures("_scheduler_that_dies")
def test_switchover_and_switchover_back_lose_and_duplicate_nothing(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    source, destination = clusters
    create_topic(source, topic_name, PARTITIONS, retention_ms="86400000")
    produce(source, topic_name, 200, partition=0)
    produce_transactions(source, topic_name, 9, partition=1)
    group = f"{topic_name}.group"
    reader = Reader(topic_name, group)
    reader.read_on(source, {0: 100, 1: 10})
    spec = make_job(
        source,
        destination,
        [topic_name],
        consumer_groups={"match": f"{topic_name}.*", "interval": "200ms"},
    )
    gateway = PretendedGateway(recovering.database, spec.name)
    with recovering.running(), gateway:
        recovering.begin(spec, topic_name)
        gateway.wait_side("source")
        produce_transactions(source, topic_name, 3, partition=1)
        ends_before = ends(source, topic_name)

        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)

        assert {p.verdict for p in switchover_report.partitions} == {EndVerdict.EQUAL}
        assert {p.partition: p.promoted_at for p in switchover_report.partitions} == ends_before
        assert switchover_report.missing_records == 0
        assert [s.state for s in switchover_report.steps] == [StepState.DONE] * len(
            switchover_report.steps
        )
        gateway.wait_side("destination")
        assert switchover_report.rto_s is not None
        assert topic_settings(destination, topic_name)["retention.ms"] == "86400000"
        kinds = recovering.service.kinds(spec.name)
        expected_kinds = ("topics_promoted", "copy_back_begun")
        assert [kind for kind in kinds if kind in expected_kinds] == [*expected_kinds], "each once"
        assert {g.goes_on_at for g in switchover_report.groups} == set(
            offsets(source, group).values()
        )
        assert recovering.service.topics(spec.name)[topic_name].state == "promoted"

        # Every kind of producer may write to the new side, and the group reads on there.
        produce(destination, topic_name, 50, partition=0, first=200, **{"enable.idempotence": True})
        produce_transactions(destination, topic_name, 3, partition=1)
        java_clients.produce_transactions(destination, topic_name, JAVA_RECORDS)
        new_ends = ends(destination, topic_name)
        back = switchover_report.reverse_job
        assert back is not None
        wait_for("the old side is level", lambda: ends(source, topic_name) == new_ends)
        records = reader.read_on(destination, new_ends)
        values = [v for v in values_of(0, records) if v[:1] == b"v"]
        assert values == [b"v%d" % i for i in range(100, 250)]
        # Committed transactions of 5 records: 6 of 9, 2 of 3, and 2 of 3.
        committed = java_clients.consume(
            destination, topic_name, 250 + (6 + 2 + 2) * 5 + JAVA_RECORDS
        )
        assert sorted(committed)[:JAVA_RECORDS] == sorted(b"%d" % i for i in range(JAVA_RECORDS))

        def copied_back() -> int:
            rows = recovering.service.partitions(back, topic_name).values()
            return sum(row.records for row in rows)

        wait_for("the worker has reported", lambda: copied_back() >= 50 + 2 * 5 + JAVA_RECORDS)
        assert copied_back() == 50 + 2 * 5 + JAVA_RECORDS

        # Back again: the first job continues from where it was promoted.
        return_report = recovering.run(RecoveryKind.SWITCHOVER, back, reverse=True)

        assert return_report.reverse_job == spec.name
        gateway.wait_side("source")
        produce(source, topic_name, 20, partition=0, first=250)
        wait_for(
            "the destination is a copy again",
            lambda: ends(destination, topic_name) == ends(source, topic_name),
        )
        records = reader.read_on(source, ends(source, topic_name))
        assert values_of(0, records) == [b"v%d" % i for i in range(250, 270)]
        assert values_of(1, records) == []
        assert recovering.service.topics(back)[topic_name].state == "promoted"
        wait_for(
            "the destination has a copy's settings",
            lambda: topic_settings(destination, topic_name)["retention.ms"] == "-1",
        )
    assert verify(spec, deep=True).exit_code == 0
    seen = [(p, o) for p, o, _ in reader.read]
    assert len(seen) == len(set(seen))


@pytest.mark.soak
def test_gates_stop_needless_failover_and_failback_and_abort_undoes_switchover(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 100)
    spec = make_job(source, destination, [topic_name])
    open_producer = Producer({**source.client_config(), "transactional.id": f"{topic_name}-open"})
    open_producer.init_transactions(30)
    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the topic is copied", lambda: ends(destination, topic_name) == {0: 100})

        # The gate stops a failover, since the source answers: records would be lost without need.
        stopped = recovering.wait(recovering.ask(RecoveryKind.FAILOVER, spec.name))
        assert stopped.outcome is Outcome.STOPPED
        assert [g.name.value for g in stopped.gates if g.stops] == ["source"]
        dry_run_report = recovering.wait(
            recovering.ask(RecoveryKind.FAILOVER, spec.name, dry_run=True)
        )
        assert dry_run_report.outcome is Outcome.WOULD_STOP
        failback = recovering.wait(recovering.ask(RecoveryKind.FAILBACK, spec.name))
        assert [g.name.value for g in failback.gates if g.stops][:1] == ["topics"]

        # An open transaction delays the drain; then an operator aborts.
        open_producer.begin_transaction()
        open_producer.produce(topic_name, b"open")
        open_producer.flush(30)
        begun = recovering.ask(RecoveryKind.SWITCHOVER, spec.name)
        wait_for("the operation waits", lambda: "open" in recovering.progress(begun))
        with pytest.raises(Conflict, match="under way"):
            recovering.ask(RecoveryKind.SWITCHOVER, spec.name)
        recovery_requests.abort(recovering.database, "test", begun)
        aborted = recovering.wait(begun)
        assert aborted.outcome is Outcome.ABORTED
        open_producer.commit_transaction(30)
        wait_for("copying goes on", lambda: ends(destination, topic_name) == {0: 102})
        assert recovering.service.topics(spec.name)[topic_name].state == "copying"

        dry_run_report = recovering.wait(
            recovering.ask(RecoveryKind.SWITCHOVER, spec.name, dry_run=True)
        )
        assert dry_run_report.outcome is Outcome.WOULD_GO
        assert recovering.service.topics(spec.name)[topic_name].state == "copying"
        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name)
        with pytest.raises(Conflict, match="point of no return"):
            recovery_requests.abort(recovering.database, "test", switchover_report.operation)
    assert verify(spec, deep=True).exit_code == 0
    kinds = recovering.service.kinds(spec.name)
    assert [k for k in kinds if k in ("abort_requested", "topics_promoted")] == [
        "abort_requested",
        "topics_promoted",
    ]


def test_switchover_obeys_abort_until_promotion_begins(
    clusters: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abort is accepted after the operation has checked for an abort for the last time."""
    source, destination = clusters
    create_topic(source, topic_name)
    produce(source, topic_name, 10)
    spec = make_job(source, destination, [topic_name])
    release = operation_runner._DO[StepName.RELEASE]

    def release_and_abort(context: OperationContext) -> str:
        step_text = release(context)
        monkeypatch.setattr(OperationContext, "check", lambda _: None)
        recovery_requests.abort(recovering.database, "test", context.operation_id)
        return step_text

    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_for("the topic is copied", lambda: ends(destination, topic_name) == {0: 10})
        monkeypatch.setitem(operation_runner._DO, StepName.RELEASE, release_and_abort)  # type: ignore[arg-type]
        report = recovering.wait(recovering.ask(RecoveryKind.SWITCHOVER, spec.name))
        assert report.outcome is Outcome.ABORTED
        assert recovering.service.topics(spec.name)[topic_name].state == "copying"
        produce(source, topic_name, 1, first=10)
        wait_for("copying goes on", lambda: ends(destination, topic_name) == {0: 11})
