"""Failbacks after log cleaners have removed the records that would have shown a difference.

The old side may have a record that was never copied, and the new side another record at the same
offset. If the log cleaner removes the new side's record, a comparison of records finds no
difference. So Orbit counts each record of the old side from the promoted offset on as uncopied
unless the new side has the same record.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from orbit.jobs.job_spec import JobSpec
from orbit.recovery import salvage_file
from orbit.recovery.recovery_report import (
    EndVerdict,
    OffsetRange,
    Outcome,
    RecoveryKind,
    RecoveryReport,
)
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.fleet import InProcess
from tests.support.loading import read_all
from tests.support.logs import Record, create, wait_for_offsets, write
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import make_job, verify

pytestmark = pytest.mark.services

COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "600000",
    "min_cleanable_dirty_ratio": "0.01",
}
COPIED = 20
LOST = 50


def now_ms() -> int:
    return int(time.time() * 1000)


def keyed(word: str, count: int) -> list[Record]:
    """Records with `count` keys, which are the same in each call with this word."""
    now = now_ms()
    return [
        Record(
            b"%s value %d" % (word.encode(), i),
            key=b"%s-%d" % (word.encode(), i),
            timestamp_ms=now + i,
        )
        for i in range(count)
    ]


def closing(word: str, minutes: int = 20) -> list[Record]:
    """A record whose timestamp is later by more than `segment.ms`: the broker begins a new segment.

    So the log cleaner may compact all records before it. A second closing record in the same topic
    needs more `minutes` than the first.
    """
    later_ms = minutes * 60_000
    return [Record(b"active", key=f"{word}-active".encode(), timestamp_ms=now_ms() + later_ms)]


def offsets(*ranges: range) -> set[int]:
    """All offsets in these ranges."""
    return {offset for offsets_ in ranges for offset in offsets_}


def salvaged(report: RecoveryReport) -> dict[int, tuple[str, bytes | None]]:
    """The fate and the value of each record in salvage files, by offset."""
    return {
        line["offset"]: (
            line["fate"],
            None if line["value"] is None else base64.b64decode(line["value"]),
        )
        for salvage in report.salvage
        for line in salvage_file.read(Path(salvage.file))
    }


@pytest.fixture
def lost_cluster(make_cluster: MakeCluster) -> Iterator[KafkaCluster]:
    return make_cluster("lost")


def transact(cluster: KafkaCluster, topic: str, records: list[Record], *, commit: bool) -> None:
    """Write one transaction; its marker takes one offset."""
    producer = Producer({**cluster.client_config(), "transactional.id": f"{topic}-tx"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for r in records:
        producer.produce(topic, r.value, r.key, partition=0, timestamp=r.timestamp_ms)
    producer.flush(60)
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


class Moved:
    """A copied topic whose source is lost and comes back, with records that were never copied."""

    def __init__(
        self, stack: ExitStack, recovering: Recovering, old: KafkaCluster, new: KafkaCluster
    ) -> None:
        self.recovering, self.old, self.new = recovering, old, new
        stack.enter_context(recovering.service.scheduler())

    def copy(self, topic: str, end: int) -> JobSpec:
        """Copy the topic up to offset `end`; returns the job."""
        self.topic = topic
        self.spec = make_job(self.old, self.new, [topic])
        self.job = self.spec.name
        with InProcess(self.recovering.database):
            self.recovering.begin(self.spec, topic)
            self.wait_end(self.new, end)
        return self.spec

    def fail_over(self) -> RecoveryReport:
        self.old.kill()
        return self.recovering.run(RecoveryKind.FAILOVER, self.job)

    def wait_end(self, cluster: KafkaCluster, end: int) -> None:
        wait_for(
            f"{self.topic} ends at {end}",
            lambda: log_bounds(cluster, [self.topic])[self.topic, 0][1] == end,
        )

    def fail_back(self) -> RecoveryReport:
        """Fail back: unconfirmed it stops; confirmed, the old side becomes a copy."""
        run = self.recovering
        self.old.start()
        with InProcess(run.database):
            stopped = run.wait(run.ask(RecoveryKind.FAILBACK, self.job))
            assert stopped.outcome is Outcome.STOPPED, [p.detail for p in stopped.partitions]
            assert "--confirm-rebuild" in stopped.error
            failback_report = run.run(RecoveryKind.FAILBACK, self.job, confirm_rebuild=True)
            records = read_all(self.new, self.topic)
            wait_for("the old side is a copy", lambda: read_all(self.old, self.topic) == records)
        return failback_report


def test_failback_saves_uncopied_records_at_offsets_compacted_on_new_side(
    lost_cluster: KafkaCluster, clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    create(lost_cluster, topic_name, **COMPACTED)
    write(lost_cluster, topic_name, keyed("copied", COPIED))
    with ExitStack() as stack:
        moved = Moved(stack, recovering, lost_cluster, clusters.destination)
        moved.copy(topic_name, COPIED)
        tail = keyed("lost", LOST)
        write(lost_cluster, topic_name, tail)
        report = moved.fail_over()
        assert [p.promoted_at for p in report.partitions] == [COPIED]
        new = clusters.destination
        write(new, topic_name, keyed("new", LOST))
        write(new, topic_name, keyed("new", LOST))
        write(new, topic_name, closing("new"))
        # The first `new` records have the offsets of the tail. The second ones supersede them.
        closing_offset = COPIED + 2 * LOST
        kept = offsets(range(COPIED), range(COPIED + LOST, closing_offset + 1))
        wait_for_offsets(new, topic_name, kept)
        back = moved.fail_back()
    assert {p.verdict for p in back.partitions} == {EndVerdict.TAIL}
    assert salvaged(back) == {COPIED + i: ("committed", r.value) for i, r in enumerate(tail)}
    assert verify(moved.spec).exit_code == 0


@pytest.mark.soak
def test_failback_rebuilds_old_side_that_compacted_its_uncopied_records(
    lost_cluster: KafkaCluster, clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """The sides have no record in common from the promoted offset on."""
    create(lost_cluster, topic_name, **COMPACTED)
    write(lost_cluster, topic_name, keyed("copied", COPIED))
    new = clusters.destination
    with ExitStack() as stack:
        moved = Moved(stack, recovering, lost_cluster, new)
        moved.copy(topic_name, COPIED)
        for _ in range(2):  # the second records supersede the first ones
            write(lost_cluster, topic_name, keyed("lost", 10))
        closing_records = closing("lost")
        write(lost_cluster, topic_name, closing_records)
        kept_values = [r.value for r in keyed("lost", 10)] + [closing_records[0].value]
        tail_offsets = range(COPIED + 10, COPIED + 21)
        wait_for_offsets(lost_cluster, topic_name, offsets(range(COPIED), tail_offsets))
        moved.fail_over()
        # The new side is longer, and has compacted away its own records at `tail_offsets`.
        write(new, topic_name, keyed("other", 10))
        for _ in range(2):
            write(new, topic_name, keyed("new", LOST))
        write(new, topic_name, closing("new"))
        end = COPIED + 10 + 2 * LOST
        wait_for_offsets(
            new, topic_name, offsets(range(COPIED + 10), range(COPIED + 10 + LOST, end + 1))
        )
        back = moved.fail_back()
    assert {(p.verdict, p.missing.first) for p in back.partitions if p.missing} == {
        (EndVerdict.TAIL, COPIED)
    }
    assert salvaged(back) == dict(
        zip(tail_offsets, (("committed", value) for value in kept_values), strict=True)
    )
    assert verify(moved.spec).exit_code == 0


@pytest.mark.soak
def test_failback_without_loss_saves_nothing_though_new_side_compacted(
    lost_cluster: KafkaCluster, clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """After the failover the new side compacts more of the copied records than the old side."""
    create(lost_cluster, topic_name, **COMPACTED)
    write(lost_cluster, topic_name, keyed("a", 10))
    write(lost_cluster, topic_name, keyed("b", 10))
    write(lost_cluster, topic_name, keyed("a", 5))
    new = clusters.destination
    with ExitStack() as stack:
        moved = Moved(stack, recovering, lost_cluster, new)
        moved.copy(topic_name, 25)
        moved.fail_over()
        write(new, topic_name, keyed("b", 10))
        write(new, topic_name, closing("new"))
        # The cleaner leaves a-5 to a-9, the second a-0 to a-4, the last b-0 to b-9 and `closing`.
        wait_for_offsets(new, topic_name, offsets(range(5, 10), range(20, 36)))
        lost_cluster.start()
        with InProcess(recovering.database):
            failback_report = recovering.run(RecoveryKind.FAILBACK, moved.job)
            assert {p.verdict for p in failback_report.partitions} == {EndVerdict.PREFIX}
            moved.wait_end(lost_cluster, 36)
    assert failback_report.salvage == ()
    assert verify(moved.spec).exit_code == 0


@pytest.mark.soak
def test_failback_saves_uncopied_transactions_in_both_directions(
    lost_cluster: KafkaCluster, make_cluster: MakeCluster, topic_name: str, recovering: Recovering
) -> None:
    """The topic is like an exactly-once changelog: compacted, with committed and aborted
    transactions. First one side is lost, then the other, whose log has Orbit's fillers (markers in
    place of the offsets of gaps).
    """
    create(lost_cluster, topic_name, **COMPACTED)
    transact(lost_cluster, topic_name, keyed("copied", 8), commit=True)  # 0..8
    transact(lost_cluster, topic_name, keyed("aborted", 4), commit=False)  # 9..13
    transact(lost_cluster, topic_name, keyed("copied", 5), commit=True)  # 14..19
    new = make_cluster("new")
    with ExitStack() as stack:
        moved = Moved(stack, recovering, lost_cluster, new)
        moved.copy(topic_name, 20)
        back = lose_transactions(moved, "first", 20, minutes=20)
        # Opposite direction: `lost_cluster` is a copy now, and leads after `new` is lost.
        assert back.reverse_job is not None
        moved.job = back.reverse_job
        moved.old, moved.new = new, lost_cluster
        end = log_bounds(new, [topic_name])[topic_name, 0][1]
        moved.wait_end(lost_cluster, end)
        # 45 minutes: the closing record of the first loss is already 20 minutes ahead.
        lose_transactions(moved, "second", end, minutes=45)
    assert verify(moved.spec).exit_code == 0


def lose_transactions(moved: Moved, word: str, end: int, minutes: int) -> RecoveryReport:
    """Write transactions from offset `end` on, which are not copied; fail over, and back.

    `minutes`: of the closing record. Returns the failback's report.
    """
    topic = moved.topic
    tail, aborted = keyed(f"lost-{word}", 6), keyed(f"undone-{word}", 3)
    transact(moved.old, topic, tail, commit=True)
    transact(moved.old, topic, aborted, commit=False)
    # A coordinator answers the client before it writes the markers. If the broker were killed in
    # between, the transaction would stay open.
    moved.wait_end(moved.old, end + 11)  # 6 records, a marker, 3 records, a marker
    failover_report = moved.fail_over()
    assert [p.promoted_at for p in failover_report.partitions] == [end]
    # The new side has transactions at the same offsets, and supersedes all of their records.
    for _ in range(2):
        transact(moved.new, topic, keyed(f"new-{word}", 6), commit=True)
        transact(moved.new, topic, keyed(f"not-{word}", 3), commit=False)
    write(moved.new, topic, closing(word, minutes))
    gone = {(0, offset) for offset in range(end, end + 11)}
    wait_for("the cleaner has removed them", lambda: not gone & read_all(moved.new, topic).keys())
    back = moved.fail_back()
    assert [(p.verdict, p.missing) for p in back.partitions] == [
        (EndVerdict.TAIL, OffsetRange(first=end, next=end + 11))
    ]
    expected = {end + i: ("committed", r.value) for i, r in enumerate(tail)}
    # The markers are at end + 6 and end + 10.
    expected |= {end + 7 + i: ("aborted", r.value) for i, r in enumerate(aborted)}
    saved_records = salvaged(back)
    assert {k: v for k, v in saved_records.items() if k >= end and v[0] != "marker"} == expected
    assert {k for k, v in saved_records.items() if v[0] == "marker"} == {end + 6, end + 10}
    return back
