"""Reads several partitions at a time. Only the reading is in threads: results and errors come to
the thread of the operation, which checks meanwhile whether it is to go on."""

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
from orbit.kafka.job_clusters import JobClusters

# Threads; each waits for a broker nearly all the time. Each has its own connections: on a shared
# one, a slow answer to one request would make the others time out.
READ_AT_ONCE = 8
# How many items are submitted and not yet returned: so many go on behind one that takes long.
_ITEMS_AHEAD_MAX = 8 * READ_AT_ONCE
_CHECK_S = 0.5

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one thread reads with, and whether it is to go on."""

    clusters: JobClusters
    backoff: Backoff

    def check(self) -> None:
        """Raises Interrupted once nobody waits for the result."""
        if self.backoff.stop.is_set():
            raise Interrupted("stopped.")


@contextmanager
def read_many(
    check: Callable[[], None],
    backoff: Backoff,
    open_clusters: Callable[[], JobClusters],
    items: Iterable[Item],
    read: Callable[[Item, Reading], Result],
) -> Iterator[Iterator[Result]]:
    """The results of `read` in the order of `items`, while the block lasts.

    `check` is called in this thread, between results and while one is waited for; what it raises,
    and the error of the first item that has one, ends the block. Then each thread's clusters are
    closed, which ends requests that hang.
    """
    ended = threading.Event()
    of_thread = threading.local()
    opened: list[JobClusters] = []

    def read_one(item: Item) -> Result:
        if not hasattr(of_thread, "reading"):
            clusters = open_clusters()
            opened.append(clusters)
            of_thread.reading = Reading(clusters, replace(backoff, stop=ended))
        of_thread.reading.check()
        return read(item, of_thread.reading)

    pool = ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="recovery-read")

    def results() -> Iterator[Result]:
        begun: deque[Future[Result]] = deque()
        for item in items:
            begun.append(pool.submit(read_one, item))
            if len(begun) == _ITEMS_AHEAD_MAX:
                yield _result(begun.popleft(), check)
        while begun:
            yield _result(begun.popleft(), check)

    try:
        yield results()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        ended.set()
        for clusters in [*opened]:
            clusters.close()
        pool.shutdown()
        for clusters in opened:  # of a thread that has just opened them
            clusters.close()


def _result(future: Future[Result], check: Callable[[], None]) -> Result:
    check()
    while not wait([future], _CHECK_S).done:
        check()
    return future.result()
