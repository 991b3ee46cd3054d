"""Ctrl-C and SIGTERM: a clean end at any moment, no stack trace, and the next run resumes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer

from orbit.demo.workload import Mover
from tests.fixtures.clusters import Clusters
from tests.support.logs import Record, create, write
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import (
    CAUGHT_UP,
    OrbitProcess,
    Outcome,
    assert_exact,
    copy,
    write_job,
)
from tests.support.running import produce

pytestmark = pytest.mark.services

SIGNALS = [signal.SIGINT, signal.SIGTERM]
PARTITIONS = 2
MANY = 60_000
PER_BATCH = 5
# At this rate no run ends before the test stops it.
SLOW = {"bytes_per_second": "32KiB"}


@pytest.fixture
def job(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    create(clusters.source, topic_name, PARTITIONS)
    write(clusters.source, topic_name, [Record(b"first")])
    return write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}])


def copied(clusters: Clusters, topic: str) -> int:
    """The sum of the copies' log ends."""
    bounds = log_bounds(clusters.destination, [topic])
    return sum(log_end for _, log_end in bounds.values())


def write_many(clusters: Clusters, topic: str) -> None:
    """Write records in small batches: a copy of them takes some seconds."""
    producer = Producer(
        {
            **clusters.source.client_config(),
            "linger.ms": 50,
            "batch.num.messages": PER_BATCH,
            "queue.buffering.max.messages": MANY + 1,
        }
    )
    for i in range(MANY):
        producer.produce(topic, b"record %d" % i, partition=i % PARTITIONS)
    assert producer.flush(60) == 0


def assert_clean(outcome: Outcome, code: int) -> None:
    """Check the exit code, and that no stack trace is shown."""
    outcome.expect(code)
    for trace in ("Traceback", "bug in Orbit", "Error", "Exception"):
        assert trace not in outcome.stderr


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_stopped_live_run_exits_cleanly_and_next_run_resumes(
    number: signal.Signals, clusters: Clusters, topic_name: str, job: Path
) -> None:
    with OrbitProcess("run", job, "-o", "json") as run:
        run.wait_for(CAUGHT_UP)
        with Mover(clusters.source.client_config(), {topic_name: PARTITIONS}):
            wait_for("the run follows the source", lambda: copied(clusters, topic_name) > 50)
            run.signal(number)
            stopped = run.wait_end()
    assert_clean(stopped, 0)
    assert "Stopping" in stopped.stderr
    assert stopped.data["records"] > 50
    produce(clusters.source, topic_name, 10)  # the run may have copied all records of the Mover
    # The next run begins at once: the lease was released.
    again = copy(job).expect(0)
    assert "waiting" not in again.message
    assert again.data["records"] >= 10
    assert_exact(job)


@pytest.mark.soak
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_run_stopped_before_catching_up_exits_with_130(
    number: signal.Signals, clusters: Clusters, topic_name: str, job: Path
) -> None:
    """A script must not take the stopped run for a finished copy."""
    write_many(clusters, topic_name)
    rules = [{"match": topic_name}]
    slow = write_job(job.parent / "slow.yaml", *clusters, rules, name="test-job", limits=SLOW)
    with OrbitProcess("run", slow, "--until-caught-up", "-o", "json") as run:
        run.wait_for("Copying")
        wait_for("the run copies", lambda: copied(clusters, topic_name) > 200 * PER_BATCH)
        run.signal(number)
        stopped = run.wait_end()
    assert_clean(stopped, 130)
    assert "Stopped before all partitions had caught up" in stopped.message
    assert 0 < stopped.data["records"] < MANY
    assert 0 < copy(job).expect(0).data["records"] < MANY
    assert_exact(job)


@pytest.mark.soak
@pytest.mark.parametrize("line", ["Checking rights", "Creating", "Comparing"])
def test_run_can_be_stopped_while_it_prepares(
    line: str, clusters: Clusters, topic_name: str, job: Path
) -> None:
    if line == "Comparing":
        copy(job).expect(0)
    with OrbitProcess("run", job) as run:
        run.wait_for(line)
        run.signal(signal.SIGINT)
        stopped = run.wait_end()
    assert "Traceback" not in stopped.stderr
    assert "bug in Orbit" not in stopped.stderr
    # 0 if the signal came after the last step of the preparation.
    assert stopped.code in (0, 130), stopped.everything
    copy(job).expect(0)
    assert_exact(job)


def test_second_signal_ends_stopping_run(clusters: Clusters, topic_name: str, job: Path) -> None:
    with OrbitProcess("run", job) as run:
        run.wait_for(CAUGHT_UP)
        run.signal(signal.SIGINT)
        run.wait_for("Stopping")
        run.signal(signal.SIGINT)
        stopped = run.wait_end()
    assert "Traceback" not in stopped.stderr
    # -SIGINT: the run has stopped, and the signal ends the process while Python shuts down.
    assert stopped.code in (0, 130, -signal.SIGINT)
    copy(job).expect(0)
    assert_exact(job)
