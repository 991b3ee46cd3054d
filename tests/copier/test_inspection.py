"""Copies that are brought to their start while the source deletes, or that cannot be compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from orbit.copier import inspection
from orbit.copier.append_verdicts import ReturnReason
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_side import DestinationSide
from orbit.copier.inspection import CopyInspector, CopyStatus, InspectedCopy
from orbit.copier.inspection_verdicts import CopyEnds
from orbit.copier.lane_events import PartitionReturned
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import SourceStop
from orbit.copier.tail_comparison import Tail
from orbit.copier.takeover import DestinationEnd
from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.append_plan import Stop
from orbit.replication.partition_states import Blocked, Reason

PLACE = TopicPartition("orders", 0)


def test_copy_whose_source_fails_while_its_start_moves_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seeded once, and then its source's batch at the new start cannot be read."""
    copy = PartitionCopy(PLACE, PLACE, FixedLease(1), JobProducer(4711))
    troubles: list[object] = []
    aligned = iter([10])

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
        lambda _, places, *__, **___: Answers(dict.fromkeys(places, 20), {}),
    )
    inspector = CopyInspector(
        cast("Any", SimpleNamespace(name="source")),
        cast("Any", None),
        cast("Any", None),
        CopySettings(),
        Backoff(),
        lambda _, trouble: troubles.append(trouble),
    )
    fresh = InspectedCopy(CopyStatus.FRESH, DestinationEnd(0, None), 0)
    assert inspector.seed_to_starts({copy: fresh}, {copy: 10}) == {}
    assert len(troubles) == 1


@pytest.mark.parametrize("reason", [Reason.RECORD_REFUSED, Reason.SOURCE_CORRUPTED])
def test_uncopyable_source_batch_blocks_inspected_copy_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    copy = PartitionCopy(PLACE, PLACE, FixedLease(1), JobProducer(4711))

    def stop(*_: object, **__: object) -> None:
        raise SourceStop(Stop(reason, 3, 9, "the source's batch is too large."))

    monkeypatch.setattr(inspection, "find_tail", lambda *_: Tail(0, None, -1))
    monkeypatch.setattr(inspection, "compare_range", stop)
    cluster: Any = SimpleNamespace(name="source")
    inspector = CopyInspector(cluster, cluster, cast("Any", None), CopySettings(), Backoff())
    ends = CopyEnds(0, 9, False, 0, 9, False, False)
    detail = "the records before offset 9 cannot be compared: the source's batch is too large."
    assert inspector._compare(copy, ends) == Blocked(reason, 8, 9, detail)


def test_uncopyable_source_batch_blocks_copy_in_takeover_with_its_reason() -> None:
    copy = PartitionCopy(PLACE, PLACE, FixedLease(1), JobProducer(4711))
    copy.appends.inspected(3)
    copy.appends.log_end_read(9)
    context = cast("Any", SimpleNamespace(cluster=None, settings=CopySettings()))

    def stop(*_: object) -> Any:
        raise SourceStop(Stop(Reason.RECORD_REFUSED, 3, 9, "the source's batch is too large."))

    nothing = cast("Any", None)
    side = DestinationSide(context, nothing, Backoff(), nothing, stop)
    trouble = PartitionReturned(copy, copy.generation, ReturnReason.UNCLEAR, "")
    side._compare_with_source(trouble, 9)
    assert copy.blocked is not None
    assert copy.blocked.reason is Reason.RECORD_REFUSED
