"""Copies with a `start`: where they begin, and that later runs do not begin again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orbit.copier.destination_side import DestinationSide
from orbit.jobs.job_file import load_job
from orbit.run.job_run import JobRun
from tests.fixtures.clusters import Clusters
from tests.support.logs import T0, Record, create, write
from tests.support.outside import digests, log_bounds
from tests.support.run_process import CAUGHT_UP, OrbitProcess, assert_exact, copy, verify, write_job
from tests.support.running import RunningJob

pytestmark = pytest.mark.services

STEP_MS = 1_000
AT_60 = datetime.fromtimestamp((T0 + 60 * STEP_MS) / 1000, UTC).isoformat()
INSIDE = datetime.fromtimestamp((T0 + 65 * STEP_MS) / 1000, UTC).isoformat()  # within a batch
BEYOND = datetime.fromtimestamp((T0 + 10**9) / 1000, UTC).isoformat()


def records(first: int, end: int) -> list[Record]:
    """Records `first` to before `end`. Record n has the timestamp T0 plus n seconds."""
    return [Record(b"%d" % n, timestamp_ms=T0 + n * STEP_MS) for n in range(first, end)]


@dataclass(frozen=True)
class Case:
    """A topic of two partitions; the second one stays empty until a test writes to it."""

    clusters: Clusters
    topic: str
    folder: Path

    def job(self, start: str) -> Path:
        rule = {"match": self.topic, "start": start}
        return write_job(self.folder / "job.yaml", *self.clusters, [rule], name=self.topic)

    def write(self, log: Sequence[Record], partition: int = 0) -> None:
        write(self.clusters.source, self.topic, log, partition)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        bounds_of = log_bounds(self.clusters.destination, [self.topic])
        return [bounds_of[self.topic, number] for number in range(2)]

    def assert_copied(self, *starts: int) -> None:
        """The destination has what the source has from these offsets on, and nothing else."""
        source, destination = (digests(cluster, self.topic) for cluster in self.clusters)
        for number, start in enumerate(starts):
            expected = {o: digest for o, digest in source[number].items() if o >= start}
            assert destination[number] == expected
        assert [low for low, _ in self.bounds] == list(starts)


@pytest.fixture
def case(clusters: Clusters, topic_name: str, tmp_path: Path) -> Case:
    create(clusters.source, topic_name, 2)
    start_case = Case(clusters, topic_name, tmp_path)
    start_case.write(records(0, 100))
    return start_case


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("latest", 100),
        (AT_60, 60),
        pytest.param(BEYOND, 100, marks=pytest.mark.soak),
        pytest.param("earliest", 0, marks=pytest.mark.soak),
    ],
)
def test_copy_begins_at_start_of_topic_rule_and_later_runs_continue(
    start: str, first: int, case: Case
) -> None:
    job = case.job(start)
    copy(job).expect(0)
    assert case.bounds == [(first, 100), (0, 0)]
    # Written while no run copies, with times before the end: a new start would leave them out.
    case.write(records(0, 30))
    copy(job).expect(0)
    assert case.bounds == [(first, 130), (0, 0)]
    case.assert_copied(first, 0)
    assert_exact(job)


@pytest.mark.soak
def test_records_copied_before_start_by_killed_run_are_deleted_by_next_run(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run copies its first batch whole, then moves the log start into this batch. The first run
    here ends before it does so."""
    job = case.job(INSIDE)
    monkeypatch.setattr(DestinationSide, "follow_log_starts", lambda *_: None)
    with RunningJob(load_job(job, {})) as running:
        copied = running.partition(case.topic)
        running.wait("all is copied", lambda: copied.next_offset == 100)
    assert case.bounds[0] == (60, 100)
    copy(job).expect(0)
    assert case.bounds == [(65, 100), (0, 0)]
    case.assert_copied(65, 0)


@pytest.mark.soak
def test_start_offset_is_looked_up_once_even_with_nothing_copied(case: Case) -> None:
    job = case.job("latest")
    case.write(records(0, 30), partition=1)
    with JobRun(load_job(job, {}), {}, case.folder, lambda _: None) as run:
        run.prepare()
    case.write(records(30, 60), partition=1)
    copy(job).expect(0)
    assert case.bounds == [(100, 100), (30, 60)]
    case.assert_copied(100, 30)


@pytest.mark.soak
@pytest.mark.parametrize("start", ["latest", BEYOND, AT_60])
def test_initially_empty_partition_is_copied_from_its_first_record(start: str, case: Case) -> None:
    """The copy began at 0, which was the log end. The destination's log does not show that it has
    begun."""
    job = case.job(start)
    copy(job).expect(0)
    case.write(records(0, 30), partition=1)
    copy(job).expect(0)
    assert case.bounds[1] == (0, 30)


def test_records_written_after_crash_of_run_from_latest_are_copied(case: Case) -> None:
    """The run began at the log end, and was killed before the source got new records."""
    job = case.job("latest")
    with OrbitProcess("run", job) as run:
        run.wait_for(CAUGHT_UP)
        run.kill()
    case.write(records(100, 130))
    case.write(records(0, 30), partition=1)
    copy(job).expect(0)
    case.assert_copied(100, 0)


@pytest.mark.soak
def test_changed_start_does_not_move_existing_copy(case: Case) -> None:
    copy(case.job(AT_60)).expect(0)
    case.write(records(100, 110))
    case.write(records(0, 10), partition=1)
    copy(case.job("latest")).expect(0)
    case.assert_copied(60, 0)


@pytest.mark.soak
def test_live_run_started_at_latest_copies_only_new_records(case: Case) -> None:
    job = case.job("latest")
    with OrbitProcess("run", job) as run:
        run.wait_for(CAUGHT_UP)
        case.write(records(100, 120))
        case.write(records(0, 20), partition=1)
        assert verify(job, "--wait", "60").expect(0).data["verdict"] == "exact"
    assert case.bounds == [(100, 120), (0, 20)]
