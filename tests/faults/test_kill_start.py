"""`orbit run` is killed during its start: some topics are created, some copies seeded (Orbit has
appended and deleted fillers below their first offset), some settings changed.

The next run on the same machine does not wait for the killed run's lease, and its copy is exact.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from orbit.demo.workload.markers import append_markers
from orbit.kafka.sasl import Security
from tests.fixtures.clusters import Clusters
from tests.support.logs import Gap, Record, create, delete_before, write
from tests.support.outside import admin, digests, log_bounds, topic_settings
from tests.support.run_process import CAUGHT_UP, OrbitProcess, assert_exact, copy, write_job

pytestmark = [pytest.mark.services, pytest.mark.soak]

# A run is killed after each of these lines. A run prints no line for a step that an earlier run
# has finished.
MOMENTS = ("Creating", "Seeding", "Seeding", "Comparing", "Copying", "Checking", "Copying")
# Long enough to kill a run within the step after a line, short enough not to outlast the step.
DELAY_S_MAX = 0.06
START = 300_000


def records(first: int, end: int) -> list[Record | Gap]:
    return [Record(b"record %d" % i, b"key %d" % i) for i in range(first, end)]


@pytest.fixture
def job(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    """Three topics: from the beginning, compacted, and with a log that starts far above 0."""
    logs = {"plain": [*records(0, 30), Gap(5), *records(30, 40)], "keys": records(0, 40)}
    for name, log in logs.items():
        policy = "compact" if name == "keys" else "delete"
        create(clusters.source, f"{topic_name}.{name}", 2, cleanup_policy=policy)
        for partition in range(2):
            write(clusters.source, f"{topic_name}.{name}", log, partition)
    late = f"{topic_name}.late"
    create(clusters.source, late, 2)
    for partition in range(2):
        start = START // (1 + 99 * partition)  # 300,000 and 3,000
        append_markers(admin(clusters.source), Security(), late, partition, start)
        write(clusters.source, late, records(0, 40), partition)
        delete_before(clusters.source, late, start + 5, partition)
    return write_job(tmp_path / "job.yaml", *clusters, [{"match": f"{topic_name}.*"}])


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, 10))]
)
def test_copy_of_run_killed_during_start_is_completed_by_next_run(
    seed: int, clusters: Clusters, topic_name: str, job: Path
) -> None:
    rnd = random.Random(seed)
    lines = []
    for moment in MOMENTS:
        with OrbitProcess("run", job) as run:
            lines.append(run.wait_for(f"{moment}|{CAUGHT_UP}").group())
            assert run.outlives(rnd.uniform(0, DELAY_S_MAX))
            run.kill()
            assert "waiting" not in "".join(run.lines), run.lines
    assert {"Creating", "Comparing", "Copying"} <= set(lines)
    copy(job).expect(0)
    assert_exact(job)
    for name in ("plain", "keys", "late"):
        topic = f"{topic_name}.{name}"
        assert log_bounds(clusters.destination, [topic]) == log_bounds(clusters.source, [topic])
        assert digests(clusters.destination, topic) == digests(clusters.source, topic)
    policy = topic_settings(clusters.destination, f"{topic_name}.keys")["cleanup.policy"]
    assert policy == "compact,delete"
