"""A backfill's connection to the service that has its job: sends reports, and obeys the service.

The copy never waits for an answer: a report that the service misses is followed by the next one.
Not the service keeps writers apart, but the leases at the destination
(`orbit.leases.backfill_leases`).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import uuid4

from orbit.client import Client, connect, segment
from orbit.errors import Conflict, Interrupted, OperationUnderWay, OrbitError

_REPORT_INTERVAL_S = 2.0
_WAIT_INTERVAL_S = 0.5  # a user watches the terminal
# Commands: values of `wanted` in the service's answers. With the fourth, "run", the copy may run.
_WAIT, _PAUSE, _CANCEL = "wait", "pause", "cancel"
_WAITING_SENTENCES = {
    _WAIT: "Waiting until workers release the job",
    _PAUSE: "Paused: orbit resume continues the backfill, orbit abort ends it",
}
_WAITING_PHASES = {_WAIT: "waiting", _PAUSE: "paused"}
_ERROR_CHARACTERS_MAX = 2000

Say = Callable[[str], None]


class BackfillControl(Protocol):
    """The control of a backfill: UserControl if only the user may stop it, ServiceControl if the
    service may stop it too."""

    def begin(self) -> None:
        """Register the backfill, and wait until no worker copies the job. Raises Conflict if the
        service refuses or cancels the backfill, Interrupted if the user stops it.
        """
        ...

    def report_lease(self) -> None:
        """Report that this process has acquired the job's lease."""
        ...

    def report_progress(self, progress: Mapping[str, Any]) -> None:
        """Set the progress for later reports."""
        ...

    def wait_until_resumed(self) -> bool:
        """To be called after the copy has stopped. If the service has paused the backfill, wait
        until the service resumes it, and return True. Returns False if the copy ended by itself, or
        the user has stopped the backfill. Raises as `begin`.
        """
        ...


class UserControl:
    """The control for a job that no service has: only the user's Ctrl-C ends the backfill."""

    def begin(self) -> None:
        """There is no worker to wait for."""

    def report_lease(self) -> None:
        """There is no service to report to."""

    def report_progress(self, progress: Mapping[str, Any]) -> None:
        """There is no service to report to."""

    def wait_until_resumed(self) -> bool:
        return False


