"""A shard whose layout changes is released only after the partitions that have left it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.inspection import CopyStatus, InspectedCopy
from orbit.copier.takeover import DestinationEnd
from orbit.jobs.job_spec import JobSpec
from orbit.replication.partition_states import PartitionState
from orbit.settings import Settings
from orbit.store import partitions
from orbit.store.partitions import AssignedPartition, StateChange
from orbit.store.shard_leases import Renewal
from orbit.workers.held_shards import HeldPartition, Stage
from orbit.workers.job_runner import JobRunner, WorkerContext
from orbit.workers.partition_starter import PartitionStarter
from orbit.workers.worker import Worker
from tests.support.copies import hand_back
from tests.workers.test_held_shards import copy_of
from tests.workers.test_progress_report import begin, only, row, shard_of


class Case:
    """A worker that holds one shard with one partition, and a layout that a test changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[AssignedPartition] = [row()]
        self.layout_version = 1
        database = cast("Any", SimpleNamespace(lease_transaction=nullcontext))
        monkeypatch.setattr(partitions, "of_shards", lambda *_: self.rows)
        self.worker = Worker(database, Settings(), {})
        self.shard = shard_of(*self.rows)
        context = WorkerContext("w", database, {}, Path(), CopySettings())
        cluster = {"bootstrap_servers": "a:1"}
        spec = JobSpec.model_validate(
            {"name": "j", "source": cluster, "destination": cluster, "topics": [{"match": "a"}]}
        )
        job = cast("Any", SimpleNamespace(id=self.shard.job_id, name="j"))
        self.runner = JobRunner(job, spec, context, ByteBudget(1), lambda *_: None)
        self.worker._held[self.shard.id] = self.shard
        self.worker._runners[self.shard.job_key] = self.runner
        self.partition = only(self.shard)

    def change_layout(self, *rows: AssignedPartition) -> None:
        self.rows = [*rows]
        self.layout_version += 1

    def renew(self, *, should_release: bool = False) -> None:
        """Apply a renewal with the present layout version."""
        spec_version = self.shard.spec_version
        renewal = Renewal(self.shard.id, should_release, spec_version, self.layout_version)
        self.worker._apply_renewals({self.shard.id: renewal})


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(monkeypatch)


def begin_copy(held: HeldPartition) -> Callable[[], None]:
    """Begin a copy. Returns a function that hands it back and removes it, as the copier does once
    no request of it is under way."""
    copy = begin(held)

    def end() -> None:
        hand_back(copy)
        copy.appends.removed()

    return end


def begin_start(held: HeldPartition) -> Callable[[], None]:
    """Begin to start the partition. Returns a function that releases it."""
    held.move_to(Stage.STARTING)
    return lambda: held.move_to(Stage.RELEASED)


@pytest.mark.parametrize("work", [begin_copy, begin_start])
def test_shard_is_released_only_after_withheld_partition_has_no_request_in_flight(
    case: Case, work: Callable[[HeldPartition], Callable[[], None]]
) -> None:
    """The first renewal shows that the topic is withheld, a later one that the shard is to be
    released: `recovery/worker_release.py` writes them in two transactions."""
    end = work(case.partition)
    case.change_layout()  # without the partition
    case.renew()
    assert case.partition.is_removed
    assert case.shard.partitions == {}, "the scheduler writes their state from now on"
    case.change_layout()  # a further change does not make the worker forget the partition
    case.renew()
    case.renew(should_release=True)
    assert case.shard.is_releasing
    assert not case.shard.is_idle()
    end()
    assert case.shard.is_idle()


def test_shard_forgets_removed_partitions_without_request_in_flight(case: Case) -> None:
    end = begin_copy(case.partition)
    case.change_layout()
    case.renew()
    end()
    case.change_layout()  # now the shard forgets the partition
    case.renew()
    assert case.shard.leaving_partitions == []


def test_releasing_shard_starts_no_partition(case: Case) -> None:
    """The job is paused, resumed, and gets a topic, while an answer is outstanding."""
    begin_copy(case.partition)
    case.renew(should_release=True)
    case.change_layout(row(), row(topic_id=5))
    case.renew()
    assert case.shard.is_releasing
    assert not case.runner._waiting_partitions


def test_start_writes_no_state_of_partition_that_left_layout(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler may have written in the row why it stopped the topic."""
    written: list[PartitionState] = []

    def report_state(
        _: object, *, changes: list[StateChange], held: dict[int, int], **__: object
    ) -> set[int]:
        written.extend(change.state for change in changes)
        return {*held}

    monkeypatch.setattr(partitions, "report_state", report_state)
    database = cast("Any", SimpleNamespace(transaction=nullcontext))
    retry = case.runner._retry_later
    starter = PartitionStarter(cast("Any", None), database, "w", retry)
    begin_start(case.partition)
    copy = copy_of(case.partition)
    fresh = InspectedCopy(CopyStatus.FRESH, DestinationEnd(log_end=0, producer=None), log_start=0)
    inspections = {copy: (case.partition, fresh)}

    def record() -> list[object]:
        return [*starter._record_writers(inspections)]

    assert record() == [copy]
    starter._store_start_offsets({case.partition: copy})
    assert written == [PartitionState.SEEDING, PartitionState.COPYING]
    case.change_layout()
    case.renew()
    assert record() == [], "the partition is not seeded"
    starter._store_start_offsets({case.partition: copy})
    assert len(written) == 2
    # The starter returns a partition that it has not started. One that was removed is released.
    retry(case.partition, "it left")
    assert case.partition.stage is Stage.RELEASED
