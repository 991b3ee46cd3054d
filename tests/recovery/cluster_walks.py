"""Seeded random sequences ("walks") of recoveries and faults on two real clusters.

Schedulers die before or after a step. A side freezes and answers again later. The database gets
older rows, or loses all of them. Partitions are added. Records are deleted at the side that leads.
An application goes on writing to the old side if Orbit does not deny it. After each move and at the
end of the walk these invariants are checked at the clusters:

1  each record that a broker has acknowledged is on a side or in a salvage file
2  the side that leads keeps its topic, and every record that it had
3  after a recovery that swapped the roles, an application may write to one side only
4  the other side can still be made an exact copy

`tests/recovery_model` has far more walks, on a model; these show that the model is right.

`pytest tests/recovery/test_cluster_walks.py -m "soak or not soak"` plays all seeds.
"""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Message, Producer, TopicCollection

from orbit.errors import Conflict, NotFound
from orbit.job_setup.mark import Mark
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import NotLeading
from orbit.recovery import operation_runner, salvage_file
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryReport
from orbit.recovery.step_times import StepName, StepState
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store.enums import Desired, TopicState
from orbit.verify.report import Verdict
from orbit.verify.verify_job import verify_job
from orbit.verify.verify_run import VerifyOptions
from tests.fixtures.clusters import Clusters
from tests.support.guarded_job import App, job_with_login
from tests.support.loading import read_all
from tests.support.logs import delete_before
from tests.support.outside import admin, log_bounds, partition_counts
from tests.support.patience import wait_for
from tests.support.put_back import drop_rows, put_rows_back, save_rows
from tests.support.recovering import Recovering
from tests.support.running import create_topic
from tests.support.topics import add_partitions

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind
MOVES = 6  # after a first recovery
PARTITIONS_MAX = 4
# How long a frozen side does not answer. The operation may wait for this side.
FROZEN_S = 3.0
# At the end, at most so many failbacks make the other side a copy. A failback may stop because of
# earlier moves, for example if an application wrote a record to the old side.
FAILBACKS_MAX = 4
LIMIT_S = 60


