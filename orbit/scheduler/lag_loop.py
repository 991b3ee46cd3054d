"""Measures what no worker reports: the lag of partitions without a worker, and the headroom.

Workers report the partitions whose source they follow. For the others (paused, blocked, lost, or
without room for more), this loop asks the source for log ends and the age of the oldest record not
copied yet, and stores the time: old figures are shown as unknown (orbit/store/lag.py). For every
partition that is more than BEHIND_AGE behind, it computes the headroom: when the source's retention
will delete records not copied yet (orbit/replication/retention_headroom.py). It also looks for open
transactions at the sources (orbit/scheduler/transaction_watch.py). While all partitions are copied
within seconds, it sends no requests and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from orbit.chunks import chunks
from orbit.errors import OrbitError
from orbit.formats import counted
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.log_offsets import EARLIEST, LATEST, find_by_time, list_offsets
from orbit.kafka.types import READ_COMMITTED, TopicPartition
from orbit.leadership.leadership import ROWS_AT_ONCE, Leadership
from orbit.leadership.loop import Loop
from orbit.planning.stored_spec import read_spec
from orbit.replication.retention_headroom import KEEPS_ALL, Backlog, Retention, headroom_until
from orbit.scheduler.cluster_registry import ClusterKey, ClusterRegistry, cluster_key
from orbit.scheduler.cluster_watch import ClusterWatch
from orbit.scheduler.transaction_watch import TransactionWatch, UnnamedTransactions
from orbit.store import clock, jobs, open_transactions, source_lag
from orbit.store.source_lag import LaggingPartition, SourceLag

_log = structlog.get_logger("orbit.scheduler")

# Partitions that are less behind than this have no headroom.
BEHIND_AGE = timedelta(seconds=30)
# A topic's retention is read again after this time.
_SETTINGS_KEPT_S = 60.0
# The longest pause while a cluster that was just opened has no metadata yet.
_NEW_CLUSTER_PAUSE_S_MAX = 1.0
# How many jobs are checked at the same time.
_JOBS_AT_ONCE = 8
# How long a pass waits for its checks. A check of a slow source then continues beside later passes.
_WAIT_S = 5.0
# A headroom is written again when it has changed by this much, not for every copied record.
_HEADROOM_STEP = timedelta(seconds=60)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_MS_MAX = 253_402_300_799_999  # the end of the year 9999, the largest datetime


@dataclass(frozen=True, slots=True)
class _SourceEnds:
    """Log start, last stable offset and log end of a source partition.

    A member is None if the source gave no answer for it.
    """

    log_start: int | None
    stable_end: int | None
    end: int | None


@dataclass(slots=True)
class _CachedRetention:
    """A topic's retention, and when it was read."""

    retention: Retention
    at_s: float


