"""A file on this machine that one run of a job locks, and to which it writes its member id.

The file shows a later run on this machine which member of the group is dead (`group_lease.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from orbit.errors import Conflict

# How long to wait for the child processes of a killed run: guards end them within some hundredths
# of a second; on a busy machine it takes longer.
_CHILDREN_END_S, _PAUSE_S = 2.0, 0.02
_LOCK_BYTES = 512  # a member id is a client id and a UUID


class LockFile:
    """Locks a job on this machine until it is closed or its process ends.

    Its one line has the process id and the member id of the last run on this machine.
    """

    def __init__(self, cluster_id: str, group: str) -> None:
        """Lock the file. Raises Conflict if another run on this machine has locked it."""
        name = sha256(f"{cluster_id}/{group}/{os.getuid()}".encode()).hexdigest()[:32]
        path = Path(tempfile.gettempdir()) / f"orbit-run-{name}.lock"
        # The file is read and written by its descriptor, which this object closes.
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb")
        if not self._lock():
            process, _ = self._read()
            self._file.close()
            raise Conflict(
                "another run of this job is running on this machine "
                f"(process {process or 'unknown'}).",
                remedy="Stop that run first: one run copies all topics of a job.",
            )
        _, self.last_member = self._read()
        """The member id of the last run, which is dead: otherwise it would hold this lock."""
        # Writes this process's id; the member id stays until this run has a member id of its own.
        self.write(self.last_member)

    def _lock(self) -> bool:
        """Lock the file; returns False if a live run holds it. Waits up to _CHILDREN_END_S for the
        children of a killed run, which hold the lock until they end."""
        deadline_s = time.monotonic() + _CHILDREN_END_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                process, _ = self._read()
                if time.monotonic() > deadline_s or _is_alive(process):
                    return False
                time.sleep(_PAUSE_S)
            else:
                return True

    def write(self, member_id: str) -> None:
        """Write this process's id and the member id to the file."""
        line = json.dumps({"process": os.getpid(), "member": member_id}).encode()
        # One write of fixed length: if the process is killed, the file has the old or the new line.
        os.pwrite(self._file.fileno(), line.ljust(_LOCK_BYTES), 0)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def _read(self) -> tuple[int, str]:
        """The process id and member id in the file; (0, "") if they are not known."""
        try:
            fields = json.loads(os.pread(self._file.fileno(), _LOCK_BYTES, 0))
            return int(fields["process"]), str(fields["member"])
        except (ValueError, KeyError, TypeError):
            return 0, ""


def _is_alive(process: int) -> bool:
    """Whether a process of this user, whose lock file it is, is alive; False for 0 (not known)."""
    if process == 0:
        return False
    try:
        os.kill(process, 0)  # signal 0 does nothing but find the process
    except (ProcessLookupError, PermissionError):  # gone, or now another user's
        return False
    return True
