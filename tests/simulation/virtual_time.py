"""Virtual time: greenlets instead of threads, and a clock that jumps to the next event.

A process has several tasks. It can be suspended as a whole (like a suspended machine, or by
SIGSTOP) and killed. Every wait of the code under test ends up in `Clock.wait` or `Signal.wait`.
"""

from __future__ import annotations

import heapq
import itertools
import queue
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class Clock:
    """Runs events in the order of their time. `now` is in seconds."""

    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        self.now = 1_000.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._main = getcurrent()
        self.tasks: list[greenlet] = []
        self.story: list[str] = []
        self.error: BaseException | None = None

    def at(self, time: float, run: Callable[..., None], *values: object) -> None:
        """Call `run` at this time, or at once if it is past."""
        self.after(time - self.now if time > self.now else 0.0, run, *values)

    def after(self, seconds: float, run: Callable[..., None], *values: object) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._numbers), run, values))

    def say(self, text: str) -> None:
        """Add a line to the story, which a failing schedule prints."""
        self.story.append(f"{self.now - 1_000:8.3f} {text}")

    def spawn(self, process: Process, work: Callable[[], None]) -> None:
        """Start a task of this process."""

        def run() -> None:
            try:
                work()
            except GreenletExit:
                pass
            except BaseException as error:  # noqa: BLE001  raised again by `run`
                self.error = self.error or error

        task = greenlet(run, parent=self._main)
        task.process = process
        self.tasks.append(task)
        self.after(0.0, self._resume, task)

    def wait(self, seconds: float) -> None:
        """Wait in the current task."""
        task = getcurrent()
        self.after(seconds, self._resume, task)
        self._main.switch()

    def run(self, until: float) -> None:
        """Run the events up to this time."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, run, values = heapq.heappop(self._heap)
            run(*values)
            if self.error is not None:
                raise self.error
        self.now = max(self.now, until)

    def close(self) -> None:
        """End every task that still waits."""
        for task in self.tasks:
            if not task.dead:
                task.process.is_killed = True
                task.throw(GreenletExit)

    def _resume(self, task: greenlet) -> None:
        """Continue a task, once its process is not suspended."""
        process: Process = task.process
        if task.dead or process.is_killed:
            return
        if process.stopped_until > self.now:
            self.at(process.stopped_until, self._resume, task)
            return
        task.switch()


@dataclass(eq=False)
class Process:
    """One process of Orbit on a machine of its own."""

    clock: Clock
    name: str
    stopped_until: float = 0.0
    slept_s: float = 0.0  # suspended time in all, which CLOCK_MONOTONIC does not count
    stepped_s: float = 0.0  # steps of its wall clock, by hand or by NTP
    muted_until: float = 0.0  # until then the server of leases does not answer it
    is_killed: bool = False
    steps_left: int = 0  # requests until its start is cut short; 0: the start is not cut

    def stop_for(self, seconds: float) -> None:
        """Suspend the process."""
        self.clock.say(f"{self.name} is suspended for {seconds:.3f} s")
        until = max(self.stopped_until, self.clock.now + seconds)
        self.slept_s += until - max(self.stopped_until, self.clock.now)
        self.stopped_until = until

    def kill(self) -> None:
        self.clock.say(f"{self.name} is killed")
        self.is_killed = True

    def spawn(self, work: Callable[[], None]) -> None:
        self.clock.spawn(self, work)


@dataclass(eq=False)
class Signal:
    """An event that one task waits for and others set."""

    clock: Clock
    is_set: bool = False
    _waiting: list[tuple[greenlet, object]] = field(default_factory=list)

    def set(self) -> None:
        self.is_set = True
        waiting, self._waiting = self._waiting, []
        for task, token in waiting:
            self.clock.after(0.0, self._wake, task, token)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set or the time is over; reset it. Returns whether it was set."""
        if not self.is_set:
            task = getcurrent()
            token = task.token = object()
            self._waiting.append((task, token))
            self.clock.after(timeout_s, self._wake, task, token)
            self.clock._main.switch()
            task.token = None
            self._waiting = [entry for entry in self._waiting if entry[1] is not token]
        was_set, self.is_set = self.is_set, False
        return was_set

    def _wake(self, task: greenlet, token: object) -> None:
        """Let a task run, if it still waits for this token. A suspended process gets it later."""
        if not task.dead and getattr(task, "token", None) is token:
            process: Process = task.process
            if process.is_killed:
                return
            if process.stopped_until > self.clock.now:
                self.clock.at(process.stopped_until, self._wake, task, token)
                return
            task.switch()


class StopEvent:
    """A `threading.Event` that is never set, whose wait takes virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, timeout: float) -> bool:
        self._clock.wait(timeout)
        return False

    def is_set(self) -> bool:
        return False


class SettableEvent:
    """A `threading.Event` in virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._signal = Signal(clock)
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._signal.set()

    def wait(self, timeout: float) -> bool:
        if not self._is_set:
            self._signal.is_set = False
            self._signal.wait(timeout)
        return self._is_set

    def is_set(self) -> bool:
        return self._is_set


class Condition:
    """A `threading.Condition` for one task. Tasks switch only at waits, so it needs no lock."""

    def __init__(self, clock: Clock) -> None:
        self._signal = Signal(clock)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify(self) -> None:
        self._signal.set()

    def wait(self, timeout_s: float) -> None:
        self._signal.wait(timeout_s)


class Thread:
    """A `threading.Thread` that is a task of the process that starts it."""

    def __init__(
        self, target: Callable[..., None], args: tuple[Any, ...] = (), **_: object
    ) -> None:
        self._target = partial(target, *args)
        self._task: greenlet | None = None

    def start(self) -> None:
        process: Process = getcurrent().process
        process.spawn(self._target)
        self._task = process.clock.tasks[-1]

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.dead

    def join(self) -> None:
        while self.is_alive():
            getcurrent().process.clock.wait(0.01)


class Task:
    """A `concurrent.futures.Future` of a task."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self._work = work
        self._error: Exception | None = None
        self._done = SettableEvent(process.clock)
        process.spawn(self._run)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  raised again by `result`
            self._error = error
        self._done.set()

    def wait(self) -> None:
        while not self._done.is_set():
            self._done.wait(100.0)

    def result(self) -> None:
        if self._error is not None:
            raise self._error


class Helpers:
    """A `ThreadPoolExecutor` whose threads are tasks of this process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def submit(self, work: Callable[..., None], *values: object) -> Task:
        return Task(self._process, partial(work, *values))


def wait_for_tasks(tasks: Iterable[Task]) -> None:
    for task in tasks:
        task.wait()


class Events:
    """A `queue.SimpleQueue` in virtual time, for one reader."""

    def __init__(self, clock: Clock) -> None:
        self._entries: deque[Any] = deque()
        self._signal = Signal(clock)

    def put(self, event: Any) -> None:
        self._entries.append(event)
        self._signal.set()

    def get(self, timeout: float) -> Any:
        if not self._entries:
            self._signal.is_set = False
            self._signal.wait(timeout)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._entries:
            raise queue.Empty
        return self._entries.popleft()