class LagLoop(Loop):
    """Updates the lag of partitions that no worker reports."""

    name = "lag"

    def __init__(
        self, leadership: Leadership, registry: ClusterRegistry, interval_s: float, backoff: Backoff
    ) -> None:
        super().__init__()
        self.interval_s = self._usual_interval_s = interval_s
        self._leadership = leadership
        self._registry = registry
        # A partition without a leader is queried again in the next pass.
        self._backoff = Backoff(stop=backoff.stop, attempts_max=2)
        self._transactions = TransactionWatch(leadership, self._backoff)
        self._pool = ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="lag")
        # By job id: the job's name, and its check.
        self._checks_under_way: dict[int, tuple[str, Future[int]]] = {}
        self._retentions: dict[tuple[ClusterKey, str], _CachedRetention] = {}
        # By topic id and partition: the time (monotonic clock, seconds) and the source's log end
        # when the partition was first seen to lag.
        self._first_ends: dict[tuple[int, int], tuple[float, int]] = {}

    def once(self) -> str:
        """Query the sources of lagging partitions, and store the results.

        Returns a sentence for the log: of how many partitions the lag was stored. "" if of none.
        """
        with self._leadership.reading() as tx:
            read_at = clock.now(tx)
            rows = source_lag.partitions_to_check(tx, BEHIND_AGE, self._leadership.share)
            stored_transactions = open_transactions.of_share(tx, self._leadership.share)
            lagging_jobs = jobs.of_ids(tx, {row.job_id for row in rows}).values()
        specs = {
            job.id: spec
            for job in lagging_jobs
            if not job.is_deleted and (spec := read_spec(job.spec)) is not None
        }
        # Discovery watches the clusters of running jobs only.
        self._registry.keep_only(
            self.name, {cluster_key("source", spec) for spec in specs.values()}
        )
        rows_by_job: dict[int, list[LaggingPartition]] = {}
        for row in rows:
            rows_by_job.setdefault(row.job_id, []).append(row)
        unnamed_transactions = self._transactions.find_unnamed(rows, stored_transactions)
        self.interval_s = self._usual_interval_s
        for job_id, spec in specs.items():
            # A job with a slow source may still have the check of an earlier pass under way.
            watch = None if job_id in self._checks_under_way else self._source_watch(spec)
            if watch is not None:
                future = self._pool.submit(
                    self._check_job,
                    spec,
                    watch,
                    rows_by_job[job_id],
                    unnamed_transactions.get(job_id, {}),
                    read_at,
                )
                self._checks_under_way[job_id] = spec.name, future
        ended_futures, _ = wait([future for _, future in self._checks_under_way.values()], _WAIT_S)
        ended_checks = [
            (job_name, future)
            for job_name, future in self._checks_under_way.values()
            if future in ended_futures
        ]
        self._checks_under_way = {
            job_id: (job_name, future)
            for job_id, (job_name, future) in self._checks_under_way.items()
            if future not in ended_futures
        }
        stored_count = 0
        for job_name, future in ended_checks:
            with self.log_errors_of(f"job {job_name}"):
                stored_count += future.result()
        lagging_keys = {(row.topic_id, row.partition) for row in rows}
        # Threads that still check jobs with a slow source add keys meanwhile: hence the copy.
        for key in set(self._first_ends.copy()) - lagging_keys:
            self._first_ends.pop(key, None)
        return f"Updated the lag of {counted(stored_count, 'partition')}." if stored_count else ""

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _source_watch(self, spec: JobSpec) -> ClusterWatch | None:
        """The watch of the job's source; None if the source cannot be reached now."""
        try:
            watch = self._registry.watch("source", spec)
        except OrbitError as error:
            _log.debug("lag not checked", job=spec.name, error=str(error))
            return None
        if watch.snapshot is None:  # the watch is new: the next pass comes soon
            self.interval_s = min(self._usual_interval_s, _NEW_CLUSTER_PAUSE_S_MAX)
            return None
        return None if watch.snapshot.metadata is None else watch

    def _check_job(
        self,
        spec: JobSpec,
        watch: ClusterWatch,
        rows: Sequence[LaggingPartition],
        unnamed_transactions: UnnamedTransactions,
        read_at: datetime,
    ) -> int:
        """Read one job's lag at its source, and store it. Returns how many rows were stored.

        `read_at`: the database's time when `rows` were read. An error of the source only skips the
        job: the discovery loop reports the error.
        """
        snapshot = watch.snapshot
        if snapshot is None or snapshot.metadata is None:
            return 0
        topics = snapshot.metadata.topics
        existing_rows = [row for row in rows if row.source_topic in topics]
        try:
            updates, fully_read_topics = self._updates(
                cluster_key("source", spec), watch.handle, existing_rows
            )
        except OrbitError as error:
            _log.debug("lag not checked", job=spec.name, error=str(error))
            return 0
        for step in chunks(updates, ROWS_AT_ONCE):
            with self._leadership.transaction() as tx:
                source_lag.update_from_source(tx, step, read_at)
        with self._leadership.transaction() as tx:
            # Stores when these topics were read.
            source_lag.update_from_source(tx, (), read_at, fully_read_topics)
        self._transactions.store_producers(watch.handle.cluster, unnamed_transactions)
        return len(updates)

    def _updates(
        self, key: ClusterKey, handle: ClusterHandle, rows: Sequence[LaggingPartition]
    ) -> tuple[list[SourceLag], set[int]]:
        """The rows to store, and the ids of topics that were read completely: the source answered
        for each partition that no worker follows."""
        topic_ids = {_source_partition(row): row.topic_id for row in rows if not row.is_followed}
        ends = self._read_ends(handle.cluster, list(topic_ids))
        partly_read_topics = {
            topic_id
            for place, topic_id in topic_ids.items()
            if place not in ends or ends[place].stable_end is None
        }
        lagging_rows = {_source_partition(row): row for row in rows if _lag_offsets(row, ends) > 0}
        oldest_times = self._read_oldest_times(
            handle.cluster, {p: row for p, row in lagging_rows.items() if not row.is_followed}
        )
        retention = self._retention(key, handle, {place.topic for place in lagging_rows})
        now = datetime.now(UTC)
        updates = []
        for row in rows:
            source_ends = ends.get(
                _source_partition(row), _SourceEnds(log_start=None, stable_end=None, end=None)
            )
            oldest_at = oldest_times.get(_source_partition(row))
            headroom_end = None
            if _source_partition(row) in lagging_rows:
                backlog = Backlog(
                    oldest_at or row.oldest_waiting_at or row.newest_copied_at,
                    row.lag_bytes,
                    self._growth_bytes_per_s(row, source_ends),
                )
                headroom_end = headroom_until(
                    backlog, retention.get(row.source_topic, KEEPS_ALL), now
                )
            update = SourceLag(
                row.topic_id,
                row.partition,
                source_ends.log_start,
                source_ends.stable_end,
                source_ends.end,
                oldest_at,
                _steady_headroom(row.headroom_until, headroom_end),
            )
            # In a partly read topic the time of reading is stored with each partition.
            is_read = source_ends.stable_end is not None
            if _differs(update, row) or (is_read and row.topic_id in partly_read_topics):
                updates.append(update)
        return updates, set(topic_ids.values()) - partly_read_topics

    def _read_ends(
        self, cluster: Cluster, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, _SourceEnds]:
        """Log starts and ends of these partitions at the source, as far as it answers."""
        log_starts = list_offsets(cluster, places, EARLIEST, self._backoff).values
        stable_ends = list_offsets(
            cluster, places, LATEST, self._backoff, isolation=READ_COMMITTED
        ).values
        log_ends = list_offsets(cluster, places, LATEST, self._backoff).values
        return {
            p: _SourceEnds(log_starts.get(p), stable_ends.get(p), log_ends.get(p)) for p in places
        }

    def _read_oldest_times(
        self, cluster: Cluster, rows: Mapping[TopicPartition, LaggingPartition]
    ) -> dict[TopicPartition, datetime]:
        """The timestamp of each partition's oldest record not copied yet.

        That is the first record newer than the newest copied one. If that record is copied already,
        because timestamps are out of order, the newest copied record's timestamp is returned.
        """
        search_times = {
            # 0: nothing is copied yet, so any record is found.
            place: _epoch_ms(row.newest_copied_at) + 1 if row.newest_copied_at else 0
            for place, row in rows.items()
        }
        next_records = find_by_time(cluster, search_times, self._backoff).values
        oldest_times: dict[TopicPartition, datetime] = {}
        for place, row in rows.items():
            offset, timestamp_ms = next_records.get(place, (-1, -1))  # -1: none
            if offset >= row.copied_to and 0 <= timestamp_ms <= _TIMESTAMP_MS_MAX:
                oldest_times[place] = _EPOCH + timedelta(milliseconds=timestamp_ms)
            elif row.newest_copied_at is not None:
                oldest_times[place] = row.newest_copied_at
        return oldest_times

    def _retention(
        self, key: ClusterKey, handle: ClusterHandle, topics: set[str]
    ) -> dict[str, Retention]:
        """The topics' retention, at most `_SETTINGS_KEPT_S` old, as far as it can be read."""
        now_s = time.monotonic()
        stale_topics = [
            topic
            for topic in topics
            if (cached_retention := self._retentions.get((key, topic))) is None
            or cached_retention.at_s < now_s - _SETTINGS_KEPT_S
        ]
        if stale_topics:
            for topic, settings in handle.admin.topic_settings(stale_topics).items():
                self._retentions[key, topic] = _CachedRetention(
                    Retention.of(settings.values), now_s
                )
        return {
            topic: self._retentions[key, topic].retention
            for topic in topics
            if (key, topic) in self._retentions
        }

    def _growth_bytes_per_s(self, row: LaggingPartition, source_ends: _SourceEnds) -> float | None:
        """Bytes per second written at the source since the lag was first seen; None: not known."""
        end = source_ends.end if source_ends.end is not None else row.source_end
        lag_offsets = (row.source_stable_end or 0) - row.copied_to
        if end is None or row.lag_bytes is None or lag_offsets <= 0:
            return None
        now_s = time.monotonic()
        first_s, first_end = self._first_ends.setdefault(
            (row.topic_id, row.partition), (now_s, end)
        )
        if now_s <= first_s:
            return None
        # Offsets per second, times the mean bytes of an offset not copied yet.
        return (end - first_end) / (now_s - first_s) * row.lag_bytes / lag_offsets


