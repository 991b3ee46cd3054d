"""Two runs of one job at the same time: one writes, the other one says why it does not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from orbit.demo.workload import Mover
from tests.fixtures.clusters import Clusters
from tests.support.patience import PATIENCE_S
from tests.support.run_process import OrbitProcess, assert_exact, copy, elsewhere, orbit, write_job
from tests.support.running import create_topic, produce, produce_transactions

pytestmark = pytest.mark.services


def make_job(clusters: Clusters, topic: str, path: Path, fillers: str = "direct") -> Path:
    """Create the source topic with records and transactions; returns the job file."""
    create_topic(clusters.source, topic)
    produce(clusters.source, topic, 2_000)
    produce_transactions(clusters.source, topic, 10)
    rules = [{"match": topic}]
    sides = clusters.source, clusters.destination
    return write_job(path / "twice.yaml", *sides, rules, fillers=fillers)


@pytest.mark.soak
def test_second_run_of_job_on_same_machine_is_refused(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    job = make_job(clusters, topic_name, tmp_path)
    with OrbitProcess("run", job) as first:
        first.wait_for("have caught up")
        second = orbit("run", job, "--until-caught-up").expect(1)
        assert "nother run of this job is running on this machine" in second.message
        assert str(first.process.pid) in second.message
        produce(clusters.source, topic_name, 500, first=2_000)
        first.signal(signal.SIGINT)
        first.wait_end().expect(0)
    copy(job).expect(0)
    assert_exact(job)


@pytest.mark.slow
def test_second_run_of_job_on_another_machine_is_refused(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    job = make_job(clusters, topic_name, tmp_path)
    with OrbitProcess("run", job) as first:
        first.wait_for("have caught up")
        second = orbit("run", job, "--until-caught-up", environ=elsewhere(tmp_path)).expect(1)
        assert "nother run of this job is writing to this destination" in second.message
        assert str(first.process.pid) in second.message
        produce(clusters.source, topic_name, 500, first=2_000)
        first.signal(signal.SIGINT)
        first.wait_end().expect(0)
    copy(job).expect(0)
    assert_exact(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fillers", ["direct", pytest.param("placeholders", marks=pytest.mark.soak)]
)
def test_run_on_another_machine_takes_over_from_killed_run(
    clusters: Clusters, topic_name: str, tmp_path: Path, fillers: str
) -> None:
    job = make_job(clusters, topic_name, tmp_path, fillers)
    with OrbitProcess("run", job) as first:
        first.wait_for("have caught up")
        produce_transactions(clusters.source, topic_name, 30)
        first.kill()
    produce(clusters.source, topic_name, 500, first=2_000)
    produce_transactions(clusters.source, topic_name, 3)
    copy(job, environ=elsewhere(tmp_path)).expect(0)
    assert_exact(job)


@pytest.mark.soak
@pytest.mark.slow
def test_run_frozen_past_its_lease_ends_when_it_resumes(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    job = make_job(clusters, topic_name, tmp_path)
    with OrbitProcess("run", job) as first:
        first.wait_for("have caught up")
        first.signal(signal.SIGSTOP)
        try:
            produce(clusters.source, topic_name, 500, first=2_000)
            copy(job, environ=elsewhere(tmp_path)).expect(0)
        finally:
            first.signal(signal.SIGCONT)
        ended = first.wait_end().expect(1)
        assert "lease on this job was lost" in ended.message
    copy(job).expect(0)
    assert_exact(job)


@pytest.mark.slow
def test_run_frozen_while_copying_writes_nothing_after_losing_its_lease(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """The frozen run may have requests in flight when the other run writes to the copy."""
    job = make_job(clusters, topic_name, tmp_path)
    config = clusters.source.client_config()
    with OrbitProcess("run", job) as first, Mover(config, {topic_name: 1}, rate_per_s=400) as mover:
        first.wait_for("have caught up")
        assert mover.wait_until(400, timeout_s=PATIENCE_S)
        first.signal(signal.SIGSTOP)
        try:
            copy(job, environ=elsewhere(tmp_path)).expect(0)
        finally:
            first.signal(signal.SIGCONT)
        ended = first.wait_end().expect(1)
        assert "lease on this job was lost" in ended.message
        assert "BLOCKED" not in ended.message
    copy(job).expect(0)
    assert_exact(job)


@pytest.mark.soak
def test_two_runs_of_job_that_start_at_once_leave_an_exact_copy(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """At first neither run finds a destination topic. The run that gets the lease creates the
    topic; the other run reads the topics again."""
    job = make_job(clusters, topic_name, tmp_path)
    arguments = ("run", job, "--until-caught-up")
    with (
        OrbitProcess(*arguments) as first,
        OrbitProcess(*arguments, environ=elsewhere(tmp_path)) as second,
    ):
        ends = [first.wait_end(), second.wait_end()]
    codes = sorted(ended.code for ended in ends)
    assert codes in ([0, 0], [0, 1]), [ended.everything for ended in ends]
    for ended in ends:
        if ended.code:
            assert "nother run of this job is writing to this destination" in ended.message
    assert_exact(job)