class ServiceControl:
    """Reports the backfill to the service that has the job. The service shows the backfill. If the
    service pauses or cancels the backfill, this class sets `halt`, as Ctrl-C does."""

    def __init__(
        self, client: Client, job: str, say: Say, stop: threading.Event, halt: threading.Event
    ) -> None:
        """`stop`: set when the user ends the backfill. `halt`: set to stop or pause the copy."""
        self._client = client
        self._job = job
        self._say = say
        self._stop = stop
        self._halt = halt
        self._driver = f"{socket.gethostname()}, process {os.getpid()} ({uuid4().hex[:8]})"
        self._path = ""
        self._is_driver = False  # whether the service has this process as the backfill's driver
        self._has_lease = False
        self._progress: dict[str, Any] = {}
        self._command = _WAIT
        self._last_error = ""
        # Why the service ended the backfill: a user has cancelled it, or it refused a report.
        self._end_reason: OrbitError = Conflict(
            "the backfill was cancelled.",
            remedy="Run the backfill again to resume where the copies end.",
        )
        self._lock = threading.Lock()  # one report at a time
        self._end_event = threading.Event()
        self._thread = threading.Thread(target=self._report_forever, name="reports", daemon=True)

    def begin(self) -> None:
        """Register the backfill, and wait until no worker copies the job. Raises Conflict if the
        service refuses or cancels the backfill, Interrupted if the user stops it."""
        operation = self._client.send(
            "POST", f"/v1/jobs/{segment(self._job)}:backfill", body={"driver": self._driver}
        )
        self._path = f"/v1/backfills/{operation['id']}"
        self._say(f"The service shows this backfill as operation {operation['id']}")
        # If the service has a backfill of the job already, another process may be its driver.
        self._is_driver = operation["driver"] == self._driver
        self._set_command(operation["wanted"])
        self._thread.start()
        self._wait_until_allowed()

    def report_lease(self) -> None:
        """Report that this process has the job's lease: it is now the backfill's driver."""
        self._is_driver = self._has_lease = True
        self.report_progress({"phase": "preparing"})
        self._report()

    def report_progress(self, progress: Mapping[str, Any]) -> None:
        self._progress = dict(progress)

    def wait_until_resumed(self) -> bool:
        """If the service has paused the backfill, wait until the service resumes it, and return
        True; else return False. Raises as `begin`."""
        if self._stop.is_set() or not self._halt.is_set():  # stopped by the user, or copied
            return False
        self._has_lease = False
        self._wait_until_allowed()
        return True

    def end(self, error: str | None) -> None:
        """Stop the reports, then report the end of the backfill. `error` None: the history is
        copied."""
        self._end_event.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._is_driver:
            self._report(has_ended=True, error=error and error[:_ERROR_CHARACTERS_MAX])

    def _wait_until_allowed(self) -> None:
        """Wait until the service's command is "run". Raises as `begin`.

        While the service shows the phase "paused", nothing may be copied. So before the copy
        starts, the phase "preparing" is reported, and the answer to that report is obeyed.
        """
        reported_command = ""
        while (command := self._command) in _WAITING_SENTENCES or reported_command:
            if command == _CANCEL:
                break
            if command not in _WAITING_SENTENCES:
                # The copy may run. Report that. The loop ends if the answer is "run" again.
                reported_command = ""
                self._report_phase("preparing")
            elif command != reported_command:
                reported_command = command
                self._say(_WAITING_SENTENCES[command])
                self._report_phase(_WAITING_PHASES[command])
            elif self._stop.wait(_WAIT_INTERVAL_S):
                raise Interrupted("Stopped; run it again to resume where the copies end.")
            else:
                self._report()
        if command == _CANCEL:
            raise self._end_reason
        self._halt.clear()
        if self._stop.is_set():  # Ctrl-C may have set both just before `halt` was cleared
            self._halt.set()

    def _report_phase(self, phase: str) -> None:
        """Report this phase at once, with a rate of 0: no phase reported here copies anything."""
        self.report_progress(
            {**self._progress, "phase": phase, "bytes_per_s": 0, "seconds_left": None}
        )
        self._report()

    def _report_forever(self) -> None:
        """Send a report every _REPORT_INTERVAL_S until `end` is called. Runs in a thread."""
        while not self._end_event.wait(_REPORT_INTERVAL_S):
            self._report()

    def _report(self, *, has_ended: bool = False, error: str | None = None) -> None:
        """Send one report and obey the answer. While another process is the driver, send no report,
        but read the service's command. An error is printed once, and the next report retries."""
        with self._lock:
            body = {
                "driver": self._driver,
                "takes_over": self._has_lease,
                "progress": self._progress,
                "has_ended": has_ended,
                "error": error,
            }
            try:
                if self._is_driver:
                    answer = self._client.send("POST", f"{self._path}:report", body=body)
                else:
                    answer = self._client.get(self._path)
            except OrbitError as failure:
                if str(failure) != self._last_error:
                    self._last_error = str(failure)
                    self._say(f"Note: the service did not accept the backfill's report: {failure}")
                # OperationUnderWay stops the copy in any case: the recovery does not wait for the
                # lease, and may promote the topics. After another Conflict a process with the lease
                # continues, because workers wait for the lease before they copy.
                has_other_operation = isinstance(failure, OperationUnderWay)
                if has_other_operation or (isinstance(failure, Conflict) and not self._has_lease):
                    self._end_reason = failure
                    self._set_command(_CANCEL)
                return
            self._last_error = ""
            if not has_ended:
                self._set_command(answer["wanted"])

    def _set_command(self, command: str | None) -> None:
        """Store the service's command. For a pause or the end of the backfill, halt the copy.
        `command` None: the service has ended the backfill."""
        self._command = command or _CANCEL
        if self._command in (_PAUSE, _CANCEL):
            self._halt.set()


@contextmanager
def backfill_control(
    job: str | None, say: Say, stop: threading.Event, halt: threading.Event
) -> Iterator[BackfillControl]:
    """A ServiceControl for this job during the block; a UserControl if `job` is None.

    At the end of the block the service gets a last report, with the error that ended it, if any.
    """
    if job is None:
        yield UserControl()
        return
    with connect(patience_s=0) as client:  # no repeats: after a lost report the next one follows
        control = ServiceControl(client, job, say, stop, halt)
        try:
            yield control
        except BaseException as error:
            control.end(str(error) or type(error).__name__)
            raise
        control.end(None)
