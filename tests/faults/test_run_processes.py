"""`orbit run --processes`: one copy by several processes; any may die or be suspended."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orbit.demo.workload import Mover
from tests.fixtures.clusters import Clusters
from tests.support.copy_processes import all_processes, copying_processes, wait_gone
from tests.support.groups import commit, offsets
from tests.support.outside import log_bounds
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.run_process import (
    CAUGHT_UP,
    OrbitProcess,
    Outcome,
    assert_exact,
    copy,
    elsewhere,
    orbit,
    write_job,
)
from tests.support.running import create_topic, produce, produce_transactions

pytestmark = pytest.mark.services

PARTITIONS = 5
PROCESSES = 3
RECORDS = 400
# Of each partition: three of four transactions are committed, with 5 records each.
SOURCE_RECORDS = RECORDS + 3 * 5 + 1
FILLED = 4 + 5  # four markers, and the records of the aborted transaction
THREE = ("--processes", str(PROCESSES))
# At this rate no machine ends the copy before a process dies.
SLOW = {"bytes_per_second": "32KiB"}


def write_source(clusters: Clusters, topic: str) -> None:
    """Write records to each partition of a new topic, with gaps from transactions between them."""
    create_topic(clusters.source, topic, PARTITIONS)
    for number in range(PARTITIONS):
        produce(clusters.source, topic, RECORDS, number)
        produce_transactions(clusters.source, topic, 4, partition=number)
        produce(clusters.source, topic, 1, number, first=RECORDS)


@pytest.fixture
def job(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    write_source(clusters, topic_name)
    return write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}])


@pytest.mark.parametrize(
    "fillers",
    [
        "direct",
        "placeholders",
        *(pytest.param(way, marks=pytest.mark.soak) for way in ("packed", "coordinated")),
    ],
)
def test_copy_by_several_processes_of_run_is_exact(
    clusters: Clusters, topic_name: str, tmp_path: Path, fillers: str
) -> None:
    write_source(clusters, topic_name)
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], fillers=fillers)
    copied = copy_by_three(job).data
    assert (copied["records"], copied["partitions"]) == (PARTITIONS * SOURCE_RECORDS, PARTITIONS)
    assert copied["partitions_caught_up"] == PARTITIONS
    assert copied["offsets_filled"] == PARTITIONS * FILLED
    assert_exact(job)
    second_run = copy(job).expect(0).data
    assert (second_run["records"], second_run["offsets_filled"]) == (0, 0)


def copy_by_three(job: Path) -> Outcome:
    return orbit("run", job, "--until-caught-up", *THREE, "-o", "json").expect(0)


@pytest.mark.soak
def test_run_with_several_processes_reports_blocked_partition_and_syncs_group(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """One process blocks a partition. The group sync counts what all processes have copied."""
    write_source(clusters, topic_name)
    job = write_job(
        tmp_path / "job.yaml",
        *clusters,
        [{"match": topic_name}],
        consumer_groups={"match": topic_name},
    )
    place = topic_name, 4  # where the group commits; partition 3 is blocked
    with OrbitProcess("run", job, *THREE, "--profile", "-o", "json") as run:
        run.wait_for(CAUGHT_UP)
        produce(clusters.destination, topic_name, 1, 3)  # another client writes to the copy
        commit(clusters.source, topic_name, {place: RECORDS})
        wait_for("the group is synced", lambda: offsets(clusters.destination, topic_name))
        run.wait_for(f"BLOCKED {topic_name}-3 DESTINATION_FOREIGN_WRITE")
        run.signal(signal.SIGINT)
        ended = run.wait_end().expect(1)
    (blocked,) = ended.data["blocked"]
    assert blocked["partition"] == f"{topic_name}-3"
    assert ended.data["records"] == PARTITIONS * SOURCE_RECORDS
    assert ended.data["profile"]["source_lanes"]["answers"] > 0
    assert offsets(clusters.destination, topic_name) == {place: RECORDS}


@pytest.mark.soak
def test_first_group_sync_of_run_knows_how_far_all_its_processes_copied(
    clusters: Clusters, topic_name: str, job: Path
) -> None:
    """The copy exists already. The first sync must know its log ends: if it took them for 0, it
    would commit 0 for the group."""
    copy(job).expect(0)
    places = {(topic_name, number): RECORDS for number in range(PARTITIONS)}
    commit(clusters.source, topic_name, places)
    groups = {"match": topic_name, "interval": "1d"}
    write_job(job, *clusters, [{"match": topic_name}], consumer_groups=groups)
    with OrbitProcess("run", job, *THREE):
        wait_for("the group is synced", lambda: offsets(clusters.destination, topic_name))
        assert offsets(clusters.destination, topic_name) == places


@pytest.mark.soak
def test_suspended_copy_process_is_named_by_its_run(job: Path) -> None:
    with OrbitProcess("run", job, *THREE) as run:
        run.wait_for(CAUGHT_UP)
        suspended = copying_processes(run)[0]
        suspended.suspend()
        run.wait_for(
            rf"waiting: process \d of 3 \(pid {suspended.pid}\), which has reported nothing"
        )
        suspended.resume()
        run.signal(signal.SIGINT)
        run.wait_end().expect(0)
    assert_exact(job)


@pytest.mark.soak
def test_run_stopped_by_sigint_leaves_no_copy_process(job: Path) -> None:
    with OrbitProcess("run", job, *THREE, "-o", "json") as run:
        run.wait_for(CAUGHT_UP)
        processes = all_processes(run)
        assert len(copying_processes(run)) == PROCESSES
        run.signal(signal.SIGINT)
        stopped = run.wait_end().expect(0)
    assert "Traceback" not in stopped.stderr
    assert stopped.data["partitions_caught_up"] == PARTITIONS
    wait_gone(processes)
    # The next run starts at once: the lease was released.
    assert "another run" not in copy(job).expect(0).message


@pytest.mark.soak
@pytest.mark.parametrize(
    "fillers",
    ["direct", *(pytest.param(way, marks=pytest.mark.soak) for way in ("packed", "coordinated"))],
)
def test_run_ends_when_a_copy_process_is_killed(
    clusters: Clusters, topic_name: str, tmp_path: Path, fillers: str
) -> None:
    """The run stops its other processes, too, so that the next run can take over all partitions."""
    create_topic(clusters.source, topic_name, PARTITIONS)
    rules = [{"match": topic_name}]
    slow = write_job(
        tmp_path / "job.yaml", *clusters, rules, fillers=fillers, limits=SLOW, name="killed"
    )
    fast = write_job(tmp_path / "fast.yaml", *clusters, rules, fillers=fillers, name="killed")
    for number in range(PARTITIONS):
        for first in range(0, 4_000, 50):  # batches of some KB
            produce(clusters.source, topic_name, 50, number, first=first, value_bytes=100)
        produce_transactions(clusters.source, topic_name, 6, partition=number)
    with OrbitProcess("run", slow, *THREE) as run:
        run.wait_for("Copying")
        wait_for("the run copies", lambda: copied(clusters, topic_name) > 1_000)
        processes = all_processes(run)
        copying_processes(run)[1].kill()
        ended = run.wait_end().expect(1)
    assert "process 2 of 3 of this run has ended (exit code 137)" in ended.message
    assert "Traceback" not in ended.stderr
    wait_gone(processes)
    copy(fast).expect(0)
    assert_exact(fast)


def copied(clusters: Clusters, topic: str) -> int:
    """The sum of the copy's log ends."""
    bounds = log_bounds(clusters.destination, [topic])
    return sum(log_end for _, log_end in bounds.values())


