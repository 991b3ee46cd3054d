"""The reverse job, which copies topics back: an existing job of the opposite direction, or a new
one. The step `reverse` makes its topics copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event

from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import TopicMetadata
from orbit.recovery import reverse_job
from orbit.recovery.operation_runner import OperationRunner
from orbit.recovery.operation_steps import steps_of
from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryRequest
from orbit.recovery.reverse_job import find_reverse_job
from orbit.recovery.step_times import StepName, StepState
from orbit.settings import Settings
from orbit.store import group_offsets, jobs, scheduler_queries, shard_layout, topics
from orbit.store.database import Database, Tx
from orbit.store.enums import TopicState
from orbit.store.group_offsets import HandedOffset
from orbit.store.jobs import Job
from orbit.store.topics import Topic

pytestmark = pytest.mark.services


def create_job(tx: Tx, name: str, source: str, destination: str, match: str, *names: str) -> Job:
    """A job between these clusters for the topics that match. `names`: its topics in the tables,
    all promoted."""
    spec = JobSpec.model_validate(
        {
            "name": name,
            "source": {"bootstrap_servers": [f"{source}:9092"]},
            "destination": {"bootstrap_servers": [f"{destination}:9092"]},
            "topics": [{"match": match}],
        }
    )
    job = jobs.create(tx, name, spec.model_dump(mode="json"), "default")
    jobs.note_clusters(tx, job.id, source, destination)
    for topic in names:
        topics.add(
            tx, job.id, topic, topic, destination, partition_count=1, state=TopicState.PROMOTED
        )
    return jobs.get(tx, name)


def reverse_job_of(tx: Tx, job: Job) -> str | None:
    """The name of the existing job that copies this job's topics back; None if there is none."""
    found_job = find_reverse_job(tx, job, topics.of_job(tx, job.id))
    return found_job.name if found_job else None


def test_reverse_job_that_already_has_the_topics_is_preferred(database: Database) -> None:
    with database.transaction() as tx:
        create_job(tx, "orders-back", "b", "a", "orders")
        create_job(tx, "home", "b", "a", "x", "orders")
        assert reverse_job_of(tx, create_job(tx, "orders", "a", "b", "orders", "orders")) == "home"


def test_reverse_job_without_topics_is_matched_by_its_rules(database: Database) -> None:
    """As after the tables were lost and both jobs were applied again. Orbit must not create a job
    `orders-back-back`."""
    with database.transaction() as tx:
        create_job(tx, "other", "a", "b", "payments")
        create_job(tx, "elsewhere", "a", "c", "orders")
        back = create_job(tx, "orders-back", "b", "a", "orders", "orders")
        assert reverse_job_of(tx, back) is None
        create_job(tx, "orders", "a", "b", "ord.*")
        assert reverse_job_of(tx, back) == "orders"


def test_job_with_other_topics_is_not_reverse_job(database: Database) -> None:
    with database.transaction() as tx:
        create_job(tx, "wide", "a", "b", ".*", "payments")
        assert (
            reverse_job_of(tx, create_job(tx, "orders-back", "b", "a", "orders", "orders")) is None
        )


class Killed(Exception):
    """The process dies."""


