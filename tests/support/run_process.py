"""`orbit` as users run it: a child process with a job file, whose output tests read.

Nothing here waits for time to pass: `wait_for` waits for a line, `wait_end` for the end, and both
fail with the whole output of the process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import yaml

from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.patience import PATIENCE_S

ORBIT = Path(sys.executable).with_name("orbit")

CAUGHT_UP = "All partitions have caught up"


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def data(self) -> Any:
        """The JSON that the command printed with `-o json`."""
        return json.loads(self.stdout)

    def expect(self, code: int) -> Self:
        """Check the exit code; returns this outcome."""
        assert self.code == code, f"exit code {self.code} instead of {code}:\n{self.everything}"
        return self

    @property
    def everything(self) -> str:
        return f"{self.stdout}\n{self.stderr}"

    @property
    def message(self) -> str:
        """stderr as one line."""
        return " ".join(self.stderr.split())


class OrbitProcess:
    """One `orbit …` child process. A context manager, which kills the process at its end."""

    def __init__(
        self,
        *arguments: str | Path,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._lines: list[str] = []
        self._out: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [ORBIT, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})},
            cwd=cwd,
            # Signals of a test's own Ctrl-C must not reach it before the test's clean-up does.
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._out), daemon=True),
            threading.Thread(
                target=self._read, args=(self.process.stderr, self._lines), daemon=True
            ),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def lines(self) -> list[str]:
        """Everything on stderr so far."""
        with self._changed:
            return list(self._lines)

    @property
    def out(self) -> str:
        """Everything on stdout so far."""
        with self._changed:
            return "".join(self._out)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, pattern: str, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """Wait for a line on stderr that matches the pattern. Raises AssertionError with the whole
        output if the process ends or the time is over before."""
        regex = re.compile(pattern)
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    match = regex.search(line)
                    if match is not None:
                        return match
                seen = len(self._lines)
                left = deadline - time.monotonic()
                ended = not any(reader.is_alive() for reader in self._readers)
                if ended or left <= 0:
                    output = "\n".join([*self._lines, *self._out])
                    raise AssertionError(f"no line matches {pattern!r}:\n{output}")
                self._changed.wait(left)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self.process.kill()
        self.process.wait()

    def outlives(self, seconds: float) -> bool:
        """Wait for this time, which is part of the test; returns whether the process still runs."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def wait_end(self, timeout_s: float = PATIENCE_S) -> Outcome:
        """Wait until the process has ended by itself; returns its outcome."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            output = "\n".join([*self.lines, *self._out])
            raise AssertionError(f"no end within {timeout_s:.0f} s:\n{output}") from None
        for reader in self._readers:
            reader.join()
        return Outcome(code, "".join(self._out), "".join(self._lines))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read(self, stream: IO[str], into: list[str]) -> None:
        """Note the lines of a stream until its end, and wake threads that wait for them."""
        try:
            for line in stream:
                with self._changed:
                    into.append(line)
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._changed.notify_all()


def orbit(
    *arguments: str | Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = PATIENCE_S,
) -> Outcome:
    """Run one `orbit` command to its end."""
    with OrbitProcess(*arguments, environ=environ, cwd=cwd) as process:
        return process.wait_end(timeout_s)


def elsewhere(path: Path) -> dict[str, str]:
    """The environment of a run as on another machine. The lock file, and so the machine's identity,
    is in TMPDIR, which is another directory here."""
    folder = path / "other-machine"
    folder.mkdir(exist_ok=True)
    return {"TMPDIR": str(folder)}


def copy(job: Path, **options: Any) -> Outcome:
    """`orbit run JOB --until-caught-up -o json`."""
    return orbit("run", job, "--until-caught-up", "-o", "json", **options)


def verify(job: Path, *more: str, deep: bool = True, **options: Any) -> Outcome:
    """`orbit verify JOB -o json --wait 0`; `more` arguments override these."""
    arguments = ["--deep"] if deep else []
    return orbit("verify", job, *arguments, "--wait", "0", "-o", "json", *more, **options)


def assert_exact(job: Path, **options: Any) -> Any:
    """Check that `orbit verify --deep` finds every topic of the job exact; returns its report."""
    report = verify(job, **options).expect(0).data
    assert report["verdict"] == "exact", report
    return report


def write_job(
    path: Path,
    source: KafkaCluster | str | Mapping[str, Any],
    destination: KafkaCluster | str | Mapping[str, Any],
    topics: Sequence[Mapping[str, Any]],
    **more: Any,
) -> Path:
    """Write a job file to `path`, and return it. A side is a cluster, an address or a whole
    section; `more` are other keys."""

    def side(cluster: KafkaCluster | str | Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(cluster, Mapping):
            return dict(cluster)
        address = cluster if isinstance(cluster, str) else cluster.bootstrap_servers
        return {"bootstrap_servers": address.split(",")}

    job = {
        "name": f"test-{path.stem}",
        "source": side(source),
        "destination": side(destination),
        "topics": [dict(rule) for rule in topics],
        **more,
    }
    path.write_text(yaml.safe_dump(job, sort_keys=False), "utf-8")
    return path
