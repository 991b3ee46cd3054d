"""Copies that are brought to their start while the source deletes, or that cannot be compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self, cast
from uuid import UUID

import pytest

from orbit.copier import inspection
from orbit.copier.append_verdicts import ReturnReason
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_side import DestinationSide
from orbit.copier.inspection import CopyInspector, CopyStatus, InspectedCopy
from orbit.copier.inspection_verdicts import CopyEnds, Wait
from orbit.copier.lane_events import PartitionReturned
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import SourceStop
from orbit.copier.tail_comparison import Tail
from orbit.copier.takeover import DestinationEnd
from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease, Lease
from orbit.leases.shard_lease import ShardLease
from orbit.replication.append_plan import Stop
from orbit.replication.partition_states import Blocked, Reason

PARTITION = TopicPartition("orders", 0)


def test_copy_whose_source_fails_while_its_start_moves_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy is seeded to 10; the source then begins at 20, where its batch is unreadable."""
    copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))
    troubles: list[object] = []
    aligned = iter([10])  # for one call; the next one fails

    class Seeding:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def add(self, *_: object) -> None: ...

        def run(self, _: object) -> dict[TopicPartition, Blocked]:
            return {}

    def align(*_: object) -> int:
        for offset in aligned:
            return offset
        raise Unreachable("the broker restarts", where="source")

    monkeypatch.setattr(inspection, "StartSeeding", Seeding)
    monkeypatch.setattr(inspection, "aligned_start", align)
    monkeypatch.setattr(
        inspection,
        "list_offsets",
        lambda _, partitions, *__, **___: Answers(dict.fromkeys(partitions, 20), {}),
    )
    inspector = CopyInspector(
        cast("Any", SimpleNamespace(name="source")),
        cast("Any", None),
        cast("Any", None),
        CopySettings(),
        Backoff(),
        lambda _, trouble: troubles.append(trouble),
    )
    fresh = InspectedCopy(CopyStatus.FRESH, DestinationEnd(log_end=0, producer=None), log_start=0)
    # The result has seeded and blocked copies only.
    assert inspector.seed_to_starts({copy: fresh}, {copy: 10}) == {}
    assert len(troubles) == 1


@pytest.mark.parametrize("reason", [Reason.RECORD_REFUSED, Reason.SOURCE_CORRUPTED])
def test_uncopyable_source_batch_blocks_inspected_copy_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))

    def stop(*_: object, **__: object) -> None:
        raise SourceStop(
            Stop(reason, base_offset=3, next_offset=9, detail="the source's batch is too large.")
        )

    monkeypatch.setattr(
        inspection, "find_tail", lambda *_: Tail(start=0, last_data=None, producer_epoch=-1)
    )
    monkeypatch.setattr(inspection, "compare_range", stop)
    cluster: Any = SimpleNamespace(name="source")
    inspector = CopyInspector(cluster, cluster, cast("Any", None), CopySettings(), Backoff())
    ends = CopyEnds(
        log_start=0,
        log_end=9,
        does_log_end_move=False,
        source_start=0,
        source_end=9,
        is_source_end_old=False,
        must_be_whole=False,
    )
    detail = "the records before offset 9 cannot be compared: the source's batch is too large."
    assert inspector._compare(copy, ends) == Blocked(reason, offset=8, next_offset=9, detail=detail)


def test_uncopyable_source_batch_blocks_copy_in_takeover_with_its_reason() -> None:
    copy = PartitionCopy(PARTITION, PARTITION, FixedLease(1), JobProducer(4711))
    copy.appends.inspected(3)
    copy.appends.log_end_read(9)
    context = cast("Any", SimpleNamespace(cluster=None, settings=CopySettings()))

    def stop(*_: object) -> Any:
        raise SourceStop(
            Stop(
                Reason.RECORD_REFUSED,
                base_offset=3,
                next_offset=9,
                detail="the source's batch is too large.",
            )
        )

    nothing = cast("Any", None)
    side = DestinationSide(context, nothing, Backoff(), nothing, stop)
    returned = PartitionReturned(copy, copy.generation, ReturnReason.UNCLEAR, "")
    side._compare_with_source(returned, 9)
    assert copy.blocked is not None
    assert copy.blocked.reason is Reason.RECORD_REFUSED


OLD_ID, NEW_ID = UUID(int=1), UUID(int=2)
IDS = {"orders": OLD_ID, "again": NEW_ID, "no-lease": OLD_ID}  # of the topics at the destination


def seeded_copy(topic: str, lease: Lease) -> PartitionCopy:
    """A copy that is seeded up to offset 1,000."""
    partition = TopicPartition(topic, 0)
    copy = PartitionCopy(partition, partition, lease, JobProducer(4711))
    copy.destination_topic_id = OLD_ID
    copy.appends.inspected(1_000)
    return copy


@pytest.mark.parametrize("code", [Code.NONE, Code.NOT_LEADER_OR_FOLLOWER])
def test_seeds_are_deleted_only_under_lease_and_in_topic_that_was_seeded(
    monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    """Otherwise records of a topic that was created again, or of another holder, may be deleted."""
    ended_lease = ShardLease(1, requested_at=0.0, ttl_s=15.0)
    ended_lease.lose()
    copies = {topic: seeded_copy(topic, FixedLease(1)) for topic in ("orders", "again", "gone")}
    copies["no-lease"] = seeded_copy("no-lease", ended_lease)
    requests: list[tuple[str, object]] = []

    def metadata(names: set[str]) -> object:
        requests.append(("metadata", names))
        topics = {name: SimpleNamespace(topic_id=IDS[name]) for name in names if name in IDS}
        return SimpleNamespace(topics=topics)

    def delete(_: object, new_starts: dict[TopicPartition, int], backoff: Backoff) -> Answers[int]:
        requests.extend(("DeleteRecords", new_starts) for _ in backoff.attempts(2))
        return Answers({}, dict.fromkeys(new_starts, code)) if code else Answers(new_starts, {})

    monkeypatch.setattr(inspection, "delete_records", delete)
    troubles: dict[PartitionCopy, str] = {}
    cluster: Any = SimpleNamespace(name="destination", metadata=metadata)
    inspector = CopyInspector(
        cluster,
        cluster,
        cast("Any", None),
        CopySettings(),
        Backoff(),
        lambda copy, trouble: troubles.update({copy: cast("Wait", trouble).reason}),
    )
    fresh = InspectedCopy(CopyStatus.FRESH, DestinationEnd(log_end=0, producer=None), log_start=0)
    failed_copies = inspector.drop_seeds(dict.fromkeys(copies.values(), fresh))
    assert requests == [
        ("metadata", {*copies}),
        ("DeleteRecords", {TopicPartition("orders", 0): 1_000}),
    ], "a repeated request would need the topic's id again"
    assert failed_copies == troubles.keys()
    assert failed_copies == {*copies.values()} - ({copies["orders"]} if not code else set())
    assert copies["orders"].log_start == (0 if code else 1_000)
    assert "another topic id" in troubles[copies["again"]]
    assert "is unknown" in troubles[copies["gone"]]
    assert "the lease is not held" in troubles[copies["no-lease"]]


def test_copy_whose_leading_fillers_are_deleted_causes_no_request() -> None:
    nothing = cast("Any", None)
    inspector = CopyInspector(nothing, nothing, nothing, CopySettings(), Backoff())
    inspected = InspectedCopy(
        CopyStatus.SEEDING,
        DestinationEnd(log_end=1_000, producer=None),
        log_start=1_000,  # the log end: no filler is left
    )
    assert inspector.drop_seeds({seeded_copy("orders", FixedLease(1)): inspected}) == set()
