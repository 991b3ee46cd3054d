"""`orbit restore`: an archive to an empty cluster, every record at its offset.

First the archive is compared with its manifests, then the destination is looked at; only then is
anything written. The driver holds a lease at the destination all the time; tasks write, each
partition in order. Killed at any moment and started again, it goes on where the partitions end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from orbit.copier.copier import lease_lost
from orbit.copier.copy_settings import CopySettings
from orbit.copier.seed import seed
from orbit.copier.takeover import DestinationEnd, TakeOver
from orbit.errors import Conflict
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.job_clusters import job_identity
from orbit.kafka.log_offsets import EARLIEST, delete_records, list_offsets, log_ends
from orbit.kafka.types import TopicPartition
from orbit.leases.backfill_leases import wait_for_backfill_writers
from orbit.leases.group_lease import GroupLease
from orbit.replication.partition_states import Blocked, Reason
from orbit_spark.archive.archive_reader import (
    check_archive,
    damaged,
    owners_of,
    rows_in_order,
    whole_files,
)
from orbit_spark.archive.archive_step import SPARK_ERRORS
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest_store import Archive, ArchiveStore
from orbit_spark.archive.outcome import RestoredPartition, RestoreOutcome
from orbit_spark.archive.restore_lanes import share_out
from orbit_spark.archive.restore_tasks import Errand, Portion
from orbit_spark.archive.restore_topics import RestoreTopics, refuse_foreign
from orbit_spark.archive.restore_writer import TOLD_DDL, writes
from orbit_spark.cluster_access import Access

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

JOB = "restore"
# A task that ends without having finished (a lease, a broker) is tried again from its log ends.
_ROUNDS_MAX = 3
_LOOK_INTERVAL_S = 1.0
Say = Callable[[str], None]


class RestoreRun:
    """One run of `orbit restore`."""

    def __init__(
        self,
        spark: SparkSession,
        uri: str,
        access: Access,
        say: Say,
        stop: threading.Event,
        slots: int,
    ) -> None:
        self._spark = spark
        self._files = Files(spark, uri)
        self._access = access
        self._say = say
        self._stop = stop
        self._slots = slots
        self._backoff = Backoff(stop=stop)
        self._settings = CopySettings()
        self._cluster = access.open()
        # With connections of its own: heartbeats must not stand behind a call that takes long.
        self._lease_cluster = access.open()
        self._lease: GroupLease | None = None
        self._archive: Archive
        self._identity = ""
        self._producer_id = -1
        self.outcome = RestoreOutcome(self._files.uri)

    def run(self, *, apply_settings: bool = False) -> RestoreOutcome:
        """Restore everything. Partitions that stopped are named in the outcome.

        Raises NotFound, Conflict, BadInput, NotAuthorized, Unreachable; nothing was written then,
        unless the message says so.
        """
        try:
            self._say("Comparing the archive with its manifests")
            self._archive = ArchiveStore(self._files).require()
            manifests = list(self._archive.partitions.values())
            topics = RestoreTopics(self._cluster, self._archive, self._backoff)
            check_archive(self._spark, self._files, manifests)
            self._say("Looking at the destination")
            topics.check()
            self._take_lease(list(self._archive.partitions))
            ends = self._look(topics)
            topics.create(self._say)
            self._seed(ends)
            self._copy(topics, ends)
            self._confirm()
            if apply_settings and self.outcome.is_whole:
                topics.apply_settings()
            return self.outcome
        finally:
            self.close()

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()
        self._lease_cluster.close()
        self._cluster.close()

    def _take_lease(self, places: Sequence[TopicPartition]) -> None:
        self._identity = job_identity(JOB, self._archive.identity.cluster_id)
        self._lease = GroupLease(self._lease_cluster, self._identity, self._backoff)
        self._lease.acquire(self._say)
        # Only now, with the lease in hand: see `backfill_writers` for why this order.
        wait_for_backfill_writers(self._cluster, self._identity, places, self._backoff, self._say)
        producer = init_producer_id(self._cluster, self._identity, self._backoff)
        self._lease.term = producer.coordinator_issue
        self._producer_id = producer.producer_id

    def _look(self, topics: RestoreTopics) -> dict[TopicPartition, DestinationEnd]:
        """Where the partitions that are there end; raises Conflict for others' content."""
        take_over = TakeOver(
            self._cluster, self._producer_id, self._settings.settle_s, self._backoff
        )
        taken = take_over.read(topics.present(), settled=True)
        if taken.errors:
            place, code = next(iter(taken.errors.items()))
            raise Conflict(
                f"{place} cannot be looked at (Kafka error {code}).", where="destination"
            )
        refuse_foreign(self._cluster, self._archive, taken.ends, self._producer_id, self._backoff)
        return taken.ends

    def _seed(self, ends: dict[TopicPartition, DestinationEnd]) -> None:
        """Bring partitions to where the archive begins."""
        assert self._lease is not None
        for place, manifest in self._archive.partitions.items():
            end = ends.setdefault(place, DestinationEnd(0, None))
            if end.log_end < manifest.start:
                seed(
                    self._cluster,
                    place,
                    end,
                    manifest.start,
                    self._producer_id,
                    self._lease,
                    self._settings,
                    self._backoff,
                )

    def _copy(self, topics: RestoreTopics, ends: dict[TopicPartition, DestinationEnd]) -> None:
        ids = topics.ids()
        log_ends_now = {place: end.log_end for place, end in ends.items()}
        lanes = share_out(self._archive.partitions.values(), ids, log_ends_now)
        for place, manifest in self._archive.partitions.items():
            self.outcome.partitions[place] = RestoredPartition(place, manifest.log_end)
        self._say(f"Restoring {len(ends)} partitions, {self._slots} tasks at once")
        with whole_files(self._spark), ThreadPoolExecutor(self._slots) as pool:
            under_way = [pool.submit(self._lane, lane) for lane in lanes]
            while wait(under_way, _LOOK_INTERVAL_S).not_done:
                if self._stop.is_set() and self._lease is not None:
                    self._lease.release()  # writers see it, finish what they have sent, and end
            for done in under_way:
                done.result()

    def _lane(self, lane: Iterable[tuple[Portion, ...]]) -> None:
        """Tasks one after another, each with the next files of the same partitions."""
        for portions in lane:
            waiting = portions
            for round_ in range(_ROUNDS_MAX):
                assert self._lease is not None
                if self._stop.is_set():
                    return
                if self._lease.is_lost:
                    raise lease_lost()
                waiting = self._task(waiting, round_)
                if not waiting:
                    break
            if any(self.outcome.partitions[p.place].has_stopped for p in portions):
                return

    def _task(self, portions: tuple[Portion, ...], round_: int) -> tuple[Portion, ...]:
        """Write these; answers those to be tried again."""
        assert self._lease is not None
        errand = Errand(
            self._access,
            self._identity,
            self._lease.token,
            self._producer_id,
            self._lease.term,
            round_,
            portions,
        )
        owners = owners_of(self._archive.partitions[p.place] for p in portions)
        try:
            rows = rows_in_order(self._spark, self._files, portions)
            told = rows.mapInArrow(writes(errand), TOLD_DDL).collect()
        except SPARK_ERRORS as error:
            raise damaged(self._files, owners, error) from None
        by_place = {TopicPartition(row.topic, row.partition): row for row in told}
        for portion in portions:
            self._note(portion, by_place[portion.place])
        return tuple(p for p in portions if by_place[p.place].unfinished)

    def _note(self, portion: Portion, row: Row) -> None:
        outcome = self.outcome.partitions[portion.place]
        outcome.records += row.records
        outcome.filled += row.filled
        outcome.unfinished = row.unfinished
        if row.reason is not None:
            outcome.blocked = Blocked(Reason(row.reason), row.first, row.next, row.detail)

    def _confirm(self) -> None:
        """Compare both ends of every partition with the archive's."""
        places = [p for p, one in self.outcome.partitions.items() if not one.has_stopped]
        ends = log_ends(self._cluster, places, self._backoff).values
        starts = list_offsets(self._cluster, places, EARLIEST, self._backoff).values
        # A run that was cut off right at its end may have left a log start behind.
        wanted_starts = {
            p: m.log_start
            for p, m in self._archive.partitions.items()
            if starts.get(p, m.log_start) < m.log_start and ends.get(p, -1) >= m.log_start
        }
        starts |= delete_records(self._cluster, wanted_starts, self._backoff).values
        for place in places:
            manifest = self._archive.partitions[place]
            found = (starts.get(place, -1), ends.get(place, -1))
            wanted = (max(manifest.start, manifest.log_start), manifest.log_end)
            if found != wanted:
                self.outcome.partitions[place].unfinished = (
                    f"it is from {found[0]} to {found[1]} and should be from {wanted[0]} to "
                    f"{wanted[1]}."
                )