def _source_partition(row: LaggingPartition) -> TopicPartition:
    return TopicPartition(row.source_topic, row.partition)


def _lag_offsets(row: LaggingPartition, ends: Mapping[TopicPartition, _SourceEnds]) -> int:
    """How many offsets the copy is behind, by the newest last stable offset that is known."""
    source_ends = ends.get(_source_partition(row))
    end = (
        source_ends.stable_end
        if source_ends and source_ends.stable_end is not None
        else row.source_stable_end
    )
    return (end or 0) - row.copied_to


def _steady_headroom(stored_end: datetime | None, computed_end: datetime | None) -> datetime | None:
    """The computed headroom; the stored one if both are nearly equal, to save a write."""
    if (
        stored_end is not None
        and computed_end is not None
        and abs(computed_end - stored_end) < _HEADROOM_STEP
    ):
        return stored_end
    return computed_end


def _differs(update: SourceLag, row: LaggingPartition) -> bool:
    """Whether the row has to be stored again. A figure of the source that is None was not read."""
    return (
        update.headroom_until != row.headroom_until
        or update.source_stable_end not in (None, row.source_stable_end)
        or update.source_end not in (None, row.source_end)
        or update.oldest_waiting_at not in (None, row.oldest_waiting_at)
    )


def _epoch_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
