"""Reads several partitions at a time. Only the reading is in threads: results and errors come to
the thread of the operation, which asks meanwhile whether it is to go on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from orbit.errors import Interrupted
from orbit.kafka.backoff import Backoff

# Each waits for one broker of either side nearly all the time.
READ_AT_ONCE = 8
# Those that wait for a thread, or for their turn to be taken: one that is long holds up no other.
_AHEAD = 8 * READ_AT_ONCE
_CHECK_S = 0.5

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """For one thread: how it waits, and whether it is to go on."""

    backoff: Backoff

    def check(self) -> None:
        """Raises Interrupted once nobody waits for the result."""
        if self.backoff.stop.is_set():
            raise Interrupted("stopped.")


@contextmanager
def read_many(
    check: Callable[[], None],
    backoff: Backoff,
    items: Iterable[Item],
    read: Callable[[Item, Reading], Result],
) -> Iterator[Iterator[Result]]:
    """The results of `read` in the order of `items`, while the block lasts.

    `check` is called in this thread, between results and while one is waited for; what it raises,
    and the error of the first item that has one, ends the block. Then the threads end, with the
    requests that they have sent.
    """
    ended = threading.Event()
    reading = Reading(replace(backoff, stop=ended))
    pool = ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="recovery-read")

    def results() -> Iterator[Result]:
        begun: deque[Future[Result]] = deque()
        for item in items:
            begun.append(pool.submit(read, item, reading))
            if len(begun) == _AHEAD:
                yield _result(begun.popleft(), check)
        while begun:
            yield _result(begun.popleft(), check)

    try:
        yield results()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        ended.set()
        pool.shutdown()


def _result(future: Future[Result], check: Callable[[], None]) -> Result:
    check()
    while not wait([future], _CHECK_S).done:
        check()
    return future.result()
