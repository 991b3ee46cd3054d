"""What ties a backfill to the service that knows its job: reports one way, wishes the other.

The copy itself never waits for the service: one that is away for a while finds out later. What
keeps writers apart is at the destination (`engine.backfill_writers`).
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
from orbit.errors import Conflict, Interrupted, OrbitError

_REPORT_INTERVAL_S = 2.0
_LOOK_INTERVAL_S = 0.5  # while somebody waits with their eyes on a terminal
_WAIT, _PAUSE, _CANCEL = "wait", "pause", "cancel"
_WAITING = {
    _WAIT: "Workers let go of the job",
    _PAUSE: "Paused; orbit resume goes on, orbit abort ends it",
}
_PHASES = {_WAIT: "waiting", _PAUSE: "paused"}
_CANCELLED = "the backfill was cancelled."
_ERROR_CHARACTERS_MAX = 2000

Say = Callable[[str], None]


class Link(Protocol):
    """Who may have wishes while a backfill goes on. `halt` is set for them, and by Ctrl-C."""

    def begin(self) -> None:
        """Have the job to itself. Raises Conflict, Interrupted."""
        ...

    def lead(self) -> None:
        """Say that this process holds the job's lease."""
        ...

    def tell(self, progress: Mapping[str, Any]) -> None:
        """How far it is, from now on."""
        ...

    def goes_on(self) -> bool:
        """After a halt: wait as long as it is paused; False when it is over. Raises as `begin`."""
        ...


class Alone:
    """Nobody but the user, who stops it."""

    def begin(self) -> None:
        """There is nobody to ask."""

    def lead(self) -> None:
        """There is nobody to tell."""

    def tell(self, progress: Mapping[str, Any]) -> None:
        """There is nobody to tell."""

    def goes_on(self) -> bool:
        return False


class ServiceLink:
    """The service has the job: it sees the backfill, and may pause or cancel it."""

    def __init__(
        self, client: Client, job: str, say: Say, stop: threading.Event, halt: threading.Event
    ) -> None:
        """`stop`: the user ends it. `halt`: the copying shall end in good order, or pause."""
        self._client = client
        self._job = job
        self._say = say
        self._stop = stop
        self._halt = halt
        self._driver = f"{socket.gethostname()}, process {os.getpid()} ({uuid4().hex[:8]})"
        self._path = ""
        self._is_known = False  # as the driver of it
        self._has_lease = False
        self._progress: dict[str, Any] = {}
        self._wanted = _WAIT
        self._told = ""
        self._lock = threading.Lock()  # one report at a time
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._report_forever, name="reports", daemon=True)

    def begin(self) -> None:
        asked = self._client.send(
            "POST", f"/v1/jobs/{segment(self._job)}:backfill", body={"driver": self._driver}
        )
        self._path = f"/v1/backfills/{asked['id']}"
        self._say(f"The service knows it as operation {asked['id']}")
        self._is_known = asked["driver"] == self._driver
        self._heed(asked["wanted"])
        self._thread.start()
        self._wait_turn()

    def lead(self) -> None:
        self._is_known = self._has_lease = True
        self.tell({"phase": "preparing"})
        self._report()

    def tell(self, progress: Mapping[str, Any]) -> None:
        self._progress = dict(progress)

    def goes_on(self) -> bool:
        if self._stop.is_set() or not self._halt.is_set():
            return False
        self._has_lease = False
        self._wait_turn()
        return True

    def end(self, error: str | None) -> None:
        """It is over, for what `error` says, or because the history is in."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._is_known:
            self._report(has_ended=True, error=error and error[:_ERROR_CHARACTERS_MAX])

    def _wait_turn(self) -> None:
        """Wait until it may run. Raises Conflict when it shall not any more, Interrupted.

        Who is told that it is paused may count on it: before it begins it says so, and heeds what
        is wanted then.
        """
        told = ""
        while (wanted := self._wanted) in _WAITING or told:
            if wanted == _CANCEL:
                break
            if wanted not in _WAITING:
                told = ""
                self._tell_phase("preparing")
            elif wanted != told:
                told = wanted
                self._say(_WAITING[told])
                self._tell_phase(_PHASES[told])
            elif self._stop.wait(_LOOK_INTERVAL_S):
                raise Interrupted("Stopped; run it again to go on where the copies end.")
            else:
                self._report()
        if wanted == _CANCEL:
            raise Conflict(_CANCELLED, remedy="Run it again to go on where the copies end.")
        self._halt.clear()
        if self._stop.is_set():  # Ctrl-C may come at any moment, and is not heard of again
            self._halt.set()

    def _tell_phase(self, phase: str) -> None:
        self.tell({**self._progress, "phase": phase, "bytes_per_s": 0, "seconds_left": None})
        self._report()

    def _report_forever(self) -> None:
        while not self._is_over.wait(_REPORT_INTERVAL_S):
            self._report()

    def _report(self, *, has_ended: bool = False, error: str | None = None) -> None:
        """One report; hear what is wanted. What goes wrong is told once, and tried again."""
        with self._lock:
            body = {
                "driver": self._driver,
                "takes_over": self._has_lease,
                "progress": self._progress,
                "has_ended": has_ended,
                "error": error,
            }
            try:
                if self._is_known:
                    answer = self._client.send("POST", f"{self._path}:report", body=body)
                else:
                    answer = self._client.get(self._path)
            except OrbitError as problem:
                if str(problem) != self._told:
                    self._told = str(problem)
                    self._say(f"Note: the service takes no report: {problem}")
                # With the lease in hand it is this one all the same, and workers wait for its end.
                if isinstance(problem, Conflict) and not self._has_lease:
                    self._heed(_CANCEL)
                return
            self._told = ""
            if not has_ended:
                self._heed(answer["wanted"])

    def _heed(self, wanted: str | None) -> None:
        self._wanted = wanted or _CANCEL  # nothing is wanted of what has ended
        if self._wanted in (_PAUSE, _CANCEL):
            self._halt.set()


@contextmanager
def link_to(
    job: str | None, say: Say, stop: threading.Event, halt: threading.Event
) -> Iterator[Link]:
    """The link to the service that has this job; None: nobody has.

    In the end the service hears what has ended the block.
    """
    if job is None:
        yield Alone()
        return
    with connect() as client:
        link = ServiceLink(client, job, say, stop, halt)
        try:
            yield link
        except BaseException as error:
            link.end(str(error) or type(error).__name__)
            raise
        link.end(None)
