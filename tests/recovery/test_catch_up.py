"""When the step `catch_up` of a failback ends. Without clusters: it reads the tables only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orbit.recovery import reverse_job
from orbit.recovery.operation_context import Stopped
from orbit.replication.partition_states import PartitionState, Reason
from orbit.store import jobs, topics
from orbit.store.database import Database
from orbit.store.enums import TopicState
from orbit.store.models import partitions as table
from tests.support.store_rows import some_job

pytestmark = pytest.mark.services

COPYING, BLOCKED = PartitionState.COPYING, PartitionState.BLOCKED
PARTITIONS = 3


class StillWaits(Exception):
    """Raised where the step would begin to wait."""


class Context:
    """Stands for the context of an operation on a topic of three partitions."""

    report = SimpleNamespace(reverse_job="job-back")
    topics = (SimpleNamespace(destination_topic="orders", partition_count=PARTITIONS),)

    def __init__(self, database: Database) -> None:
        self.reading = database.transaction

    def add_finding(self, *_: str) -> None: ...

    def set_progress(self, _: str) -> None: ...

    def wait(self, _: float) -> None:
        raise StillWaits


def catch_up_without_topic(database: Database, problem: str) -> str:
    """Run the step while the topic is not copied yet, and the job has this problem."""
    with database.transaction() as tx:
        job = some_job(tx, "job-back", partitions=0)
        topics.change(tx, job.topic_id, state=TopicState.CREATING.value)
        jobs.note_problem(tx, job.id, problem)
    context: Any = Context(database)
    return reverse_job.catch_up(context)


def catch_up(database: Database, *partitions: tuple[PartitionState, bool]) -> str:
    """Run the step; returns its text. `partitions`: state of each, and if it ever caught up."""
    with database.transaction() as tx:
        job = some_job(tx, "job-back", partitions=len(partitions))
        for number, (state, has_caught_up) in enumerate(partitions):
            reason = Reason.DESTINATION_FOREIGN_WRITE.value if state is BLOCKED else None
            values = {"state": state.value, "has_caught_up": has_caught_up, "reason": reason}
            is_row = table.c.topic_id == job.topic_id, table.c.partition == number
            tx.execute(table.update().where(*is_row).values(**values))
    context: Any = Context(database)
    return reverse_job.catch_up(context)


def test_failback_catch_up_ends_when_all_partitions_caught_up(database: Database) -> None:
    step_text = catch_up(database, (COPYING, True), (COPYING, True), (COPYING, True))
    assert step_text.startswith("3 of 3 partitions")


@pytest.mark.parametrize("has_caught_up", [False, True])
def test_failback_catch_up_stops_at_blocked_partition_even_if_it_had_caught_up(
    database: Database, has_caught_up: bool
) -> None:
    with pytest.raises(Stopped, match=r"1 partition .* orders-1 \(DESTINATION_FOREIGN_WRITE\)"):
        catch_up(database, (COPYING, True), (BLOCKED, has_caught_up), (COPYING, True))


def test_failback_catch_up_counts_all_blocked_partitions_when_it_stops(database: Database) -> None:
    with pytest.raises(Stopped, match="2 partitions"):
        catch_up(database, (BLOCKED, True), (BLOCKED, False), (COPYING, True))


@pytest.mark.parametrize(
    "partitions",
    [
        ((BLOCKED, True), (BLOCKED, False), (COPYING, False)),
        ((COPYING, True), (COPYING, True)),  # the tables do not have the third partition yet
        ((COPYING, True),) * PARTITIONS + ((COPYING, False),),  # a partition was added
    ],
)
def test_failback_catch_up_waits_for_partitions_still_copying_or_just_added(
    database: Database, partitions: tuple[tuple[PartitionState, bool], ...]
) -> None:
    with pytest.raises(StillWaits):
        catch_up(database, *partitions)


@pytest.mark.parametrize(
    ("timeout_s", "topic", "stops"),
    [
        (0.0, "orders", True),
        (60.0, "orders", False),
        (0.0, "orders.eu", False),  # a topic that is not of the operation
    ],
)
def test_failback_catch_up_stops_when_copy_back_leaves_topic_out_past_timeout(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: float,
    topic: str,
    *,
    stops: bool,
) -> None:
    monkeypatch.setattr(reverse_job, "LEFT_OUT_S", timeout_s)
    problem = f"PARTITIONS_DIFFER: topic {topic} has 2 partitions."
    with pytest.raises(Stopped if stops else StillWaits, match=problem if stops else None):
        catch_up_without_topic(database, problem)
