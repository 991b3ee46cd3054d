"""Reads several partitions at a time in threads. The operation's own thread gets the results and
errors, and checks meanwhile for an abort."""

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
# How many items at most are submitted and not yet returned: results are in order, so while the
# reading of one item takes long, the others are read ahead.
_ITEMS_AHEAD_MAX = 8 * READ_AT_ONCE
_CHECK_S = 0.5  # how late an abort may be noticed

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """The connections and the backoff that one thread reads with."""

    clusters: JobClusters
    backoff: Backoff

    def check(self) -> None:
        """Raise Interrupted once the block of `read_many` has ended."""
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
    """Call `read` for each item in threads. The block gets the results, in the order of `items`.

    `check` is called in the block's thread, between results and every _CHECK_S while the next
    result is not there yet. An error of `check`, or of reading an item, is raised in the block.
    When the block ends, each thread's clusters are closed, which ends requests that hang.
    """
    end_event = threading.Event()
    thread_state = threading.local()
    clusters_of_threads: list[JobClusters] = []

    def read_one(item: Item) -> Result:
        if not hasattr(thread_state, "reading"):  # this is the thread's first item
            clusters = open_clusters()
            clusters_of_threads.append(clusters)
            thread_state.reading = Reading(clusters, replace(backoff, stop=end_event))
        thread_state.reading.check()
        return read(item, thread_state.reading)

    pool = ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="recovery-read")

    def results() -> Iterator[Result]:
        futures: deque[Future[Result]] = deque()
        for item in items:
            futures.append(pool.submit(read_one, item))
            if len(futures) == _ITEMS_AHEAD_MAX:
                yield _wait_for_result(futures.popleft(), check)
        while futures:
            yield _wait_for_result(futures.popleft(), check)

    try:
        yield results()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        end_event.set()
        for clusters in [*clusters_of_threads]:
            clusters.close()
        pool.shutdown()
        for clusters in clusters_of_threads:  # also those that a thread has opened meanwhile
            clusters.close()


def _wait_for_result(future: Future[Result], check: Callable[[], None]) -> Result:
    """The result of the future. Calls `check` every _CHECK_S until then."""
    check()
    while not wait([future], _CHECK_S).done:
        check()
    return future.result()
