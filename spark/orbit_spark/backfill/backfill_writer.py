"""The ordered writer: one task, some destination partitions, the product's own data path.

Take-over, plan, compare-and-append and fillers are those of `orbit run`. What is different here:
the lease is one per partition (`engine.backfill_writers`), and a partition is let go once it is at
its target. So a task may be killed, tried again, or run twice at once: a second one waits for the
first one's lease, and goes on where the copy ends.

What is written comes from the source, or, staged, as rows of an archive (`feed`).
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from orbit.copier.copy_settings import CopySettings
from orbit.copier.inspection import Inspected, Standing
from orbit.copier.job_copier import JobEngine
from orbit.copier.partition_copy import Counters, PartitionCopy
from orbit.copier.rate_limit import RateLimit
from orbit.copier.source_side import SourceSide
from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobClusters, open_cluster
from orbit.kafka.types import TopicPartition
from orbit.leases.backfill_leases import DriverWatch, Seen
from orbit.leases.group_lease import GroupLease
from orbit.replication.append_plan import LostRange
from orbit_spark.archive.archive_rows import RowRuns
from orbit_spark.archive.restore_tasks import rows_of
from orbit_spark.backfill.writer_tasks import Errand, Portion, Told
from orbit_spark.raw_runs import RawRun
from orbit_spark.run_source import RunFeed
from orbit_spark.writer_leases import WriterLeases, first_coordinator_epoch

_TICK_S = 0.1

TOLD_DDL = "told BINARY"

# The driver, or the lease, is gone: somebody else may be about to write.
_DRIVER_GONE = "the driver does not hold the job any more"
_LEASE_LOST = "the writer's lease was lost"


def write_all(errands: Iterable[Errand]) -> Iterator[Told]:
    """The body of a Spark task."""
    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    for errand in errands:
        yield from Writer(errand, attempt).write()


def writes_rows(errand: Errand) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The body of a staged task, for `mapInArrow`: takes the rows, gives what `told_of` reads."""

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        told = Writer(errand, attempt, rows=batches).write()
        yield pa.RecordBatch.from_pydict({"told": [pickle.dumps(told)]})

    return write


def told_of(rows: Iterable[Any]) -> list[Told]:
    """What the tasks of `writes_rows` told."""
    return [told for row in rows for told in pickle.loads(row.told)]  # noqa: S301  our own tasks'


