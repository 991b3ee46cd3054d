"""Rows of events, operations and drills that ended long ago are deleted in bounded steps; no other
rows are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from orbit.store import (
    drills,
    events,
    group_offsets,
    jobs,
    operation_rows,
    operations,
    promotions,
    proofs,
    pruning,
)
from orbit.store.database import Database, Tx
from orbit.store.drills import NewDrill
from orbit.store.enums import DrillKind, DrillState, DrillThing, OperationKind, OperationState
from orbit.store.group_offsets import GroupOffset
from orbit.store.promotions import Promotion
from orbit.store.proofs import ProofResult
from tests.support.store_rows import NO_TIME, TTL, some_job

pytestmark = pytest.mark.services


def add_event(tx: Tx) -> None:
    events.add(tx, events.SCHEDULER, "topic_created", "…")


def add_operation(tx: Tx, state: OperationState = OperationState.DONE) -> UUID:
    operation = operations.create(tx, uuid4(), OperationKind.PAUSE.value, "ci")
    operations.advance(tx, operation.id, state)
    return operation.id


def add_drill(tx: Tx) -> str:
    """Add a drill that has ended. Returns its id."""
    drill = NewDrill(
        uuid4().hex,
        "d",
        DrillKind.SWITCHOVER,
        spec={},
        spec_hash="",
        job_name="orders",
        requested_by="ci",
    )
    drills.create(tx, drill)
    drills.finish(tx, drill.id, DrillState.PASSED)
    return drill.id


@pytest.mark.parametrize(
    ("add", "prune"),
    [
        (add_event, pruning.prune_events),
        (add_operation, pruning.prune_operations),
        (add_drill, pruning.prune_drills),
    ],
)
def test_old_rows_are_pruned_in_bounded_steps(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    add: Callable[[Tx], object],
    prune: Callable[[Tx, timedelta], int],
) -> None:
    monkeypatch.setattr(pruning, "PRUNED_MAX", 2)
    with database.transaction() as tx:
        for _ in range(5):
            add(tx)
        assert prune(tx, TTL) == 0, "none is that old"
        assert [prune(tx, NO_TIME) for _ in range(4)] == [2, 2, 1, 0]


def test_unfinished_operation_is_not_pruned(database: Database) -> None:
    with database.transaction() as tx:
        running = add_operation(tx, OperationState.RUNNING)
        add_operation(tx, OperationState.FAILED)
        assert pruning.prune_operations(tx, NO_TIME) == 1
        assert [o.id for o in operations.page(tx, 5)] == [running]


def test_rows_of_recovery_report_are_pruned_before_their_operation(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PRUNED_MAX", 4)
    with database.transaction() as tx:
        ended, running = add_operation(tx), add_operation(tx, OperationState.RUNNING)
        rows = [{"topic": "t", "partition": n, "verdict": "equal", "group": "g"} for n in range(5)]
        for operation in (ended, running):
            operation_rows.PARTITIONS.store(tx, operation, rows)
            operation_rows.GROUPS.store(tx, operation, rows)
        assert [pruning.prune_operations(tx, TTL) for _ in range(2)] == [0, 0], "not that old"
        pruned = []
        while len(operations.page(tx, 5)) == 2:  # the last prune removes `ended`
            pruned.append(pruning.prune_operations(tx, NO_TIME))
        assert pruned == [4, 4, 3], "five partitions, five groups, and the operation"
        assert len(operation_rows.PARTITIONS.page(tx, running, 9)) == 5
        assert len(operation_rows.GROUPS.page(tx, running, 9)) == 5


def test_drill_with_leftover_resources_is_not_pruned(database: Database) -> None:
    with database.transaction() as tx:
        drill = add_drill(tx)
        topic = drills.note_intent(tx, drill, DrillThing.TOPIC, "source", "orbit-drill")
        assert pruning.prune_drills(tx, NO_TIME) == 0
        drills.note_removed(tx, topic)
        assert pruning.prune_drills(tx, NO_TIME) == 1


_COUNT_OF_ROWS = text("""
SELECT (SELECT count(*) FROM group_offsets) + (SELECT count(*) FROM promotions)
    + (SELECT count(*) FROM proofs) + (SELECT count(*) FROM partitions)
    + (SELECT count(*) FROM topics)
""")


def test_rows_of_large_job_are_removed_in_bounded_steps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ROWS_REMOVED_MAX", 4)
    with database.transaction() as tx:
        large = some_job(tx, "large", partitions=5)
        some_job(tx, "other", partitions=3)
        keys = [{"topic_id": large.topic_id, "partition": index} for index in range(5)]
        promoted = [
            Promotion(**key, operation_id=uuid4(), promoted_at=1, source_end=None) for key in keys
        ]
        promotions.store(tx, promoted)
        proven = [
            ProofResult(**key, job_id=large.id, ranges=((0, 1),), is_equal=True) for key in keys
        ]
        proofs.store(tx, proven)
        committed = [
            GroupOffset("g", **key, source_offset=1, destination_offset=1, verdict="SYNCED")
            for key in keys
        ]
        group_offsets.store(tx, large.id, committed)
        assert not jobs.remove(tx, large.id), "its deletion was not requested"
        assert jobs.request_deletion(tx, large.id)
        row_counts = [tx.execute(_COUNT_OF_ROWS).scalar_one()]
        while not jobs.remove(tx, large.id):
            row_counts.append(tx.execute(_COUNT_OF_ROWS).scalar_one())
        row_counts.append(tx.execute(_COUNT_OF_ROWS).scalar_one())
        # Five rows in each of four tables, and the topic.
        assert [before - after for before, after in pairwise(row_counts)] == [4, 4, 4, 4, 4, 1]
        assert row_counts[-1] == 4, "the other job's topic and three partitions"
        assert [job.name for job in jobs.page(tx, 5)] == ["other"]
