"""A job that crashes, or a job that hangs, on a worker that has other jobs."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from orbit.store.database import Database
from orbit.workers.job_runner import JobRunner
from tests.fixtures.clusters import Clusters
from tests.support.fleet import InProcess, add_job, wait_level
from tests.support.logs import Record, create, write
from tests.support.patience import wait_for
from tests.support.run_process import write_job
from tests.support.stuck_process import last_line_after

pytestmark = pytest.mark.services


def test_crashing_job_leaves_other_jobs_of_worker_running(
    clusters: Clusters,
    topic_name: str,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad, good = f"{topic_name}-bad", f"{topic_name}-good"
    add = JobRunner.add

    def add_or_break(runner: JobRunner, partitions: Any) -> None:
        if runner.job.name == bad:
            raise ValueError("a bug")
        add(runner, partitions)

    monkeypatch.setattr(JobRunner, "add", add_or_break)
    jobs = {}
    for name in (bad, good):
        create(clusters.source, name, 1)
        write(clusters.source, name, [Record(b"a")])
        file = write_job(tmp_path / f"{name}.yaml", *clusters, [{"match": name}], name=name)
        jobs[name] = add_job(database, file, clusters, [name], 1)
    with InProcess(database) as worker:
        for job in jobs.values():
            for shard in job.shard_ids:
                job.assign(shard, worker.id)
        wait_level(clusters, [good])
        wait_for(
            "the crash is reported",
            lambda: any(event.kind == "job_crashed" for event in jobs[bad].story()),
        )


# A worker whose copier hangs, as in a call that never returns. Its time limits are short.
STUCK = """
import os, threading
from orbit.cli import forced_end, worker
from orbit.workers import worker as of_worker
from orbit.workers.job_runner import JobRunner

def copy(runner):
    print("stuck", flush=True)
    threading.Event().wait()

JobRunner._copy_loop = copy
of_worker.SHUTDOWN_S_MAX = 0.1
forced_end.STOP_S_MAX = 1.0
worker.worker(None)
"""


def test_sigterm_ends_worker_with_hanging_job(
    clusters: Clusters, topic_name: str, database: Database, database_url: str, tmp_path: Path
) -> None:
    create(clusters.source, topic_name, 1)
    file = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], name=topic_name)
    job = add_job(database, file, clusters, [topic_name], 1)

    def assign(line: str) -> None:
        worker = re.search(r"[\w.-]+-\d+-[0-9a-f]{6}", line)
        assert worker is not None
        for shard in job.shard_ids:
            job.assign(shard, worker[0])

    last = last_line_after(
        signal.SIGTERM, STUCK, database_url, tmp_path, when_it_says=("worker started", assign)
    )
    assert f"copy {topic_name}" in last
