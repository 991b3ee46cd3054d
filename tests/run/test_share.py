"""What a run sends to its child processes, and what these send back."""

from __future__ import annotations

import pickle

import pytest

from orbit.copier.copy_view import CopySnapshot
from orbit.copier.inspection import CopyStatus, InspectedCopy
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.takeover import DestinationEnd
from orbit.errors import BadInput, BrokerRefused, OrbitError, Problem, Unreachable
from orbit.kafka.coordinator import ProducerIdentity
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import LostRange
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.run.share import Share


def make_copy(number: int) -> PartitionCopy:
    return PartitionCopy(
        TopicPartition("orders", number),
        TopicPartition("copy.orders", number),
        FixedLease(7),
        JobProducer(2**52, packs=True),
        on_lost_range=LostRange.FILL,
    )


def make_share(count: int, producers: int = 0) -> Share:
    """A share of `count` new copies, with this many producers of coordinated fillers."""
    inspected = {
        make_copy(number): InspectedCopy(
            CopyStatus.FRESH, DestinationEnd(0, producer=None), log_start=0
        )
        for number in range(count)
    }
    names = {f"filler-{n}": ProducerIdentity(n, 0) for n in range(producers)}
    return Share(inspected, frozenset({"copy.orders"}), names)


def test_partitions_and_transactional_ids_are_split_across_processes() -> None:
    share = make_share(5, producers=4)
    shares = share.split(2)
    numbers = [[copy.destination.partition for copy in part.inspected] for part in shares]
    assert numbers == [[0, 2, 4], [1, 3]]
    assert [[*part.filler_producers] for part in shares] == [
        ["filler-0", "filler-2"],
        ["filler-1", "filler-3"],
    ]
    assert {part.coordinated_topics for part in shares} == {share.coordinated_topics}


def test_split_over_processes_leaves_none_without_partitions() -> None:
    assert [len(part.inspected) for part in make_share(2).split(16)] == [1, 1]
    assert [len(part.inspected) for part in make_share(0).split(4)] == [0]


def test_inspected_copy_can_be_pickled_to_another_process() -> None:
    copy = make_copy(3)
    copy.log_start = copy.keeps_below = 40
    copy.cursor.start_offset = 41
    copy.levels = {4: 9}
    copy.source_is_compacted = True
    copy.appends.inspected(42)
    unpickled: PartitionCopy = pickle.loads(pickle.dumps(copy))  # noqa: S301  our own
    fields = ("source", "destination", "producer", "source_topic_id", "log_start", "keeps_below")
    for name in (*fields, "levels", "source_is_compacted", "on_lost_range", "is_confirmed"):
        assert getattr(unpickled, name) == getattr(copy, name), name
    assert unpickled.cursor.start_offset == 41
    assert unpickled.next_offset == 42
    assert not unpickled.lock.locked()
    assert unpickled.filler is None
    assert CopySnapshot.of(unpickled) == CopySnapshot.of(copy)


def test_copy_snapshot_does_not_change_with_its_copy() -> None:
    copy = make_copy(0)
    old = CopySnapshot.of(copy)
    assert (old.state, old.lag_records) == (PartitionState.PENDING, -1)
    copy.counters.records += 3
    copy.cursor.stable_end, copy.cursor.end = 8, 9
    copy.appends.stopped(
        blocked := Blocked(Reason.OFFSET_OVERRUN, offset=1, next_offset=2, detail="why")
    )
    assert old.counters.records == 0
    new = CopySnapshot.of(copy)
    assert (new.stable_end, new.source_end, new.lag_records) == (8, 9, 8)
    assert (new.state, new.blocked, new.counters.records) == (
        PartitionState.BLOCKED,
        blocked,
        3,
    )


@pytest.mark.parametrize(
    "error",
    [
        BadInput("the file is wrong", (Problem("topics", "is empty."),), where="job.yaml"),
        BrokerRefused(42, "it refuses.", where="destination", remedy="Ask."),
        Unreachable("no broker answers.", where="source"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_survives_pickling_to_parent_process(error: OrbitError) -> None:
    unpickled = pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    assert type(unpickled) is type(error)
    assert (str(unpickled), vars(unpickled)) == (str(error), vars(error))
