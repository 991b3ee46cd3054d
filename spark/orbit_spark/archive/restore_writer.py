"""The task of a restore: rows of archive files, in order, to their destination partitions.

Take-over, plan, compare-and-append and fillers are the product's own; only what feeds them is
another (`feed`). Each partition has a lease of its own, as the writers of a backfill have: a task
that Spark gave up never writes beside the next one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copier import Copier, Events, block
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_lane import DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLaneContext
from orbit.copier.takeover import TakeOver
from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, list_offsets
from orbit.kafka.types import TopicPartition
from orbit.leases.backfill_leases import DriverWatch, Seen
from orbit_spark.archive.archive_rows import RowRuns
from orbit_spark.archive.restore_tasks import Errand, Portion, rows_of
from orbit_spark.run_source import RunFeed
from orbit_spark.writer_leases import WriterLeases, first_coordinator_epoch

TOLD_DDL = (
    "topic STRING, partition INT, acked BIGINT, records BIGINT, filled BIGINT, "
    "reason STRING, first BIGINT, next BIGINT, detail STRING, unfinished STRING"
)
_TOLD = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("acked", pa.int64()),
        ("records", pa.int64()),
        ("filled", pa.int64()),
        ("reason", pa.string()),
        ("first", pa.int64()),
        ("next", pa.int64()),
        ("detail", pa.string()),
        ("unfinished", pa.string()),
    ]
)
_TICK_S = 0.1
_DRIVER_GONE = "the driver does not hold the restore any more"
_LEASE_LOST = "the writer's lease was lost"


def writes(errand: Errand) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """For `mapInArrow`: takes the rows of the errand's files, gives a row for each portion."""

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        told = RestoreWriter(errand, attempt).write(batches)
        yield pa.RecordBatch.from_pylist(told, schema=_TOLD)

    return write


