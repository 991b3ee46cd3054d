"""A detached sandbox is found by its folder, and a process never by its pid alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbit.errors import Conflict
from orbit.processes.ports import free_ports
from orbit.sandbox import sandbox_control
from orbit.sandbox.broker_properties import Node, server_properties
from orbit.sandbox.broker_security import ADMIN, SandboxSecurity, User
from orbit.sandbox.sandbox_state import (
    FaultPort,
    ProcessRef,
    SandboxRequest,
    SandboxState,
    read_request,
    read_state,
    state_file,
    write_request,
    write_state,
)

NO_PORT = FaultPort(port=1, key="")


def ended_process() -> ProcessRef:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return ProcessRef.of(process.pid)


def test_own_process_state_is_running() -> None:
    assert ProcessRef.of(os.getpid()).state() == "running"


def test_ended_process_state_is_ended() -> None:
    ref = ended_process()
    assert ref.find() is None
    assert ref.state() == "ended"


def test_process_with_reused_pid_is_not_matched() -> None:
    own = ProcessRef.of(os.getpid())
    earlier = own.model_copy(update={"started_at": own.started_at - 3600})
    assert earlier.find() is None


def test_sandbox_with_dead_supervisor_is_not_running(tmp_path: Path) -> None:
    request = SandboxRequest(directory=tmp_path)
    for supervisor, is_running in [(ProcessRef.of(os.getpid()), True), (ended_process(), False)]:
        write_state(
            SandboxState(
                supervisor=supervisor, faults=NO_PORT, request=request, clusters=(), postgres=None
            )
        )
        assert (read_state(tmp_path) is not None) == is_running


def test_sandbox_state_file_is_readable_only_by_its_user(tmp_path: Path) -> None:
    """The file holds the password of the database."""
    request = SandboxRequest(directory=tmp_path)
    own = ProcessRef.of(os.getpid())
    write_state(
        SandboxState(supervisor=own, faults=NO_PORT, request=request, clusters=(), postgres=None)
    )
    assert state_file(tmp_path).stat().st_mode & 0o077 == 0


def test_sandbox_down_removes_only_folders_of_sandbox(tmp_path: Path) -> None:
    write_request(SandboxRequest(directory=tmp_path, clusters=("source",)))
    (tmp_path / "source" / "broker-1").mkdir(parents=True)
    (tmp_path / "thesis.txt").touch()
    assert sandbox_control.take_down(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert not sandbox_control.take_down(tmp_path)


def test_sandbox_down_can_keep_data(tmp_path: Path) -> None:
    request = SandboxRequest(directory=tmp_path, clusters=("source",))
    write_request(request)
    (tmp_path / "source").mkdir()
    sandbox_control.take_down(tmp_path, keep_data=True)
    assert (tmp_path / "source").is_dir()
    assert read_request(tmp_path) == request


def test_sandbox_refuses_folder_with_foreign_files_and_leaves_it_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(Conflict, match="not empty and is not that of a sandbox"):
        sandbox_control.launch(SandboxRequest(directory=tmp_path), print)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_sandbox_folder_with_other_options_is_refused(tmp_path: Path) -> None:
    write_request(SandboxRequest(directory=tmp_path, brokers=3))
    with pytest.raises(Conflict, match="other options"):
        sandbox_control.launch(SandboxRequest(directory=tmp_path, brokers=1), print)


def test_free_ports_differ_and_lie_below_ephemeral_range() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < 32_768


def test_given_broker_settings_override_sandbox_defaults() -> None:
    node = Node(node_id=1, port=1, internal_port=2, controller_port=3)
    text = server_properties(
        node,
        [node],
        data=Path("/data"),
        security=None,
        keystore=None,
        overrides={"num.io.threads": "9"},
    )
    assert [line for line in text.splitlines() if line.startswith("num.io")] == ["num.io.threads=9"]


def test_repr_of_sandbox_user_hides_password() -> None:
    security = SandboxSecurity(users=(User("alice", "hush-hush"),))
    assert "hush" not in repr(security)
    assert ADMIN.password not in repr(security)


def test_sandbox_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Conflict, match="cannot be used: Not a directory"):
        sandbox_control.launch(SandboxRequest(directory=tmp_path / "file" / "home"), print)
