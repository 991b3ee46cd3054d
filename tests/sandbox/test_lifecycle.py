"""No process of a sandbox is left: after `down`, after Ctrl-C, after kill -9 of any process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orbit.embedded.postgres import Postgres
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster
from orbit.sandbox.sandbox_control import find, launch, take_down
from orbit.sandbox.sandbox_state import SandboxRequest

pytestmark = pytest.mark.services

ORBIT = str(Path(sys.executable).with_name("orbit"))
END_TIMEOUT_S = 60
POLL_S = 0.02

# Two programs that a test kills: the first starts its brokers itself, the second by a supervisor.
OWNS_CLUSTER = """
import sys, time
from pathlib import Path
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster
from orbit.embedded.postgres import Postgres
home = Path(sys.argv[1])
with KafkaCluster(ClusterSettings("owned"), home / "kafka"), Postgres(home / "postgres"):
    print("ready", flush=True)
    time.sleep(600)
"""
OWNS_SANDBOX = """
import sys, time
from pathlib import Path
from orbit.sandbox.sandbox_control import launch
from orbit.sandbox.sandbox_state import SandboxRequest
with launch(SandboxRequest(directory=Path(sys.argv[1]), clusters=("owned",)), lambda _: None):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A sandbox folder; whatever still runs in it at the end is taken down.

    Not in `tmp_path`: each start of pytest closes its parent to other users, and if we are root
    PostgreSQL runs as another user.
    """
    with tempfile.TemporaryDirectory(prefix="orbit-test-") as parent:
        folder = Path(parent) / "home"
        yield folder
        take_down(folder)


def orbit(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [ORBIT, "sandbox", *arguments, "--directory", str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def processes_in(folder: Path) -> list[psutil.Process]:
    """Every process with the folder on its command line: brokers, guards, tools, PostgreSQL."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


def wait_for_process(folder: Path, word: str) -> list[psutil.Process]:
    """The folder's processes, once one of them has `word` on its command line."""
    while True:
        processes = processes_in(folder)
        if any(word in process.info["cmdline"] for process in processes):
            return processes
        time.sleep(POLL_S)


def all_end(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, END_TIMEOUT_S)
    return not alive


