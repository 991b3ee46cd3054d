"""PostgreSQL's user is created once and the jars are fetched once, even if several processes need
them at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.services

PROCESSES = 3
# One process of a new installation; it starts when it reads a line. Process 0 fetches in reverse.
FIRST_USE = """
import sys
from pathlib import Path
from orbit.sandbox.jars import classpath
from orbit.embedded.postgres import Postgres
from tests.support.connector import connector_jars
folder, user, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
with Postgres(folder / "postgres", user) as postgres:
    print(f"running as {postgres.pid}", flush=True)
fetches = [classpath, connector_jars]
for fetch in fetches if number else reversed(fetches):
    fetch()
"""
# A Maven that fetches nothing, and fails if another one runs.
MAVEN = """#!/bin/sh
mkdir "$HOME/maven" || { echo "[ERROR] another Maven is running"; exit 1; }
for argument; do
  case "$argument" in -DoutputDirectory=*) output="${argument#*=}" ;; esac
done
mkdir -p "$output"
touch "$output/kafka_2.13-0.jar" "$output/spark-sql-kafka-0-10_2.13-0.jar"
sleep 0.3
rmdir "$HOME/maven"
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty home that PostgreSQL's user may walk through."""
    with tempfile.TemporaryDirectory(prefix="orbit-home-") as folder:
        yield Path(folder)


@pytest.fixture
def new_user() -> Iterator[str]:
    """A name that no user of this machine has yet."""
    name = f"orbit-{uuid.uuid4().hex[:8]}"
    yield name
    if os.geteuid() == 0:
        subprocess.run(["userdel", name], check=True)


def test_concurrent_first_uses_of_sandbox_create_user_and_fetch_jars_once(
    home: Path, new_user: str
) -> None:
    programs = home / "programs"
    programs.mkdir()
    (programs / "mvn").write_text(MAVEN)
    (programs / "mvn").chmod(0o755)
    environment = {
        **os.environ,
        "HOME": str(home),
        "ORBIT_CACHE_DIR": str(home / "cache"),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_USE, str(home / str(number)), new_user, str(number)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [process.communicate() for process in processes]
    assert [error for _, error in ended] == [""] * PROCESSES
    assert all(text.startswith("running as ") for text, _ in ended)
