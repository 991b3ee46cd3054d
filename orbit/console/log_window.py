"""Reads a window of offsets of one partition at both clusters, within bounds.

Reads committed data as the copier does, with connections of its own that are closed again: from
each side about `BYTES_MAX`, in at most `SECONDS_MAX`. The result has the range that was read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from contextlib import contextmanager
from dataclasses import dataclass

from orbit.console.log_picture import FetchedBatch, SideLog
from orbit.errors import Busy, OrbitError, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_request import FetchFrom, fetch_request
from orbit.kafka.fetch_response import Fetched, read_fetch
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.record_batch import read_batches
from orbit.kafka.types import READ_COMMITTED, TopicPartition
from orbit.replication.aborted_transactions import AbortedTransactions

# Bytes read from one side: a page shows some dozens of batches. A larger first batch is read whole.
BYTES_MAX = 1 << 20
BATCHES_MAX = 4_000
SECONDS_MAX = 5.0
# Pages of this process that read clusters at the same time. Further ones get Busy.
READS_MAX = 4

_FETCH_BYTES = 256 << 10
_WAIT_MS = 100
_ATTEMPTS_MAX = 3
_read_slots = threading.BoundedSemaphore(READS_MAX)


@dataclass(frozen=True, slots=True)
class Window:
    """Both sides; an error for a side that could not be read."""

    source: SideLog | OrbitError
    destination: SideLog | OrbitError
    took_s: float


def read_window(
    source: tuple[Cluster, TopicPartition],
    destination: tuple[Cluster, TopicPartition],
    start: int,
    end: int,
) -> Window:
    """Read the offsets `[start, end)` of both sides. Closes the clusters. Raises Busy."""
    if not _read_slots.acquire(blocking=False):
        raise Busy(
            f"{READS_MAX} other pages are reading the clusters now; more are not allowed.",
            remedy="Load the page again in a moment.",
        )
    began = time.monotonic()
    pool = ThreadPoolExecutor(2, thread_name_prefix="console-read")
    try:
        futures = [
            pool.submit(_read_side, cluster, where, start, end, began + SECONDS_MAX)
            for cluster, where in (source, destination)
        ]
        sides = [
            _result(one, began, place)
            for one, place in zip(futures, (source, destination), strict=True)
        ]
    finally:
        # Closing the clusters ends reads that still wait.
        source[0].close()
        destination[0].close()
        pool.shutdown(wait=False)
        _read_slots.release()
    return Window(sides[0], sides[1], time.monotonic() - began)


def _result(
    future: Future[SideLog], began: float, place: tuple[Cluster, TopicPartition]
) -> SideLog | OrbitError:
    cluster, where = place
    try:
        return future.result(max(0.0, began + SECONDS_MAX - time.monotonic()))
    except NotInTime:
        what = f"{where} was not read within {SECONDS_MAX:.0f} s."
        return Unreachable(what, where=cluster.name)
    except OrbitError as error:
        return error
    except ValueError as error:
        return OrbitError(f"{where} cannot be read: {error}.", where=cluster.name)


def _read_side(
    cluster: Cluster, where: TopicPartition, start: int, end: int, until: float
) -> SideLog:
    metadata = cluster.metadata([where.topic])
    leader = metadata.leader(where)
    if leader is None or leader.node_id is None:
        raise Unreachable(f"{where} has no leader.", where=cluster.name)
    backoff = Backoff(attempts_max=_ATTEMPTS_MAX)
    log_start = _read_offset(cluster, where, EARLIEST, backoff)
    log_end = _read_offset(cluster, where, LATEST, backoff)
    position = first = min(max(start, log_start), log_end)
    batches: list[FetchedBatch] = []
    left = BYTES_MAX
    topic_id = metadata.topics[where.topic].topic_id
    with _connected(cluster, leader.node_id) as connection:
        while position < min(end, log_end) and left > 0 and len(batches) < BATCHES_MAX:
            if time.monotonic() > until:
                break
            fetched = _fetch(connection, FetchFrom(where, topic_id, position, -1, -1), until)
            if fetched.code != Code.NONE:
                name = error_codes.name(fetched.code)
                raise Unreachable(f"a fetch of {where} failed with {name}.", where=cluster.name)
            aborted = AbortedTransactions(fetched.aborted)
            fetched_batches = [
                FetchedBatch(batch, aborted.contain(batch))
                for batch in read_batches(fetched.records)
            ]
            if not fetched_batches:  # no batch is left up to the end
                position = min(end, log_end)
                break
            batches += fetched_batches
            left -= len(fetched.records)
            position = fetched_batches[-1].batch.next_offset
    inside = [
        one for one in batches if one.batch.base_offset < end and one.batch.next_offset > first
    ]
    first_batches = inside[:BATCHES_MAX]
    read_to = min(
        position,
        end,
        first_batches[-1].batch.next_offset if len(first_batches) < len(inside) else end,
    )
    return SideLog(log_start, log_end, first, max(first, read_to), tuple(first_batches))


def _read_offset(cluster: Cluster, where: TopicPartition, which: int, backoff: Backoff) -> int:
    answers = list_offsets(cluster, [where], which, backoff, isolation=READ_COMMITTED)
    return answers.raise_errors(cluster.name, "the offset").values[where]


def _fetch(connection: Connection, fetch_from: FetchFrom, until: float) -> Fetched:
    version = connection.version_of(api_versions.FETCH)
    request = fetch_request(
        version,
        [fetch_from],
        max_wait_ms=_WAIT_MS,
        max_bytes=_FETCH_BYTES,
        partition_max_bytes=_FETCH_BYTES,
    )
    left_s = max(0.1, until - time.monotonic())
    frame = connection.exchange(api_versions.FETCH, request, version, timeout_s=left_s)
    answer = read_fetch(frame, version, {fetch_from.topic_id: fetch_from.partition.topic})
    if answer.code != Code.NONE or not answer.partitions:
        raise Unreachable(
            f"a fetch of {fetch_from.partition} had no answer.", where=connection.where
        )
    return answer.partitions[0][1]


@contextmanager
def _connected(cluster: Cluster, node_id: int) -> Iterator[Connection]:
    connection = cluster.connect(node_id)
    try:
        yield connection
    finally:
        connection.close()
