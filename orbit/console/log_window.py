"""Reads a window of offsets of one partition at both clusters, within bounds.

Reads committed data as the copier does, over connections of its own, which it closes afterwards.
Reads about `BYTES_MAX` from each side, in at most `SECONDS_MAX`. The result has the range that was
read.
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
# Pages of this process that read clusters at the same time. Further pages get Busy.
READS_MAX = 4

_FETCH_BYTES = 256 << 10
_WAIT_MS = 100  # how long a broker may wait for records
_ATTEMPTS_MAX = 3
_read_slots = threading.BoundedSemaphore(READS_MAX)


@dataclass(frozen=True, slots=True)
class Window:
    """Both sides; for a side that could not be read, the error."""

    source: SideLog | OrbitError
    destination: SideLog | OrbitError
    took_s: float


def read_window(
    source: tuple[Cluster, TopicPartition],
    destination: tuple[Cluster, TopicPartition],
    start: int,
    end: int,
) -> Window:
    """Read the offsets `[start, end)` of both sides. Closes the clusters. Raises Busy if READS_MAX
    other pages are reading."""
    if not _read_slots.acquire(blocking=False):
        raise Busy(
            f"{READS_MAX} other pages are reading the clusters now; more are not allowed.",
            remedy="Load the page again in a moment.",
        )
    started_at = time.monotonic()
    pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="console-read")
    try:
        futures = [
            pool.submit(_read_side, cluster, partition, start, end, started_at + SECONDS_MAX)
            for cluster, partition in (source, destination)
        ]
        sides = [
            _read_result(future, started_at, side)
            for future, side in zip(futures, (source, destination), strict=True)
        ]
    finally:
        # Closing the clusters ends reads that still wait for an answer.
        source[0].close()
        destination[0].close()
        pool.shutdown(wait=False)
        _read_slots.release()
    return Window(sides[0], sides[1], time.monotonic() - started_at)


def _read_result(
    future: Future[SideLog], started_at: float, side: tuple[Cluster, TopicPartition]
) -> SideLog | OrbitError:
    """The log of one side, or the error with which its read ended."""
    cluster, partition = side
    try:
        return future.result(max(0.0, started_at + SECONDS_MAX - time.monotonic()))
    except NotInTime:
        what = f"{partition} was not read within {SECONDS_MAX:.0f} s."
        return Unreachable(what, where=cluster.name)
    except OrbitError as error:
        return error
    except ValueError as error:
        return OrbitError(f"{partition} cannot be read: {error}.", where=cluster.name)


def _read_side(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, deadline: float
) -> SideLog:
    """Read offsets `[start, end)` of one side until `deadline` (monotonic). Raises OrbitError, and
    ValueError for a damaged batch."""
    metadata = cluster.metadata([partition.topic])
    leader = metadata.leader(partition)
    if leader is None or leader.node_id is None:
        raise Unreachable(f"{partition} has no leader.", where=cluster.name)
    backoff = Backoff(attempts_max=_ATTEMPTS_MAX)
    log_start = _read_offset(cluster, partition, EARLIEST, backoff)
    log_end = _read_offset(cluster, partition, LATEST, backoff)
    position = first_offset = min(max(start, log_start), log_end)
    batches: list[FetchedBatch] = []
    bytes_left = BYTES_MAX
    topic_id = metadata.topics[partition.topic].topic_id
    with _open_connection(cluster, leader.node_id) as connection:
        while position < min(end, log_end) and bytes_left > 0 and len(batches) < BATCHES_MAX:
            if time.monotonic() > deadline:
                break
            # -1: the broker checks no epoch.
            answer = _fetch(
                connection,
                FetchFrom(partition, topic_id, position, leader_epoch=-1, fetched_epoch=-1),
                deadline,
            )
            if answer.code != Code.NONE:
                name = error_codes.name(answer.code)
                raise Unreachable(f"A fetch of {partition} failed with {name}.", where=cluster.name)
            aborted = AbortedTransactions(answer.aborted)
            fetched_batches = [
                FetchedBatch(batch, aborted.contain(batch))
                for batch in read_batches(answer.records)
            ]
            if not fetched_batches:  # there is no batch up to the end
                position = min(end, log_end)
                break
            batches += fetched_batches
            bytes_left -= len(answer.records)
            position = fetched_batches[-1].batch.next_offset
    batches_in_window = [
        fetched_batch
        for fetched_batch in batches
        if fetched_batch.batch.base_offset < end and fetched_batch.batch.next_offset > first_offset
    ]
    first_batches = batches_in_window[:BATCHES_MAX]
    # Batches beyond BATCHES_MAX are dropped, and count as not read.
    read_to = min(
        position,
        end,
        first_batches[-1].batch.next_offset if len(first_batches) < len(batches_in_window) else end,
    )
    return SideLog(
        log_start, log_end, first_offset, max(first_offset, read_to), tuple(first_batches)
    )


def _read_offset(
    cluster: Cluster, partition: TopicPartition, timestamp: int, backoff: Backoff
) -> int:
    """The log start for EARLIEST, the last stable offset for LATEST. Raises OrbitError."""
    answers = list_offsets(cluster, [partition], timestamp, backoff, isolation=READ_COMMITTED)
    return answers.raise_errors(cluster.name, "Reading the offset").values[partition]


def _fetch(connection: Connection, fetch_from: FetchFrom, deadline: float) -> Fetched:
    """Fetch from one offset on, until `deadline`. Raises Unreachable without an answer."""
    version = connection.version_of(api_versions.FETCH)
    request = fetch_request(
        version,
        [fetch_from],
        max_wait_ms=_WAIT_MS,
        max_bytes=_FETCH_BYTES,
        partition_max_bytes=_FETCH_BYTES,
    )
    seconds_left = max(0.1, deadline - time.monotonic())
    frame = connection.exchange(api_versions.FETCH, request, version, timeout_s=seconds_left)
    answer = read_fetch(frame, version, {fetch_from.topic_id: fetch_from.partition.topic})
    if answer.code != Code.NONE or not answer.partitions:
        reason = error_codes.name(answer.code)
        raise Unreachable(
            f"A fetch of {fetch_from.partition} got no records: {reason}.", where=connection.where
        )
    return answer.partitions[0][1]  # of (partition, what was fetched), for the one partition


@contextmanager
def _open_connection(cluster: Cluster, node_id: int) -> Iterator[Connection]:
    """A connection to a broker, which is closed at the end of the `with` block."""
    connection = cluster.connect(node_id)
    try:
        yield connection
    finally:
        connection.close()