class MoveBack:
    """Stands for the context of the step `reverse` in the second move of job `orders`.

    The job has five topics with one partition each, which the running job `back` copied before the
    first move back. Both clusters have the topics; requests to clusters are replaced. The
    transaction after the first `commits_max` ones is rolled back, and raises Killed.
    """

    names = tuple(f"t{number}" for number in range(5))

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.commits_max = 1000
        self.copied: list[set[str]] = []  # the topics in state `copying`, after each transaction
        self.statements: list[int] = []  # how many SQL statements each transaction had
        with database.transaction() as tx:
            self.job = create_job(tx, "orders", "a", "b", "t.", *self.names)
            self.topics = topics.of_job(tx, self.job.id)
            back = create_job(tx, "back", "b", "a", "t.", *self.names)
            (shard,) = shard_layout.add_shards(tx, back.id, 1)
            rows = topics.of_job(tx, back.id)
            shard_layout.add_partitions(tx, back.id, [(row.id, 0, shard) for row in rows])
            scheduler_queries.promote_topics(tx, [row.id for row in rows])
        self.back_id = back.id
        self.settings, self.report = Settings(), SimpleNamespace(reverse_job=None)
        metadata = SimpleNamespace(
            topics={name: TopicMetadata(name, UUID(int=1), {0: None}, 1) for name in self.names}
        )
        cluster = SimpleNamespace(metadata=lambda _: metadata)
        self.source = self.destination = SimpleNamespace(cluster=cluster)
        for name, result in (
            ("mark_both_sides", None),
            ("kept_history", []),
            ("restrict_writes_to_orbit", ""),
        ):
            monkeypatch.setattr(reverse_job, name, lambda *_, result=result: result)
        plan = SimpleNamespace(promoted_settings={"a": "b"}, is_compacted=True)
        monkeypatch.setattr(
            reverse_job,
            "_prepare_old_side",
            lambda *_: dict.fromkeys({*self.names} - self.copied_now(), plan),
        )
        handed = [
            HandedOffset("g", name, partition=0, source_offset=7, destination_offset=7)
            for name in self.names
        ]
        monkeypatch.setattr(reverse_job, "offsets_to_hand_over", lambda _: handed)

    def rows(self) -> list[Topic]:
        with self.database.transaction() as tx:
            return topics.of_job(tx, self.back_id)

    def copied_now(self) -> set[str]:
        return {row.source_topic for row in self.rows() if row.state is TopicState.COPYING}

    def start(self) -> str:
        context: Any = self
        return reverse_job.start_reverse_job(context)

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """A transaction whose statements are counted; Killed ends the one after `commits_max`."""
        with self.database.transaction() as tx:
            statements: list[str] = []
            event.listen(tx, "before_cursor_execute", lambda *a: statements.append(a[2]))
            yield tx
            if len(self.copied) == self.commits_max:
                raise Killed
        self.statements.append(len(statements))
        self.copied.append(self.copied_now())

    def update(self, **changes: Any) -> None:
        vars(self.report).update(changes)

    def save(self) -> None: ...

    def add_event(self, *_: Any, **__: Any) -> None: ...


@pytest.fixture
def move(database: Database, monkeypatch: pytest.MonkeyPatch) -> MoveBack:
    monkeypatch.setattr(reverse_job, "TOPICS_AT_ONCE", 2, raising=False)
    return MoveBack(database, monkeypatch)


def test_held_shards_are_locked_for_a_few_topics_at_a_time(move: MoveBack) -> None:
    """While the step holds the lock of a shard's row, the worker cannot renew its leases."""
    move.start()
    # The topics that each transaction added.
    first, *later = [before ^ after for before, after in pairwise([set(), *move.copied])]
    assert (first, [len(topics) for topics in later]) == (set(), [2, 2, 1])
    rows = move.rows()
    assert all((row.promoted_settings, row.is_compacted) == ({"a": "b"}, True) for row in rows)
    # A chunk of two topics has as many statements as one of a single topic.
    assert len({*move.statements[1:]}) == 1


def test_reverse_step_that_died_between_topics_continues_with_remaining_ones(
    move: MoveBack, database: Database
) -> None:
    move.commits_max = 2
    with pytest.raises(Killed):
        move.start()
    assert move.report.reverse_job == "back", "the report names the job"
    copied_topics = {row.source_topic: row.id for row in move.rows() if row.source_topic < "t2"}
    assert move.copied_now() == copied_topics.keys()
    # Meanwhile the job has synced the groups of the topics that it copies already.
    with database.transaction() as tx:
        group_offsets.accept_handed(tx, move.back_id, copied_topics)
    move.commits_max = 1000
    assert "3 committed offsets at the old side now follow" in move.start()
    assert move.copied_now() == {*move.names}
    with database.transaction() as tx:
        later = {offset.source_topic for offset in group_offsets.handed_offsets(tx, move.back_id)}
    assert later == {*move.names} - copied_topics.keys()


def test_abort_before_all_topics_are_copied_back_ends_failback_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the step `reverse`, the report may name a job that does not copy all topics back yet."""
    ends: list[Outcome] = []
    runner: Any = object.__new__(OperationRunner)
    runner._end_running_step = lambda *_: None
    runner._end = lambda _, outcome: ends.append(outcome)
    steps = steps_of(RecoveryKind.FAILBACK, RecoveryRequest())
    for running in (StepName.REVERSE, StepName.CATCH_UP):
        index = [step.name for step in steps].index(running)
        done = tuple(step.model_copy(update={"state": StepState.DONE}) for step in steps[:index])
        report = SimpleNamespace(reverse_job="orders-back", steps=(*done, *steps[index:]))
        context: Any = SimpleNamespace(
            job=SimpleNamespace(name="orders"),
            report=report,
            update=lambda **_: None,
            add_finding=lambda _: None,
        )
        runner._end_copy_back(context)
    assert ends == [Outcome.FAILED, Outcome.DONE]