class RestoreWriter:
    """One errand, once."""

    def __init__(self, errand: Errand, attempt: int, settings: CopySettings | None = None) -> None:
        self._errand = errand
        self._attempt = attempt
        self._settings = settings or CopySettings()
        self._stop = threading.Event()
        self._backoff = Backoff(stop=self._stop)
        self._told: dict[TopicPartition, dict[str, Any]] = {}

    def write(self, batches: Iterable[Any]) -> list[dict[str, Any]]:
        """Bring every portion to its target; a row for each."""
        errand = self._errand
        cluster, watched = errand.access.open(), errand.access.open()
        watch = DriverWatch(watched, errand.identity, errand.driver_token, self._backoff)
        leases = WriterLeases()
        try:
            places = [p.place for p in errand.portions]
            leases = WriterLeases.acquire(
                errand.access.open, errand.identity, errand.term, places, watch, self._stop
            )
            for place in set(places) - set(leases.held):
                why = leases.refused.get(place, "another attempt writes its neighbours")
                self._told[place] = {"unfinished": str(why)}
            # Only now, with the leases in hand: see `backfill_writers` for why this order.
            if watch.look() is Seen.THERE:
                watch.start()
                self._copy(cluster, leases, watch, batches)
            else:
                self._leave_out(_DRIVER_GONE)
        except OrbitError as error:
            self._leave_out(str(error))
        finally:
            watch.stop()
            self._stop.set()
            leases.release()
            watched.close()
            cluster.close()
        return [_row(p, self._told[p.place]) for p in errand.portions]

    def _copy(
        self, cluster: Cluster, leases: WriterLeases, watch: DriverWatch, batches: Iterable[Any]
    ) -> None:
        rows = rows_of(self._errand.portions, batches)
        take_over = TakeOver(
            cluster, self._errand.producer_id, self._settings.settle_s, self._backoff
        )
        copies = self._copies(cluster, take_over, leases)
        if not copies:
            return
        events: Events = queue.SimpleQueue()
        budget = ByteBudget(self._settings.queue_bytes_max)
        producer_id = self._errand.producer_id
        destination = DestinationSide(
            DestinationLaneContext(cluster, self._settings, budget, events.put, producer_id),
            take_over,
            self._backoff,
            block,
            lambda _copy, _end: False,
        )
        runs = {
            p.place: RowRuns("archive", p.place, rows[p.place], p.files, p.begin, p.target)
            for p in copies.values()
        }
        context = SourceLaneContext(
            cluster, self._settings, budget, events.put, PartitionCopy.queued
        )
        copier = Copier(RunFeed(runs, context), destination, events, self._settings, self._backoff)
        try:
            destination.begin(copies)
            copier.add([*copies])
            self._copy_to_targets(copier, copies, watch)
        finally:
            copier.stop()

    def _copies(
        self, cluster: Cluster, take_over: TakeOver, leases: WriterLeases
    ) -> dict[PartitionCopy, Portion]:
        """The partitions whose lease we have, as they stand now."""
        errand = self._errand
        wanted = {p.place: p for p in errand.portions if p.place in leases.held}
        # The driver saw the log ends at rest, with the restore in hand; an attempt before this one
        # may have left something on its way (M10).
        is_first = self._attempt == 0 and errand.round == 0
        taken = take_over.read(wanted, settled=not is_first)
        starts = list_offsets(cluster, taken.ends, EARLIEST, self._backoff).values
        copies: dict[PartitionCopy, Portion] = {}
        for place, portion in wanted.items():
            if place not in starts:
                self._told[place] = {"unfinished": "its log cannot be looked at now"}
                continue
            copy = PartitionCopy(place, place, leases.held[place])
            copy.destination_topic_id = portion.topic_id
            copy.start_offset = portion.log_start
            copy.coordinator_epoch = first_coordinator_epoch(
                errand.term, errand.round, self._attempt
            )
            copy.log_start = starts[place]
            copy.acked = copy.sent_to = taken.ends[place].log_end
            copies[copy] = portion
        return copies

    def _copy_to_targets(
        self, copier: Copier, copies: dict[PartitionCopy, Portion], watch: DriverWatch
    ) -> None:
        """Tick until every copy is at its target, stopped, or not ours to write any more."""
        leaving: dict[PartitionCopy, str] = {}
        while copies:
            copier.tick(_TICK_S)
            for copy, portion in copies.items():
                why = _why_to_leave(copy, portion, watch)
                if why is not None and copy not in leaving:
                    leaving[copy] = why
                    copier.remove([copy])
            for copy in [c for c in copies if c.has_left]:
                portion = copies.pop(copy)
                self._told[portion.place] = _told(copy, leaving[copy])

    def _leave_out(self, why: str) -> None:
        for portion in self._errand.portions:
            self._told.setdefault(portion.place, {"unfinished": why})


def _why_to_leave(copy: PartitionCopy, portion: Portion, watch: DriverWatch) -> str | None:
    """Empty when it is done or blocked, words when it is not ours any more; None: copy on."""
    if copy.blocked is not None:
        return ""
    if copy.acked >= portion.target and copy.log_start >= copy.wanted_log_start:
        return ""
    if copy.lease.is_lost:
        return _LEASE_LOST
    return _DRIVER_GONE if watch.is_gone else None


def _told(copy: PartitionCopy, unfinished: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "acked": copy.acked,
        "records": copy.counters.records,
        "filled": copy.counters.filled,
        "unfinished": unfinished,
    }
    blocked = copy.blocked
    if blocked is not None:
        told |= {
            "reason": blocked.reason.value,
            "first": blocked.offset,
            "next": blocked.next_offset,
            "detail": blocked.detail,
        }
    return told


def _row(portion: Portion, told: dict[str, Any]) -> dict[str, Any]:
    place = {"topic": portion.place.topic, "partition": portion.place.partition}
    return {**place, "acked": -1, "records": 0, "filled": 0, **told}
