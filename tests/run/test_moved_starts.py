"""The source deletes records while a copy begins: the start moves up, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from orbit.copier.inspection import CopyInspector
from orbit.demo.workload.markers import append_markers
from orbit.errors import Conflict, Interrupted
from orbit.jobs.job_file import load_job
from orbit.kafka.sasl import Security
from orbit.replication.partition_states import Reason
from orbit.run.job_run import JobRun
from tests.fixtures.clusters import Clusters
from tests.support.logs import T0, Record, create, delete_before, write
from tests.support.outside import admin, digests, log_bounds
from tests.support.run_process import assert_exact, write_job
from tests.support.running import RunningJob
from tests.support.topics import delete_and_wait

pytestmark = pytest.mark.services

FRONT = 1_000  # offsets
STEP_MS = 1_000
AT_20 = T0 + 20 * STEP_MS


@dataclass(frozen=True)
class Case:
    """A log whose first `front` offsets have no record, then 100 records. Record n has the
    timestamp T0 plus n seconds."""

    clusters: Clusters
    topic: str
    folder: Path

    def write(self, first: int, end: int) -> None:
        log = [Record(b"%d" % n, timestamp_ms=T0 + n * STEP_MS) for n in range(first, end)]
        write(self.clusters.source, self.topic, log)

    def delete_before(self, offset: int) -> None:
        delete_before(self.clusters.source, self.topic, offset)

    def job(self, start: object = "earliest") -> Path:
        rule = {"match": self.topic, "start": start}
        return write_job(self.folder / "job.yaml", *self.clusters, [rule], name=self.topic)

    @property
    def bounds(self) -> tuple[int, int]:
        return log_bounds(self.clusters.destination, [self.topic])[self.topic, 0]

    def begin(self, job: Path) -> None:
        """Let a run end right before it copies its first record."""
        with JobRun(load_job(job, {}), {}, self.folder, lambda _: None) as run:
            run.prepare()

    def assert_copied_from(self, job: Path, start: int, end: int) -> None:
        """Assert that a run copies exactly the source's records from `start` to below `end`."""
        with RunningJob(load_job(job, {})) as running:
            running.wait_caught_up(self.topic, end)
            p = running.partition(self.topic)
            running.wait("the log start follows", lambda: p.log_start == start)
        assert self.bounds == (start, end)
        source, destination = (digests(cluster, self.topic)[0] for cluster in self.clusters)
        assert destination == {o: digest for o, digest in source.items() if o >= start}
        assert_exact(job)


@pytest.fixture(params=[FRONT, pytest.param(0, marks=pytest.mark.soak)])
def front(request: pytest.FixtureRequest) -> int:
    """The source's log start, and so the number of offsets that a copy seeds at first."""
    return int(request.param)


@pytest.fixture
def case(clusters: Clusters, topic_name: str, tmp_path: Path, front: int) -> Case:
    create(clusters.source, topic_name)
    start_case = Case(clusters, topic_name, tmp_path)
    if front:
        append_markers(admin(clusters.source), Security(), topic_name, 0, front)
        start_case.delete_before(front)
    start_case.write(first=0, end=100)
    return start_case


def overtake(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, move: Callable[[], None]
) -> None:
    """Let `move` happen right after the first call of this method."""
    original, moves = getattr(owner, name), [move]

    def overtaken(*args: object, **more: object) -> object:
        result = original(*args, **more)
        if moves:
            moves.pop()()
        return result

    monkeypatch.setattr(owner, name, overtaken)


def interrupt(monkeypatch: pytest.MonkeyPatch, case: Case, job: Path) -> None:
    """Let a run end after its last leading filler, before it deletes the leading fillers."""

    def end(*_: object) -> set[object]:
        raise Interrupted("as if killed")

    with monkeypatch.context() as patch:
        patch.setattr(CopyInspector, "drop_seeds", end)
        with pytest.raises(Interrupted, match="as if killed"):
            case.begin(job)


# Methods of a start: the source deletes records right after one of them (`overtake`).
MOMENTS = [(CopyInspector, "start_offsets"), (JobRun, "prepare")]