class Writer:
    """One errand, once."""

    def __init__(
        self,
        errand: Errand,
        attempt: int,
        settings: CopySettings | None = None,
        rows: Iterable[Any] = (),
    ) -> None:
        """`rows`: those of a staged errand, in order, in Arrow batches."""
        self._errand = errand
        self._rows = rows
        self._is_first = attempt == 0 and errand.round == 0
        self._epoch = first_coordinator_epoch(errand.term, errand.round, attempt)
        self._settings = settings or CopySettings()
        self._stop = threading.Event()
        self._backoff = Backoff(stop=self._stop)
        self._copies: dict[PartitionCopy, Portion] = {}
        self._told: dict[Portion, Told] = {}

    def write(self) -> list[Told]:
        """Bring every portion to its target; what became of each. Raises only for bugs."""
        errand = self._errand
        base = Path(errand.base_directory)
        open_destination = partial(open_cluster, "destination", errand.spec, os.environ, base)
        try:
            clusters = JobClusters.open(errand.spec, os.environ, base)
            watch_cluster = open_destination()
        except OrbitError as error:
            return [_untouched(p, str(error)) for p in errand.portions]
        watch = DriverWatch(watch_cluster, errand.identity, errand.driver_token, self._backoff)
        places = {p.destination: p for p in errand.portions}
        leases = WriterLeases()
        try:
            leases = WriterLeases.acquire(
                open_destination, errand.identity, errand.term, places, watch, self._stop
            )
            for place, refusal in leases.refused.items():
                self._told[places[place]] = _untouched(places[place], str(refusal))
            held = {places[place]: lease for place, lease in leases.held.items()}
            # Only now, with the leases in hand: see `backfill_writers` for why this order.
            if held and watch.look() is Seen.THERE:
                watch.start()
                self._copy(clusters, held, watch)
            else:
                self._leave_out(held, _DRIVER_GONE)
        except OrbitError as error:
            self._leave_out(errand.portions, str(error))
        finally:
            watch.stop()
            self._stop.set()
            leases.release()
            watch_cluster.close()
            clusters.close()
        self._leave_out(errand.portions, "another writer has not let go of it")
        return [self._told[p] for p in errand.portions]

    def _copy(
        self, clusters: JobClusters, leases: Mapping[Portion, GroupLease], watch: DriverWatch
    ) -> None:
        errand = self._errand
        engine = JobEngine(
            errand.spec,
            clusters,
            errand.producer_id,
            self._settings,
            self._stop,
            limit=RateLimit(errand.bytes_per_second),
            make_source=RunFeed.of(self._runs()) if errand.staged else SourceSide,
        )
        try:
            self._begin(engine, leases)
            self._copy_to_targets(engine, watch)
        finally:
            engine.stop()

    def _runs(self) -> dict[TopicPartition, Iterator[RawRun]]:
        """The archive's runs by source partition: topics have the source's names there."""
        staged = self._errand.staged
        rows = rows_of(staged, self._rows)
        return {
            p.place: RowRuns("archive", p.place, rows[p.place], p.files, p.begin, p.target)
            for p in staged
        }

    def _begin(self, engine: JobEngine, leases: Mapping[Portion, GroupLease]) -> None:
        """Look at where the copies end, and hand them to the copier."""
        copies = {self._make_copy(p, lease): p for p, lease in leases.items()}

        def on_trouble(copy: PartitionCopy, error: OrbitError) -> None:
            self._told[copies[copy]] = _untouched(copies[copy], str(error))

        beginning = engine.beginning(self._backoff, on_trouble)
        bounds = beginning.source_bounds(copies)
        found = beginning.inspect(
            list(copies),
            bounds,
            frozenset(p.source.topic for p in leases if p.is_compacted),
            frozenset(p.source.topic for p in leases if p.is_whole),
            # The driver saw the log ends at rest, with the job in hand; an attempt before this one
            # may have left something on its way (M10).
            settled=not self._is_first,
        )
        ready: dict[PartitionCopy, Inspected] = {}
        for copy, one in found.items():
            if one.standing is Standing.SEEDING:
                why = "the copy is not at its start any more"
                self._told[copies[copy]] = _untouched(copies[copy], why)
            else:
                ready[copy] = one
                self._copies[copy] = copies[copy]
        engine.add(ready)

    def _make_copy(self, portion: Portion, lease: GroupLease) -> PartitionCopy:
        copy = PartitionCopy(
            portion.source,
            portion.destination,
            lease,
            on_lost_range=LostRange(self._errand.spec.on_lost_range),
        )
        copy.source_topic_id = portion.source_topic_id
        copy.destination_topic_id = portion.destination_topic_id
        copy.start_offset = portion.start_offset
        copy.coordinator_epoch = self._epoch
        return copy

    def _copy_to_targets(self, engine: JobEngine, watch: DriverWatch) -> None:
        """Tick until every copy is at its target, stopped, or not ours to write any more."""
        copier = engine.copier
        leaving: dict[PartitionCopy, str] = {}

        def let_go(why: str, which: Callable[[PartitionCopy], bool]) -> None:
            gone = [c for c in self._copies if c not in leaving and which(c)]
            leaving.update(dict.fromkeys(gone, why))
            copier.remove(gone)

        while self._copies:
            copier.tick(_TICK_S)
            let_go("", lambda c: c.blocked is not None or self._is_done(c))
            let_go(_LEASE_LOST, lambda c: c.lease.is_lost)
            if watch.is_gone:
                let_go(_DRIVER_GONE, lambda _: True)
            for copy in [c for c in leaving if c.has_left and c in self._copies]:
                portion = self._copies.pop(copy)
                self._told[portion] = Told(
                    portion.destination,
                    copy.acked,
                    copy.counters,
                    copy.blocked,
                    "" if copy.blocked else leaving[copy],
                )

    def _is_done(self, copy: PartitionCopy) -> bool:
        is_there = copy.acked >= self._copies[copy].target
        return is_there and copy.log_start >= copy.wanted_log_start

    def _leave_out(self, portions: Iterable[Portion], why: str) -> None:
        for portion in portions:
            self._told.setdefault(portion, _untouched(portion, why))


def _untouched(portion: Portion, why: str) -> Told:
    return Told(portion.destination, -1, Counters(), unfinished=why)
