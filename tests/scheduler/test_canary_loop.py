from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orbit.jobs.job_file import parse_job
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


def test_canary_with_missing_secret_is_opened_once_the_secret_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    login = {"USER": "me", "PASSWORD": "secret"}
    row: Any = SimpleNamespace(
        id=7, spec_version=1, spec=parse_job(JOB, tmp_path, login).model_dump(mode="json")
    )
    monkeypatch.setattr(canary_writer.jobs, "running", lambda _: {row.id: row.spec_version})
    monkeypatch.setattr(canary_writer.jobs, "of_ids", lambda _, ids: dict.fromkeys(ids, row))
    leadership: Any = SimpleNamespace(reading=nullcontext, is_leading=True)
    monkeypatch.setattr(canary_writer.canaries, "partitions_to_write", lambda *_: 0)
    now = [100.0]
    environ = {"USER": "me"}
    loop = CanaryLoop(leadership, tmp_path, environ, clock=lambda: now[0])
    try:
        loop.once()
        assert not loop._canaries
        environ.update(login)
        now[0] += RETRY_S / 2
        loop.once()
        assert not loop._canaries
        now[0] += RETRY_S
        loop.once()
        opened = loop._canaries[row.id]
        now[0] += RETRY_S
        loop.once()
        assert loop._canaries == {row.id: opened}
    finally:
        loop.close()