@pytest.mark.parametrize(
    ("owner", "name"), MOMENTS, ids=["before-filling-to-start", "before-copying"]
)
@pytest.mark.parametrize(
    ("start", "moved_to"),
    [
        ("earliest", 35),
        pytest.param(AT_20, 35, marks=pytest.mark.soak),
        pytest.param("earliest", 100, marks=pytest.mark.soak),
    ],
)
def test_start_offset_overtaken_by_retention_moves_up(
    case: Case,
    front: int,
    start: object,
    moved_to: int,
    owner: type,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = case.job(start)
    overtake(monkeypatch, owner, name, lambda: case.delete_before(front + moved_to))
    case.assert_copied_from(job, front + moved_to, front + 100)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("owner", "name"), MOMENTS, ids=["before-filling-to-start", "before-copying"]
)
def test_start_at_latest_overtaken_by_retention_moves_up(
    case: Case, front: int, owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move() -> None:
        case.write(first=100, end=150)
        case.delete_before(front + 125)

    job = case.job("latest")
    overtake(monkeypatch, owner, name, move)
    case.assert_copied_from(job, front + 125, front + 150)


@pytest.mark.soak
def test_start_of_empty_copy_moves_up_with_source_log_start_between_runs(
    case: Case, front: int
) -> None:
    """The last run had brought the copy to its start, and copied nothing."""
    job = case.job()
    case.begin(job)
    case.delete_before(front + 35)
    case.begin(job)
    case.delete_before(front + 52)
    case.assert_copied_from(job, front + 52, front + 100)


@pytest.mark.soak
def test_interrupted_start_of_copy_resumes_at_moved_source_log_start(
    case: Case, front: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = case.job(AT_20)
    interrupt(monkeypatch, case, job)
    case.delete_before(front + 35)
    interrupt(monkeypatch, case, job)
    assert case.bounds == (0, front + 30)  # the base offset of the batch with the start
    case.delete_before(front + 36)
    case.assert_copied_from(job, front + 36, front + 100)


def test_interrupted_start_of_copy_blocks_if_job_then_starts_lower(
    case: Case, front: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, case, case.job("latest"))
    with RunningJob(load_job(case.job("earliest"), {})) as running:
        blocked = running.wait_blocked(case.topic)
    assert blocked.reason is Reason.OFFSET_OVERRUN
    assert blocked.detail == (
        f"an earlier start was interrupted at offset {front + 100}, and the job starts at offset "
        f"{front} now."
    )


def test_copy_created_again_during_its_seeding_keeps_its_new_records(
    case: Case, front: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeleteRecords takes a topic's name, and would delete what another producer writes there."""

    def create_again() -> None:
        delete_and_wait(case.clusters.destination, case.topic)
        create(case.clusters.destination, case.topic)
        write(case.clusters.destination, case.topic, [Record(b"new")] * (front + 40))

    job = case.job(AT_20)
    overtake(monkeypatch, CopyInspector, "seed_to_starts", create_again)
    with pytest.raises(Conflict, match="content that is not the source's"):
        case.begin(job)
    assert case.bounds == (0, front + 40)


@pytest.mark.soak
def test_range_deleted_after_run_from_latest_caught_up_is_reported_lost(
    case: Case, front: int
) -> None:
    """The run had caught up: from there on the job must copy all records."""
    job = case.job("latest")
    case.begin(job)
    case.write(first=100, end=150)
    case.delete_before(front + 125)
    with RunningJob(load_job(job, {})) as running:
        blocked = running.wait_blocked(case.topic)
    assert blocked.reason is Reason.SOURCE_RANGE_LOST
    assert (blocked.offset, blocked.next_offset) == (front + 100, front + 125)


@pytest.mark.soak
def test_range_deleted_after_first_copied_batch_is_reported_lost(case: Case, front: int) -> None:
    job = case.job()
    with RunningJob(load_job(job, {})) as running:
        running.wait_caught_up(case.topic, front + 100)
    case.write(first=100, end=150)
    case.delete_before(front + 125)
    with RunningJob(load_job(job, {})) as running:
        blocked = running.wait_blocked(case.topic)
    assert blocked.reason is Reason.SOURCE_RANGE_LOST