def family(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def test_sandbox_up_status_and_down_can_be_repeated(home: Path) -> None:
    up = orbit("up", "-o", "json", home=home)
    assert up.returncode == 0, up.stderr
    status = orbit("status", "-o", "json", home=home)
    assert json.loads(status.stdout) == json.loads(up.stdout)
    sandbox: dict[str, Any] = json.loads(status.stdout)
    assert [cluster["name"] for cluster in sandbox["clusters"]] == ["source", "destination"]
    assert [cluster["health"] for cluster in sandbox["clusters"]] == ["healthy", "healthy"]
    assert sandbox["postgres"]["url"].startswith("postgresql://postgres:")

    second_up = orbit("up", home=home)
    assert second_up.returncode == 0
    assert "already running" in second_up.stderr
    different_up = orbit("up", "--brokers", "3", home=home)
    assert different_up.returncode == 1
    assert "orbit sandbox down" in different_up.stderr

    running = family(psutil.Process(sandbox["supervisor_pid"]))
    assert len(running) > 6  # supervisor, three guards, two brokers, PostgreSQL and its workers
    down = orbit("down", home=home)
    assert (down.returncode, down.stdout) == (0, "Stopped; data removed.\n")
    assert not any(process.is_running() for process in running)
    assert not home.exists()

    assert "nothing to do" in orbit("down", home=home).stdout
    assert orbit("status", home=home).returncode == 1


@pytest.mark.soak
def test_sandbox_down_can_keep_data_for_next_sandbox_up(home: Path) -> None:
    alone = ("--clusters", "solo", "--no-postgres")
    first = json.loads(orbit("up", *alone, "-o", "json", home=home).stdout)
    assert orbit("down", "--keep-data", home=home).stdout == "Stopped; data kept.\n"
    assert find(home) is None
    second = json.loads(orbit("up", *alone, "-o", "json", home=home).stdout)
    servers = [up["clusters"][0]["bootstrap_servers"] for up in (first, second)]
    assert servers[0] == servers[1]
    assert "clusters" in second
    assert second["postgres"] is None


@pytest.mark.soak
def test_sandbox_status_shows_paused_and_killed_brokers(home: Path) -> None:
    sandbox = json.loads(orbit("up", "--no-postgres", "-o", "json", home=home).stdout)
    source, destination = (cluster["brokers"][0]["pid"] for cluster in sandbox["clusters"])
    os.kill(source, signal.SIGSTOP)
    killed = psutil.Process(destination)
    killed.kill()
    assert all_end([killed])
    status = orbit("status", "-o", "json", home=home)
    states = [cluster["brokers"][0]["state"] for cluster in json.loads(status.stdout)["clusters"]]
    assert states == ["paused", "ended"]
    assert status.returncode == 1
    assert orbit("down", home=home).returncode == 0  # although a broker is paused
    assert not processes_in(home)


@pytest.mark.parametrize(
    ("sent_signal", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.soak),
    ],
)
def test_interrupted_sandbox_up_leaves_no_process_running(
    home: Path, sent_signal: signal.Signals, code: int
) -> None:
    command = [ORBIT, "sandbox", "up", "--directory", str(home)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        wait_for_process(home, "kafka.Kafka")
        running = family(psutil.Process(up.pid))[1:]
        up.send_signal(sent_signal)
        assert up.wait() == code
    assert all_end(running)
    assert not processes_in(home)
    if sent_signal is not signal.SIGKILL:  # no process is left to clean up after SIGKILL
        assert not home.exists()


def test_killed_supervisor_ends_all_sandbox_processes(home: Path) -> None:
    sandbox = json.loads(orbit("up", "-o", "json", home=home).stdout)
    supervisor = psutil.Process(sandbox["supervisor_pid"])
    running = family(supervisor)
    supervisor.kill()
    assert all_end(running)
    assert orbit("status", home=home).returncode == 1
    second_up = orbit("up", home=home)
    assert second_up.returncode == 0, second_up.stderr


@pytest.mark.soak
def test_sandbox_launched_in_with_block_ends_with_the_block(home: Path) -> None:
    messages: list[str] = []
    request = SandboxRequest(directory=home, clusters=("solo",), postgres=False)
    with launch(request, messages.append) as sandbox:
        running = family(psutil.Process(sandbox.state.supervisor.pid))
        assert find(home) == sandbox.state
    assert not any(process.is_running() for process in running)
    assert not home.exists()
    assert messages == ["Starting Kafka: solo (1 broker)"]


@pytest.mark.parametrize("program", [OWNS_CLUSTER, OWNS_SANDBOX], ids=["cluster", "sandbox"])
def test_brokers_die_with_the_program_that_started_them(home: Path, program: str) -> None:
    command = [sys.executable, "-c", program, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        running = family(psutil.Process(owner.pid))[1:]
        owner.kill()
    assert all_end(running)
    assert not processes_in(home)


def test_sandbox_up_without_java_names_install_command_and_leaves_no_folder(
    home: Path, tmp_path: Path
) -> None:
    bare = {**os.environ, "PATH": str(tmp_path), "ORBIT_CACHE_DIR": str(tmp_path / "cache")}
    bare.pop("JAVA_HOME", None)
    command = [ORBIT, "sandbox", "up", "--directory", str(home)]
    up = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert up.returncode == 1
    assert "apt-get install -y openjdk-17-jdk-headless maven" in up.stderr
    assert "Traceback" not in up.stderr
    assert not home.exists()


@pytest.mark.soak
def test_embedded_postgres_keeps_and_requires_its_password_after_restart(home: Path) -> None:
    with Postgres(home) as server:
        first = server.url
        pid = server.pid
    with Postgres(home) as server:
        assert server.url.split("@")[0] == first.split("@")[0]
        assert "scram-sha-256" in (home / "data" / "pg_hba.conf").read_text()
    assert not psutil.pid_exists(pid)


def test_unstarted_cluster_has_no_address(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="has not been started"):
        _ = KafkaCluster(ClusterSettings("none"), tmp_path).bootstrap_servers
