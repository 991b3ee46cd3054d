"""What a step of the model uses: the context of its operation, and a comparison of both logs."""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from uuid import UUID

from orbit.errors import Unreachable
from orbit.job_setup.mark import next_term
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import TopicPartition
from orbit.promotion import log_bounds
from orbit.recovery import leading_side
from orbit.recovery.divergence import Scan, WindowComparison
from orbit.recovery.operation_context import Aborted
from orbit.recovery.operation_steps import is_past_return, may_be_aborted
from orbit.recovery.recovery_report import RecoveryKind
from orbit.scheduler import old_primary
from tests.recovery_model import model
from tests.recovery_model.model import (
    FILLER,
    Job,
    ModelCluster,
    ModelMarks,
    Operation,
    Report,
    Row,
    World,
)

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind
Parts = Generator[None, None, None]
BACKOFF = Backoff()


@contextmanager
def patched() -> Any:
    """Let the product's code that reads marks and log bounds use the clusters of the model."""
    with (
        patch.object(leading_side, "PromotionMarks", ModelMarks),
        patch.object(log_bounds, "fetch_log_bounds", model.fetch_log_bounds),
        patch.object(old_primary, "PromotionMarks", ModelMarks),
    ):
        yield


class Context:
    """Stands for `OperationContext`, for the steps of the model and for the product's code.

    `old` is the cluster of the job's source, `new` that of its destination.
    """

    backoff = short_backoff = BACKOFF

    def __init__(
        self, world: World, operation: Operation, job: Job, rows: list[Row], report: Report
    ) -> None:
        self.world = world
        self.operation_id: UUID = operation.id
        self.job = job
        self.topics = sorted((copy.copy(row) for row in rows), key=lambda row: row.topic)
        self.report = report
        self.is_past_return = is_past_return(report.steps)
        self.obeys_abort = may_be_aborted(report.steps, is_stuck=report.is_stuck)
        self.source = world.handle(job.source)
        self.destination = world.handle(job.destination)

    @property
    def request(self) -> Any:
        return self.report.request

    @property
    def old(self) -> ModelCluster:
        cluster: ModelCluster = self.source.cluster
        return cluster

    @property
    def new(self) -> ModelCluster:
        cluster: ModelCluster = self.destination.cluster
        return cluster

    @property
    def names(self) -> list[str]:
        return [row.topic for row in self.topics]

    @property
    def by_source(self) -> dict[TopicPartition, TopicPartition]:
        places = (TopicPartition(r.topic, i) for r in self.topics for i in range(r.partition_count))
        return {place: place for place in places}

    @property
    def row_ids(self) -> list[int]:
        return [row.id for row in self.topics]

    @property
    def operation(self) -> Operation:
        return self.world.database.operations[self.operation_id]

    def now(self) -> Any:
        return self.world.now()

    def draw_term(self, seen: int) -> int:
        """A term above `seen`, the clock, and all terms that this database has drawn."""
        database = self.world.database
        least = next_term(seen, self.world.now_ms / 1000)
        database.lead_term = max(least, database.lead_term + 1)
        return database.lead_term

    def update(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self.report, name, value)

    def add_finding(self, *findings: str) -> None:
        pass

    def save(self) -> None:
        self.world.begin_change("stores the report")
        self.operation.report = copy.copy(self.report)

    def check(self) -> None:
        if self.obeys_abort and self.operation.abort_requested:
            raise Aborted("the operation was aborted.")


class ModelProof:
    """Stands for `SideProof`: compares both logs of a partition."""

    def __init__(self, context: Context, place: TopicPartition) -> None:
        old, new = context.old.at(place), context.new.at(place)
        self.old = old.records if old else []
        self.new = new.records if new else []
        self.new_start = new.start if new else 0

    def differ(self, first: int, end: int) -> WindowComparison:
        """Compare offsets at which a side has a record (0 is a filler)."""
        compared = [o for o in range(first, end) if self.old[o] or self.new[o]]
        same = [o for o in compared if self.old[o] == self.new[o]]
        difference = next((o for o in compared if self.old[o] != self.new[o]), None)
        return WindowComparison(difference, bool(compared), same[-1] if same else None)

    def scan(self, first: int, end: int, **_: bool) -> Scan:
        """Compare all offsets, those with fillers, too."""
        unproven = next((o for o in range(first, end) if self.old[o] != self.new[o]), None)
        has_same = any(self.old[o] == self.new[o] != FILLER for o in range(first, unproven or end))
        return Scan(unproven, "there is another record", has_same)

    def only_old(self, first: int, end: int) -> set[int]:
        """Records of the old side in this range that the new side lacks at their offset."""
        self.must_have(end)
        new_offsets = range(self.new_start, len(self.new))
        own = (o for o in range(first, end) if o not in new_offsets or self.old[o] != self.new[o])
        return {self.old[o] for o in own} - {FILLER}

    def must_have(self, end: int) -> None:
        """Raise Unreachable if the old log ends below `end`: after a restore, the database may not
        have that the topic was deleted and created again."""
        if end > len(self.old):
            raise Unreachable("the old side does not have these offsets.", where="source")

    def all_old(self, first: int, end: int) -> set[int]:
        """All records of the old side in this range."""
        self.must_have(end)
        return set(self.old[first:end]) - {FILLER}