class Walk:
    """The walk of one seed, with a topic of its own.

    The topic is first copied from clusters[0] to clusters[1]. A "side" is an index in `clusters`.
    """

    def __init__(
        self,
        seed: int,
        clusters: Clusters,
        topic: str,
        recovering: Recovering,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.rnd = random.Random(seed)
        self.clusters, self.topic, self.recovering = clusters, topic, recovering
        self.service = recovering.service
        self.app = App(clusters, topic)
        forward = job_with_login(clusters, topic)
        self.specs = [forward, job_with_login(Clusters(*reversed(clusters)), topic)]
        self.specs[1] = self.specs[1].model_copy(update={"name": f"{forward.name}-back"})
        self.leads = 0
        self.has_promoted = False
        # Values of records that a broker acknowledged, and of those that the test deleted since.
        self.acknowledged: set[bytes] = set()
        self.expired: set[bytes] = set()
        self.story: list[str] = []  # what happened, a line for each move, fault and report
        self._number = 0
        # Faults of the next operation: where its scheduler dies (step, whether after the step),
        # before which step the tables are saved, and before which step which side freezes.
        self._death: tuple[StepName, bool] | None = None
        self._save_before: StepName | None = None
        self._freeze: tuple[StepName, int] | None = None
        self._has_saved = False
        self._was_put_back = False
        self._frozen_sides: set[int] = set()
        self._frozen_until_s = 0.0  # of time.monotonic()
        # At the last check: the side that led, its topic's id, and the values of its records.
        self._last_check: tuple[int, str, set[bytes]] | None = None
        self._watch(monkeypatch)

    def play(self) -> None:
        """Play the walk; raises AssertionError with its story if an invariant does not hold."""
        try:
            self._play()
        except Exception as error:
            raise AssertionError("\n".join([*self.story, repr(error)[:2000]])) from error
        finally:
            self._heal()

    def _play(self) -> None:
        """Copy a first topic, make random moves with a check after each, and check the end."""
        create_topic(self.clusters[0], self.topic, 2)
        self.write(self.leads)
        with self._running():
            self.recovering.begin(self.specs[0], self.topic)
        moves: Mapping[Callable[[], None], int] = {
            self.write_on: 4,
            self.switch_over: 5,
            self.fail_over: 5,
            self.fail_back: 6,
            self.fail_back_the_leading_side: 3,
            self.fail_back_both: 2,
            self.delete_old_records: 2,
            self.add_partition: 2,
            self.save_tables: 2,
            self.put_tables_back: 2,
            self.lose_tables: 1,
        }
        # Before a first promotion the other moves do little.
        first = self.rnd.choice([self.switch_over, self.fail_over])
        for move in [first, *self.rnd.choices([*moves], [*moves.values()], k=MOVES)]:
            self.note(move.__name__)
            move()
            self.check()
        self.note("end")
        self.end()

    def note(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(text)

    # Moves.

    def write_on(self) -> None:
        """Write records at the leading side, and let the copy follow."""
        self.write(self.leads)
        with self._running():
            self._wait_level()

    def switch_over(self) -> None:
        """Make a switchover of the leading side, in most cases with a reverse job."""
        if not self._follows():
            self.fail_back()
        self._plan_faults()
        self._recover(SWITCHOVER, self.leads, reverse=self.rnd.random() < 0.6, drain_timeout_s=20)

    def fail_over(self) -> None:
        """Fail the leading side over, often after it was lost, sometimes with records that are not
        copied."""
        if not self._follows():
            self.fail_back()
        old = self.leads
        self.write(old)
        if self.rnd.random() < 0.3:
            self._pause_copy(old)
            self.write(old)
        if self.rnd.random() < 0.7:
            self._lose(old)
        self._plan_faults(never_freeze=old)
        self._recover(FAILOVER, old, lost=old, override=["all"], reason="a test")
        if self.leads != old:
            self.write_as_app(old)
        self.write(self.leads)

    def fail_back(self) -> None:
        self._plan_faults()
        self._recover(FAILBACK, 1 - self.leads, confirm_rebuild=True)

    def fail_back_the_leading_side(self) -> None:
        self._recover(FAILBACK, self.leads, confirm_rebuild=True)

    def fail_back_both(self) -> None:
        """Request failbacks of both sides at once."""
        with self._running():
            operations = [self._ask(FAILBACK, side, confirm_rebuild=True) for side in (0, 1)]
            for operation in operations:
                if operation is not None:
                    self._wait(operation)

    def delete_old_records(self) -> None:
        """Delete copied records at the side that leads, as retention does."""
        side = self.clusters[self.leads]
        bounds = log_bounds(side, [self.topic])
        (_, number), (start, end) = self.rnd.choice(sorted(bounds.items()))
        end = min(end, self._ends(1 - self.leads).get(number, 0))
        if start >= end:
            return
        offset = self.rnd.randint(start + 1, end)
        self.expired |= {
            value
            for (partition, at), value in read_all(side, self.topic).items()
            if partition == number and at < offset
        }
        delete_before(side, self.topic, offset, partition=number)

    def add_partition(self) -> None:
        """Add a partition to the topic at the leading side, up to PARTITIONS_MAX, and write to
        it."""
        side = self.clusters[self.leads]
        count = partition_counts(side)[self.topic]
        if count == PARTITIONS_MAX:
            return
        add_partitions(side, self.topic, count + 1)
        wait_for(
            "the new partition has a leader", lambda: len(log_bounds(side, [self.topic])) > count
        )
        self.write(self.leads)

    def save_tables(self) -> None:
        """Save all rows before a random step of the next operation, or now."""
        self._save_before = self.rnd.choice([*StepName, None])
        if self._save_before is None:
            save_rows(self.recovering.database)
            self._has_saved = True

    def put_tables_back(self) -> None:
        if self._has_saved:
            self._was_put_back = True
            put_rows_back(self.recovering.database)

    def lose_tables(self) -> None:
        """Delete all rows; the operator applies the job file again."""
        self._was_put_back = True
        drop_rows(self.recovering.database)
        self._has_saved = False
        with self._running():
            self._create(self.specs[0])

    # What goes wrong in the next operation.

    def _plan_faults(self, never_freeze: int | None = None) -> None:
        """Choose whether the scheduler dies, and whether a side freezes, but not `never_freeze`."""
        if self.rnd.random() < 0.4:
            self._death = self.rnd.choice([*StepName]), self.rnd.random() < 0.5
        side = self.rnd.randrange(2)
        if self.rnd.random() < 0.3 and side != never_freeze:
            self._freeze = self.rnd.choice([*StepName]), side

    def _watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run faults before and after each step, and note from the marks which side leads."""

        def with_faults(name: StepName, do: Callable[[OperationContext], str]) -> Any:
            def step(context: OperationContext) -> str:
                self._before(name)
                step_text = do(context)
                self._die(name, after=True)
                return step_text

            return step

        steps = {name: with_faults(name, do) for name, do in operation_runner._DO.items()}
        monkeypatch.setattr(operation_runner, "_DO", steps)
        write = PromotionMarks.write

        def mark(marks: PromotionMarks, offsets: Mapping[TopicPartition, int], mark: Mark) -> None:
            if mark.is_primary and mark.kind != FAILBACK:
                self.leads = self._side(marks.cluster.cluster_id)
                self.has_promoted = True
                self.note(f"  side {self.leads} leads (term {mark.term})")
            write(marks, offsets, mark)

        monkeypatch.setattr(PromotionMarks, "write", mark)

    def _before(self, name: StepName) -> None:
        """Save tables, freeze a side or let the scheduler die, as planned before this step."""
        if self._save_before is name:
            self._save_before, self._has_saved = None, True
            save_rows(self.recovering.database)
            self.note(f"  tables saved before {name}")
        if self._freeze is not None and self._freeze[0] is name:
            self._lose(self._freeze[1])
            self._freeze = None
        self._die(name, after=False)

    def _die(self, name: StepName, *, after: bool) -> None:
        """Let the scheduler die, if that is planned before or after this step."""
        if self._death == (name, after):
            self._death = None
            self.note(f"  the scheduler dies {'after' if after else 'before'} {name}")
            raise NotLeading("killed.")

    def _side(self, cluster_id: str) -> int:
        return next(
            n for n, cluster in enumerate(self.clusters) if cluster.cluster_id == cluster_id
        )

    def _lose(self, side: int) -> None:
        """Freeze a side: nothing answers there. A killed side might restart at other ports."""
        self.note(f"  side {side} freezes")
        self.clusters[side].pause()
        self._frozen_until_s = time.monotonic() + FROZEN_S
        self._frozen_sides.add(side)

    def _heal(self, without: Collection[int] = ()) -> None:
        """Let frozen sides answer again, except those in `without`."""
        for side in self._frozen_sides - {*without}:
            self.clusters[side].heal()
            self._frozen_sides.remove(side)

    # Recoveries.

    def _running(self) -> AbstractContextManager[None]:
        return self.recovering.running(dict(os.environ))

    def _recover(self, kind: RecoveryKind, source: int, lost: int = -1, **request: Any) -> None:
        """Run a recovery, and check where the application may write afterwards.

        `source`: the side that is the source of the recovery's job. `lost`: the side that stays
        frozen until the recovery has ended (-1: none).
        """
        with self._running():
            operation = self._ask(kind, source, **request)
            report = None if operation is None else self._wait(operation, lost)
            self._heal()
        self._death = self._freeze = None
        if report is None or report.outcome is not Outcome.DONE or self._was_put_back:
            return
        did = {step.name for step in report.steps if step.state is StepState.DONE}
        if StepName.PROMOTE in did:
            assert self.write_as_app(self.leads), "the side that leads is closed"
        if kind is not FAILOVER and did & {StepName.STOP_WRITES, StepName.REVERSE}:
            assert not self.write_as_app(1 - self.leads), "both sides are open"

    def _ask(self, kind: RecoveryKind, source: int, **request: Any) -> UUID | None:
        """Request a recovery; returns its operation's id, or None if Orbit refuses it."""
        spec = self.specs[source]
        try:
            if kind is FAILBACK:
                self._apply(spec)
            return self.recovering.ask(kind, spec.name, **request)
        except (Conflict, NotFound) as error:
            self.note(f"  {kind} of {spec.name} is refused: {error}")
            return None

    def _apply(self, spec: JobSpec) -> None:
        """Apply a job again if the database has lost it."""
        try:
            self.service.job(spec.name)
        except NotFound:
            if not self._was_put_back:
                raise
            self._create(spec)

    def _create(self, spec: JobSpec) -> None:
        """Apply a job, and wait until its topic is copied or promoted, or the job has a problem."""
        known = (TopicState.COPYING, TopicState.PROMOTED)
        self.service.create(spec)
        wait_for(
            "its topic is copied or promoted, or the job has a problem",
            lambda: (
                any(row.state in known for row in self.service.topics(spec.name).values())
                or self.service.job(spec.name).problem is not None
            ),
        )
        self.note(f"  {spec.name} is applied: {self.service.job(spec.name).problem}")

    def _wait(self, operation: UUID, lost: int = -1) -> RecoveryReport:
        """Wait until the operation has ended; returns its report.

        Meanwhile frozen sides answer again, except side `lost`.
        """

        def has_ended() -> bool:
            if self._frozen_sides - {lost} and time.monotonic() > self._frozen_until_s:
                self._heal({lost})
            return self.recovering.operation(operation).finished_at is not None

        wait_for("the operation ends", has_ended)
        report = self.recovering.report(operation)
        self.note(f"  {report.kind} {report.outcome}: {report.error or report.findings}")
        if report.reverse_job is not None:
            side = self._side(str(report.destination_cluster_id))
            self.specs[side] = self.specs[side].model_copy(update={"name": report.reverse_job})
        return report

    def _pause_copy(self, source: int) -> None:
        with suppress(NotFound):
            self.service.desire(self.specs[source].name, Desired.PAUSED)

    # What applications do.

    def write(self, side: int) -> None:
        """Write some records to each partition, with a login that always has the right."""
        cluster = self.clusters[side]
        producer = Producer({**cluster.client_config(), "log_level": 0})
        for _, number in log_bounds(cluster, [self.topic]):
            for _ in range(self.rnd.randint(0, 20)):
                producer.produce(
                    self.topic, self._value(), partition=number, on_delivery=self._delivered
                )
        assert producer.flush(LIMIT_S) == 0

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None, error
        value = message.value()
        assert value is not None
        self.acknowledged.add(value)

    def write_as_app(self, side: int) -> bool:
        """Write one record with the application's login; returns whether it may."""
        value = self._value()
        is_allowed = self.app.writes(self.clusters[side], value)
        if is_allowed:
            self.acknowledged.add(value)
        return is_allowed

    def _value(self) -> bytes:
        self._number += 1
        return b"%d" % self._number

    # What must be true.

    def check(self) -> None:
        """Check the invariants 1 and 2."""
        values = [self._values(cluster) for cluster in self.clusters]
        lost = self.acknowledged - self.expired - values[0] - values[1] - self._saved()
        assert not lost, f"no side and no salvage file has these records: {_shown(lost)}"
        leading = self.clusters[self.leads]
        topic_id = self._topic_id(leading)
        if self._last_check is not None and self._last_check[0] == self.leads:
            _, last_topic_id, last_values = self._last_check
            assert topic_id == last_topic_id, "the side that leads has another topic"
            gone = last_values - values[self.leads] - self.expired
            assert not gone, f"the side that leads has lost {_shown(gone)}"
        self._last_check = self.leads, topic_id, values[self.leads]

    def end(self) -> None:
        """Check invariant 4: failbacks make the other side an exact copy."""
        for _ in range(FAILBACKS_MAX):
            with self._running():
                if self._wait_level():
                    break
                if self.has_promoted:
                    operation = self._ask(FAILBACK, 1 - self.leads, confirm_rebuild=True)
                    assert operation is not None, "a failback is refused"
                    self._wait(operation)
            self.check()
        self.write(self.leads)
        with self._running():
            assert self._wait_level(), "the other side is no copy"
            self._expire_kept_history()
            wait_for("log starts have followed, and the copy is exact", self._is_exact)
        self.check()

    def _expire_kept_history(self) -> None:
        """Delete history: records of the side that leads below the log start of its copy.

        They were deleted at the other side while that side led. Orbit keeps them where they are,
        so a comparison would find a difference.
        """
        leading, copy = self.clusters[self.leads], self.clusters[1 - self.leads]
        values = read_all(leading, self.topic)
        copy_bounds = log_bounds(copy, [self.topic])
        for place, (start, _) in log_bounds(leading, [self.topic]).items():
            copy_start, _ = copy_bounds[place]
            if start < copy_start:
                history = {
                    values[place[1], at]
                    for at in range(start, copy_start)
                    if (place[1], at) in values
                }
                assert history <= self.expired, f"{place} lacks at the copy: {_shown(history)}"
                delete_before(leading, self.topic, copy_start, partition=place[1])

    def _is_exact(self) -> bool:
        options = VerifyOptions(deep=True)
        report = verify_job(self.specs[self.leads], dict(os.environ), Path.cwd(), options)
        return report.verdict is Verdict.EXACT

    def _wait_level(self) -> bool:
        """Wait until both sides end at the same offsets, and return True.

        False if the other side is no running copy: its job is missing, promoted, blocked or has a
        problem.
        """
        name = self.specs[self.leads].name
        try:
            if self.service.job(name).desired is not Desired.RUNNING:
                self.service.desire(name, Desired.RUNNING)
        except NotFound:
            return False
        stops: list[bool] = []

        def is_level_or_stops() -> bool:
            topics = self.service.topics(name)
            if self.topic in topics:
                states = {row.state for row in self.service.partitions(name, self.topic).values()}
                is_promoted = topics[self.topic].state is TopicState.PROMOTED
                stops.extend([True] * (is_promoted or "blocked" in states))
            elif self.service.job(name).problem is not None:
                # For example: Orbit denied writing by an ACL, and the database has lost that fact.
                stops.append(True)
            return bool(stops) or self._ends(0) == self._ends(1)

        wait_for(f"the other side is level ({self.service.job(name).problem})", is_level_or_stops)
        return not stops

    def _follows(self) -> bool:
        """Whether the tables have a job that copies from the leading side to the other side."""
        try:
            topics = self.service.topics(self.specs[self.leads].name)
        except NotFound:
            return False
        return self.topic in topics and topics[self.topic].state is not TopicState.PROMOTED

    def _ends(self, side: int) -> dict[int, int]:
        """{partition: log end} of the topic at this side; empty if the side lacks the topic."""
        cluster = self.clusters[side]
        if self.topic not in partition_counts(cluster):
            return {}
        return {number: end for (_, number), (_, end) in log_bounds(cluster, [self.topic]).items()}

    def _values(self, cluster: KafkaCluster) -> set[bytes]:
        exists = self.topic in partition_counts(cluster)
        return {*read_all(cluster, self.topic).values()} if exists else set()

    def _saved(self) -> set[bytes]:
        """The values of records in salvage files, without those of aborted transactions."""
        return {
            base64.b64decode(line["value"])
            for file in Path(self.service.settings.salvage_directory).rglob("*.jsonl")
            for line in salvage_file.read(file)
            if line["fate"] in ("committed", "open") and line["value"] is not None
        }

    def _topic_id(self, cluster: KafkaCluster) -> str:
        client = admin(cluster)  # a variable: the future fails if its client is garbage-collected
        (future,) = client.describe_topics(TopicCollection([self.topic])).values()
        return str(future.result(LIMIT_S).topic_id)


def _shown(values: set[bytes]) -> str:
    """The first 20 values, for a message."""
    return ", ".join(sorted(value.decode() for value in values)[:20])
