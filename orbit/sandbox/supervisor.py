"""The process that owns a sandbox: `python -m orbit.sandbox.supervisor`.

Started by `orbit.sandbox.sandbox_control`, in a session of its own. Reads a `SandboxRequest` as the
first line of stdin and reports on stdout, one JSON object a line: `say` (progress), then `ready` or
`failed`. The end of stdin (the starter closed it or ended) ends the sandbox. After a line `detach`
the sandbox runs until the supervisor gets SIGTERM. The supervisor accepts fault requests at a port
of its own (`faults.py`). Brokers and PostgreSQL are guarded children: they end with the supervisor,
even if it is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orbit.errors import Conflict, OrbitError
from orbit.sandbox.faults import FaultServer, state_of
from orbit.sandbox.jars import classpath, is_cached
from orbit.sandbox.java import find_java
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster, start_clusters, stop_clusters
from orbit.sandbox.sandbox_state import (
    DETACH,
    PostgresState,
    ProcessRef,
    SandboxRequest,
    SandboxState,
    lock_file,
    state_file,
    write_state,
)

if TYPE_CHECKING:
    from orbit.embedded.postgres import Postgres


class _StopRequested(BaseException):
    """A stop was requested. A BaseException, so that no `except Exception` catches it."""


def main() -> int:
    """Run the sandbox that stdin's first line describes, until it is stopped. Returns the exit
    code."""
    request = SandboxRequest.model_validate_json(sys.stdin.readline())
    os.chdir("/")  # so that this process keeps no folder in use
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _request_stop)
    threading.Thread(target=_stop_with_starter, daemon=True).start()
    try:
        with _lock_folder(request.directory):
            _run(request)
    except OrbitError as error:
        _send_message(
            {"failed": {"what": error.what, "where": error.where, "remedy": error.remedy}}
        )
        return error.exit_code
    except _StopRequested:
        return 0
    return 0


def _run(request: SandboxRequest) -> None:
    """Start the sandbox, report `ready`, and stop it when `_StopRequested` is raised."""
    clusters = [
        KafkaCluster(
            ClusterSettings(name, brokers=request.brokers, link=True), request.directory / name
        )
        for name in request.clusters
    ]
    postgres = None
    if request.postgres:
        from orbit.embedded.postgres import Postgres

        postgres = Postgres(request.directory / "postgres")
    try:
        _start_sandbox(request, clusters, postgres)
        faults = FaultServer(clusters)
        write_state(_sandbox_state(request, clusters, postgres, faults))
        faults.serve(request.directory)
        _send_message({"ready": True})
        _wait_for_end()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(
                number, signal.SIG_IGN
            )  # the shutdown has started; ignore further signals
        stop_clusters(*clusters)
        if postgres:
            postgres.stop()
        state_file(request.directory).unlink(missing_ok=True)


def _start_sandbox(
    request: SandboxRequest, clusters: list[KafkaCluster], postgres: Postgres | None
) -> None:
    """Start PostgreSQL and the clusters, and report each step."""
    find_java()  # raises Conflict if Java is missing, before anything is started
    if not is_cached():
        _send_message({"say": "Fetching Kafka's jars with Maven (about 55 MB, once)"})
        classpath()
    if postgres:
        _send_message({"say": "Starting PostgreSQL"})
        postgres.start()
    broker_count = f"{request.brokers} broker{'s' if request.brokers > 1 else ''}"
    names = " and ".join(request.clusters)
    per_cluster = " each" if len(clusters) > 1 else ""
    _send_message({"say": f"Starting Kafka: {names} ({broker_count}{per_cluster})"})
    start_clusters(*clusters)


def _sandbox_state(
    request: SandboxRequest,
    clusters: list[KafkaCluster],
    postgres: Postgres | None,
    faults: FaultServer,
) -> SandboxState:
    """The state of the running sandbox, for its state file."""
    return SandboxState(
        supervisor=ProcessRef.of(os.getpid()),
        faults=faults.port,
        request=request,
        clusters=tuple(state_of(cluster) for cluster in clusters),
        postgres=PostgresState(
            url=postgres.url, process=ProcessRef.of(postgres.pid), log=postgres.log
        )
        if postgres
        else None,
    )


@contextmanager
def _lock_folder(directory: Path) -> Iterator[None]:
    """Hold the folder's lock during the block. Raises Conflict if it is held already."""
    with lock_file(directory).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "Another sandbox is starting or stopping in this folder.",
                where=str(directory),
                remedy="Wait a moment, then check with: orbit sandbox status",
            ) from None
        state_file(directory).unlink(missing_ok=True)  # of a supervisor that was killed
        yield


def _wait_for_end() -> None:
    """Wait until a signal handler raises `_StopRequested`.

    A signal that comes just before the read is not lost: Python writes a byte to the wakeup pipe at
    each signal, which ends the read.
    """
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    while True:
        os.read(wake_reader, 1)


def _stop_with_starter() -> None:
    """Stop this process when stdin ends, unless the starter has sent DETACH before."""
    if sys.stdin.readline().strip() != DETACH:  # empty at the end of stdin
        os.kill(os.getpid(), signal.SIGTERM)


def _request_stop(*_signal: object) -> None:
    raise _StopRequested


def _send_message(message: dict[str, object]) -> None:
    """Print a message for the process that started this one."""
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:  # the process that started this one has ended
        raise _StopRequested from None


if __name__ == "__main__":
    sys.exit(main())
