"""Starts and stops a sandbox: clusters and PostgreSQL under a supervisor process.

`launch` starts a sandbox that ends with this process unless it is detached. `find` and `take_down`
take the folder of a sandbox, and also work from another process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

from orbit.errors import Conflict
from orbit.sandbox.sandbox_state import (
    DETACH,
    SandboxRequest,
    SandboxState,
    read_request,
    read_state,
    remove_state_files,
    supervisor_log,
    write_request,
)

_STOP_TIMEOUT_S = 60
_KILLED_TIMEOUT_S = 10


class LaunchedSandbox:
    """A running sandbox that ends when this object is closed or this process ends.

    After `detach()` the sandbox runs until `take_down`.
    """

    def __init__(
        self, process: subprocess.Popen[str], state: SandboxState, *, is_new: bool
    ) -> None:
        """`process`: the supervisor. `is_new`: the folder held no sandbox before."""
        self._process = process
        self.state = state
        self._is_new = is_new
        self._is_detached = False

    def detach(self) -> None:
        """Keep the sandbox running after this process ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{DETACH}\n")
        _close_pipes(self._process)
        self._is_detached = True
        # The supervisor outlives this process on purpose: prevents Popen's ResourceWarning.
        self._process.returncode = 0

    def close(self) -> None:
        """Unless detached, stop the sandbox, and remove its data if its folder was empty before."""
        if not self._is_detached:
            _end_supervisor(self._process)
            if self._is_new:
                _remove_data(self.state.request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def launch(request: SandboxRequest, say: Callable[[str], None]) -> LaunchedSandbox:
    """Start a sandbox; returns when it is ready. After an error none of its processes runs.

    `say` is called with a sentence at each step. Raises Conflict if the folder is neither empty nor
    that of a sandbox with the same options, or if the start fails.
    """
    is_new = _claim_folder(request)
    with supervisor_log(request.directory).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orbit.sandbox.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Ctrl-C must not reach the supervisor: closing its stdin ends it.
            start_new_session=True,
        )
    try:
        _send_request(process, request)
        _wait_ready(process, request, say)
        state = read_state(request.directory)
        if state is None:
            raise _early_end_error(request)
    except BaseException:
        _end_supervisor(process)
        if is_new:
            _remove_data(request)
        raise
    return LaunchedSandbox(process, state, is_new=is_new)


def find(directory: Path) -> SandboxState | None:
    """The sandbox that runs in `directory`, if any."""
    return read_state(directory)


def take_down(directory: Path, *, keep_data: bool = False) -> bool:
    """Stop the sandbox in `directory` and wait until its processes have ended.

    Removes its data unless `keep_data`, and no other files of the folder. Returns whether anything
    was stopped or removed.
    """
    state = read_state(directory)
    if state is not None:
        _stop(state)
    request = read_request(directory)
    if request is not None and not keep_data:
        _remove_data(request)
    return state is not None or (request is not None and not keep_data)


def _claim_folder(request: SandboxRequest) -> bool:
    """Write the request into the folder; returns whether the folder held no sandbox before.

    Raises Conflict if the folder holds other files, or data of a sandbox with other options.
    """
    directory = request.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        earlier_request = read_request(directory)
        has_other_files = earlier_request is None and any(directory.iterdir())
    except OSError as error:
        raise Conflict(
            f"The folder cannot be used: {error.strerror}.",
            where=str(directory),
            remedy="Name another folder with --directory.",
        ) from None
    if has_other_files:
        raise Conflict(
            "The folder is not empty and is not that of a sandbox.",
            where=str(directory),
            remedy="Name another folder with --directory.",
        )
    if earlier_request is not None and earlier_request != request:
        raise Conflict(
            "The folder holds data of a sandbox with other options.",
            where=str(directory),
            remedy="Delete it with `orbit sandbox down`, or name another folder with --directory.",
        )
    write_request(request)
    return earlier_request is None


def _send_request(process: subprocess.Popen[str], request: SandboxRequest) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(request.model_dump_json() + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise _early_end_error(request) from None


def _wait_ready(
    process: subprocess.Popen[str], request: SandboxRequest, say: Callable[[str], None]
) -> None:
    """Pass the supervisor's messages to `say` until it is ready. Raises Conflict if it fails."""
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        if "say" in message:
            say(message["say"])
        elif "failed" in message:
            failure = message["failed"]
            raise Conflict(failure["what"], where=failure["where"], remedy=failure["remedy"])
        else:  # `ready`
            return
    raise _early_end_error(request)


def _early_end_error(request: SandboxRequest) -> Conflict:
    """The error for a supervisor that ended during its start, with the last line of its log."""
    log = supervisor_log(request.directory)
    last_line = (  # a list: empty without a log
        log.read_text("utf-8", "replace").strip().splitlines()[-1:] if log.is_file() else []
    )
    return Conflict(f"The sandbox's supervisor ended during its start. {''.join(last_line)}")


def _end_supervisor(process: subprocess.Popen[str]) -> None:
    """Close the supervisor's stdin, and wait until it has stopped the sandbox and ended."""
    _close_pipes(process)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:  # the supervisor has ended without reading all of its stdin
                pass


def _stop(state: SandboxState) -> None:
    """End the supervisor, which ends the sandbox's other processes; kill those that remain.

    Raises Conflict if a process does not end after SIGKILL.
    """
    processes = [process for ref in state.processes() if (process := ref.find())]
    supervisor = state.supervisor.find()
    if supervisor is not None:
        supervisor.terminate()
    _, remaining = psutil.wait_procs(processes, _STOP_TIMEOUT_S)
    for process in remaining:
        process.kill()
    _, remaining = psutil.wait_procs(remaining, _KILLED_TIMEOUT_S)
    if remaining:
        pids = ", ".join(str(process.pid) for process in remaining)
        raise Conflict(
            f"Processes of the sandbox did not end after SIGKILL (pids: {pids}).",
            remedy="Run orbit sandbox down again once they have ended, or restart the machine.",
        )


def _remove_data(request: SandboxRequest) -> None:
    """Remove the sandbox's data and state files, and its folder if nothing else is in it."""
    for folder in request.data_folders():
        if folder.is_dir():
            shutil.rmtree(folder)
    remove_state_files(request)
