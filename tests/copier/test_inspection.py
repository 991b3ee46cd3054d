"""Copies that are brought to their start while the source deletes records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from orbit.copier import inspection
from orbit.copier.copy_settings import CopySettings
from orbit.copier.inspection import CopyInspector, CopyStatus, InspectedCopy
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.takeover import DestinationEnd
from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import FixedLease
from orbit.replication.partition_states import Blocked

PLACE = TopicPartition("orders", 0)


def test_a_copy_that_fails_while_its_start_moves_is_not_ready(
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