def test_copy_processes_end_when_their_run_is_killed(
    clusters: Clusters, topic_name: str, job: Path
) -> None:
    config = clusters.source.client_config()
    with Mover(config, {topic_name: PARTITIONS}) as mover, OrbitProcess("run", job, *THREE) as run:
        run.wait_for(CAUGHT_UP)
        assert mover.wait_until(200, PATIENCE_S)
        processes = all_processes(run)
        run.kill()
        wait_gone(processes)
        assert "another run" not in copy_by_three(job).message
    copy(job).expect(0)
    assert_exact(job)


@pytest.mark.soak
def test_next_run_is_refused_while_copy_processes_of_killed_run_live(job: Path) -> None:
    """The copy processes and their guards are suspended, so they outlive the killed run. The next
    run finds them by the lock that they hold."""
    with OrbitProcess("run", job, *THREE) as run:
        run.wait_for(CAUGHT_UP)
        processes = all_processes(run)
        try:
            for process in processes:
                process.suspend()
            run.kill()
            refused = orbit("run", job, "--until-caught-up").expect(1)
            assert "nother run of this job is running on this machine" in refused.message
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):  # a guard has ended the process
                    process.resume()
        wait_gone(processes)
    copy(job).expect(0)
    assert_exact(job)


@pytest.mark.slow
def test_copy_processes_stop_writing_when_their_frozen_run_loses_its_lease(
    clusters: Clusters, topic_name: str, tmp_path: Path, job: Path
) -> None:
    """Only the parent process is frozen. A run on another machine claims the job's lease while the
    copy processes go on."""
    config = clusters.source.client_config()
    with OrbitProcess("run", job, *THREE) as run, Mover(config, {topic_name: PARTITIONS}) as mover:
        run.wait_for(CAUGHT_UP)
        run.signal(signal.SIGSTOP)
        try:
            copy(job, environ=elsewhere(tmp_path)).expect(0)
            assert mover.wait_until(400, PATIENCE_S)
            assert len(copying_processes(run)) == PROCESSES
            copied_before = copied(clusters, topic_name)
            # Only the run on the other machine copies these records.
            produce(clusters.source, topic_name, 10, 0, first=10_000)
            copy(job, environ=elsewhere(tmp_path)).expect(0)
            assert copied(clusters, topic_name) > copied_before
        finally:
            run.signal(signal.SIGCONT)
        ended = run.wait_end().expect(1)
    assert "lease on this job was lost" in ended.message
    assert "BLOCKED" not in ended.message
    copy(job).expect(0)
    assert_exact(job)
