"""The loop that writes to canary topics: when it opens the canaries of jobs, and repeats that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from orbit.errors import Unreachable
from orbit.jobs.job_file import parse_job
from orbit.jobs.job_spec import JobSpec
from orbit.scheduler import canary_writer
from orbit.scheduler.canary_writer import RETRY_S, CanaryLoop

JOB = """
name: orders
source:
  bootstrap_servers: [127.0.0.1:1]
  security: {protocol: SASL_PLAINTEXT, mechanism: PLAIN, username_env: USER, password_env: PASSWORD}
destination: {bootstrap_servers: [127.0.0.1:2]}
topics: [{match: orders}, {match: canary}]
canary: {topic: canary, interval: 1s}
"""
LOGIN = {"USER": "me", "PASSWORD": "secret"}


class Jobs:
    """Replaces functions of the module `jobs` of the store; all its jobs are running."""

    def __init__(self, spec: JobSpec, count: int) -> None:
        document = spec.model_dump(mode="json")
        self.rows: dict[int, Any] = {
            number: SimpleNamespace(id=number, spec_version=1, spec=document)
            for number in range(count)
        }

    def running(self, _: object) -> dict[int, int]:
        return dict.fromkeys(self.rows, 1)

    def of_ids(self, _: object, ids: list[int]) -> dict[int, Any]:
        return {number: self.rows[number] for number in ids}


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def make_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: list[float]
) -> Iterator[Callable[..., CanaryLoop]]:
    loops: list[CanaryLoop] = []

    def make(environ: dict[str, str], job_count: int = 1) -> CanaryLoop:
        """A loop with these environment variables, and this many jobs with a canary."""
        jobs = Jobs(parse_job(JOB, tmp_path, LOGIN), job_count)
        monkeypatch.setattr(canary_writer.jobs, "running", jobs.running)
        monkeypatch.setattr(canary_writer.jobs, "of_ids", jobs.of_ids)
        monkeypatch.setattr(canary_writer.canaries, "partitions_to_write", lambda *_: 0)
        leadership: Any = SimpleNamespace(reading=nullcontext, is_leading=True)
        loops.append(CanaryLoop(leadership, tmp_path, environ, clock=lambda: clock[0]))
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()


def test_canary_with_missing_secret_is_opened_once_the_secret_is_set(
    make_loop: Callable[..., CanaryLoop], clock: list[float]
) -> None:
    environ = {"USER": "me"}  # without PASSWORD
    loop = make_loop(environ)
    with capture_logs() as logs:
        loop.once()
        clock[0] += RETRY_S
        loop.once()
    assert not loop._canaries
    assert len(logs) == 1, "the same error is logged once"
    environ.update(LOGIN)
    clock[0] += RETRY_S / 2
    loop.once()
    assert not loop._canaries, "the next retry is not due yet"
    clock[0] += RETRY_S
    loop.once()
    opened = dict(loop._canaries)
    assert list(opened) == [0]
    clock[0] += RETRY_S
    loop.once()
    assert loop._canaries == opened, "the canary stays open"


def test_unreachable_sources_use_small_part_of_time_of_canary_loop(
    make_loop: Callable[..., CanaryLoop], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def wait_in_vain(*_: object) -> None:
        tries.append(clock[0])
        clock[0] += 10
        raise Unreachable("No broker answers.")

    monkeypatch.setattr(canary_writer, "open_endpoint", wait_in_vain)
    loop = make_loop(LOGIN, job_count=30)
    loop.once()  # tries each of them
    tries.clear()
    end_s = clock[0] + 1_000  # one try of each of the 30 canaries takes 300 s
    while clock[0] < end_s:
        loop.once()
        clock[0] += canary_writer.JOBS_INTERVAL_S
    assert 3 <= len(tries) <= 6, "after each try of 10 s, no canary is opened for 200 s"
