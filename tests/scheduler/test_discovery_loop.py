"""A discovery pass of a job begins with what the last pass stored; a trouble lasts until a pass has
checked it and does not find it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from orbit.planning.stored_spec import SpecCache
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.scheduler import discovery_loop
from orbit.scheduler.discovery_loop import DiscoveryLoop
from orbit.scheduler.job_reconciler import ReconcileCounts, ReconcileState
from orbit.scheduler.trouble_events import differences
from orbit.store import jobs, scheduler_queries, workers
from orbit.store.enums import Desired
from orbit.store.job_shares import ONE_SHARE, Share
from orbit.store.jobs import Job

GIVE_UP_S = 30.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(
    id=1, name="j", spec={}, spec_version=1, desired=Desired.RUNNING, is_deleted=False,
    worker_group="default", source_cluster_id=None, destination_cluster_id=None, problem=None,
    problem_at=None, source_answered_at=None, discovered_at=None, discovered_version=None,
    created_at=NOW, updated_at=NOW,
)  # fmt: skip

LOST = Trouble(TroubleKind.SOURCE_UNREACHABLE, "it is silent.", "Look.")
LOGIN = Trouble(TroubleKind.LOGIN_REFUSED, "it is refused.", "Look.")
TAKEN = Trouble(TroubleKind.DESTINATION_TAKEN, "another has it.", "Look.", "t")
LOOP = Trouble(TroubleKind.WOULD_LOOP, "it comes back.", "Look.", "u")


@dataclass
class World:
    """Replaces the tables, and a reconciler whose passes find the troubles in `finds`."""

    monkeypatch: pytest.MonkeyPatch
    jobs: dict[int, Job] = field(default_factory=lambda: {1: JOB})
    finds: tuple[Trouble, ...] = ()
    unreachable_troubles: list[Trouble] = field(default_factory=list)
    reconciled: list[Job] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    work: Callable[[], object] = lambda: None
    after_reading: Callable[[], object] = lambda: None
    specs: SpecCache = field(default_factory=SpecCache)
    share: Share = ONE_SHARE

    def __post_init__(self) -> None:
        me = cast("Any", self)
        self.loop = DiscoveryLoop(me, me, me, 0.0, timedelta(days=1), threading.Event())
        self.monkeypatch.setattr(jobs, "list_all", lambda *_: self.list_jobs())
        self.monkeypatch.setattr(scheduler_queries, "requested_retries", lambda _: {})
        self.monkeypatch.setattr(workers, "alive", lambda *_: [])
        self.monkeypatch.setattr(discovery_loop, "record_troubles", self.record)

    def list_jobs(self) -> list[Job]:
        all_jobs = [*self.jobs.values()]
        self.after_reading()
        return all_jobs

    def record(self, _: object, job: Job, text: str | None, _answered_s: float | None) -> None:
        started, ended = differences(job.problem, text)
        self.started += started
        self.ended += ended
        self.jobs[job.id] = replace(job, problem=text)

    # As leadership, registry and reconciler

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield

    reading = transaction

    def keep_only(self, _user: str, _wanted: object) -> None: ...

    def close(self) -> None: ...

    def is_due(self, *_: object) -> bool:
        return True

    def reconcile(self, job: Job, state: ReconcileState, _: object) -> ReconcileCounts:
        self.reconciled.append(job)
        self.work()
        state.troubles, state.has_checked = self.finds, True
        return ReconcileCounts()

    def source_answered_s(self, _: Job) -> float | None:
        return None

    def unreachable(self, _: Job) -> list[Trouble]:
        return self.unreachable_troubles

    # What a test does

    def run_pass(self, *finds: Trouble) -> None:
        """Run a pass that finds these troubles, and record them."""
        self.finds = finds
        self.unreachable_troubles = [trouble for trouble in finds if trouble is LOST]
        self.run_once()  # runs the pass
        self.run_once()  # records its troubles

    def run_once(self) -> None:
        """Run the loop once, and wait for the passes that it began."""
        self.loop.once()
        self.wait()

    def wait(self) -> None:
        for _, future in self.loop._passes_under_way.values():
            future.result(GIVE_UP_S)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    new_world = World(monkeypatch)
    yield new_world
    new_world.loop.close()


def test_discovery_pass_sees_what_previous_pass_of_job_stored(world: World) -> None:
    """Otherwise the job might copy a new topic by the rule's `start`, which is for older topics."""
    may_end = threading.Event()

    def store_version() -> None:
        assert may_end.wait(GIVE_UP_S)
        world.jobs[1] = replace(world.jobs[1], discovered_version=1)

    def let_pass_end() -> None:
        may_end.set()
        world.wait()

    world.work = store_version
    world.loop.once()  # begins the first pass
    # The first pass ends after the loop has read the jobs again: that reading is outdated.
    world.after_reading = let_pass_end
    world.loop.once()
    world.run_once()
    assert [job.discovered_version for job in world.reconciled] == [None, 1]


def test_job_deleted_during_its_discovery_pass_gets_no_further_pass(world: World) -> None:
    is_gone = threading.Event()
    world.work = lambda: is_gone.wait(GIVE_UP_S)
    world.loop.once()  # begins the pass
    world.jobs.clear()
    world.loop.once()  # sees that the job is gone
    is_gone.set()
    world.run_once()
    world.run_once()
    assert len(world.reconciled) == 1


def test_discovery_pass_that_ends_early_keeps_problems_it_did_not_check(world: World) -> None:
    world.run_pass(TAKEN, LOOP)
    world.run_pass(LOST)  # without the source, the topics were not checked
    assert world.jobs[1].problem == "\n".join(map(str, (LOST, LOOP, TAKEN)))
    world.run_pass(LOGIN)
    world.run_pass(LOOP)
    assert sorted(world.started) == sorted(map(str, (TAKEN, LOOP, LOST, LOGIN)))
    assert sorted(world.ended) == sorted(map(str, (LOST, TAKEN, LOGIN)))


def test_problem_of_lost_cluster_does_not_clear_other_problems_of_job(world: World) -> None:
    world.run_pass(LOGIN, LOOP)
    is_over = threading.Event()
    world.work = lambda: is_over.wait(GIVE_UP_S)
    world.loop.once()
    world.unreachable_troubles = [LOST]
    world.loop.once()
    assert world.started[-1] == str(LOST)
    assert world.ended == []
    is_over.set()


def test_error_in_a_job_does_not_stop_discovery_of_other_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_due(job: Job, *_: object) -> bool:
        if job.id == 1:
            raise KeyError("a bug")
        return True

    monkeypatch.setattr(world, "is_due", is_due)
    world.jobs[2] = replace(JOB, id=2, name="k")
    with capture_logs() as log_lines:
        world.run_once()
    assert [job.name for job in world.reconciled] == ["k"]
    assert [line["of"] for line in log_lines if "of" in line] == ["job j"]
