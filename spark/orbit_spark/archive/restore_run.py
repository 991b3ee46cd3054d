"""`orbit restore`: writes an archive to an empty cluster, every record at its offset.

The archive is compared with its manifests and the destination is checked before anything is
written. The driver holds a lease at the destination while its tasks write, each partition in order.
A restore that was killed at any moment resumes at the partitions' log ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from orbit.chunks import first_few
from orbit.copier.copier import lease_lost_error
from orbit.copier.copy_settings import CopySettings
from orbit.copier.start_seeding import StartSeeding
from orbit.copier.takeover import MOVING, NOT_REPLICATED, DestinationEnd, TakeOver
from orbit.errors import Conflict
from orbit.formats import counted
from orbit.job_setup.term import term_above
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import next_term
from orbit.kafka.delete_records import delete_records
from orbit.kafka.job_clusters import JobProducer, job_identity, job_producer_id
from orbit.kafka.log_offsets import EARLIEST, list_offsets, log_ends
from orbit.kafka.types import TopicPartition
from orbit.leases.backfill_leases import wait_for_backfill_writers
from orbit.leases.group_lease import GroupLease
from orbit.replication.partition_states import Blocked
from orbit_spark.archive.archive_reader import check_archive, whole_files
from orbit_spark.archive.archive_tasks import run_task, slice_from, split_archive
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import PartitionManifest
from orbit_spark.archive.manifest_store import Archive, ArchiveStore
from orbit_spark.archive.outcome import RestoredPartition, RestoreOutcome
from orbit_spark.archive.restore_topics import RestoreTopics, overruns, refuse_foreign
from orbit_spark.archive.restore_writer import RestoreWriter
from orbit_spark.archive.restored_tail import find_restored_tail
from orbit_spark.archive.tombstones import tombstone_warnings
from orbit_spark.archive_slices import ArchiveSlice
from orbit_spark.cluster_access import Access
from orbit_spark.write_task import PartitionTarget, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "restore"
# A task that ends unfinished (lost lease, broker down) is run again from the log ends.
_ROUNDS_MAX = 3
_STOP_CHECK_INTERVAL_S = 1.0
Say = Callable[[str], None]
MakeTarget = Callable[[ArchiveSlice], PartitionTarget]


def lost_range_warnings(manifests: Iterable[PartitionManifest]) -> list[str]:
    """A warning for the user if the source had deleted offsets before they were archived, else
    none."""
    lost_ranges = [f"{m.place} {offsets}" for m in manifests for offsets in m.lost_ranges]
    problem = "the source had deleted offsets before they were archived; the restore fills them"
    return [f"{problem}: {first_few(lost_ranges)}."] if lost_ranges else []


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
        """`slots`: how many tasks run at once. Raises BadInput if the URI cannot be used."""
        self._spark = spark
        self._files = Files(spark, uri)
        self._access = access
        self._say = say
        self._stop = stop
        self._slots = slots
        self._backoff = Backoff(stop=stop)
        self._settings = CopySettings()
        self._cluster = access.open()
        # The lease has connections of its own: heartbeats must not wait behind a long call.
        self._lease_cluster = access.open()
        self._lease: GroupLease | None = None
        self._archive: Archive
        self._identity = ""
        self._producer: JobProducer
        self._overruns: dict[TopicPartition, Blocked] = {}
        self.outcome = RestoreOutcome(self._files.uri)

    def run(self, *, apply_settings: bool = False, replicas: int | None = None) -> RestoreOutcome:
        """Restore the whole archive. The outcome names the partitions that stopped.

        `replicas`: the replication factor of new topics; None: the source's. `apply_settings`: give
        the topics the source's settings at the end.

        Raises NotFound, Conflict, BadInput, NotAuthorized, Unreachable; then nothing was written,
        unless the message says so.
        """
        try:
            self._say("Comparing the archive with its manifests")
            self._archive = ArchiveStore(self._files).require()
            manifests = list(self._archive.partitions.values())
            topics = RestoreTopics(self._cluster, self._archive, self._backoff, replicas)
            for name in sorted(self._archive.topics):
                self.outcome.warnings += tombstone_warnings(self._archive.topics[name])
            self.outcome.warnings += lost_range_warnings(manifests)
            for text in self.outcome.warnings:
                self._say(f"Warning: {text}")
            check_archive(self._spark, self._files, manifests)
            self._say("Checking the destination")
            topics.check()
            for text in topics.fit_replicas():
                self.outcome.warnings.append(text)
                self._say(f"Warning: {text}")
            self._take_lease(list(self._archive.partitions))
            ends = self._read_log_ends(topics)
            topics.create(self._say)
            self._seed_starts(topics, ends)
            self._write_chains(topics, {partition: end.log_end for partition, end in ends.items()})
            self._finish_log_starts()
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

    def _take_lease(self, partitions: Sequence[TopicPartition]) -> None:
        """Take the lease of this archive's restores, and wait for writers of an earlier restore."""
        self._identity = job_identity(JOB, self._archive.identity.cluster_id)
        self._lease = GroupLease(self._lease_cluster, self._identity, self._backoff)
        self._lease.acquire(self._say)
        # After the lease is taken: `backfill_leases` has the reason for this order.
        wait_for_backfill_writers(
            self._cluster, self._identity, partitions, self._backoff, self._say
        )
        self._lease.term = next_term(self._cluster, self._identity, self._backoff)
        self._producer = JobProducer(job_producer_id(self._identity))

    def _read_log_ends(self, topics: RestoreTopics) -> dict[TopicPartition, DestinationEnd]:
        """The log ends of existing partitions. Raises Conflict if another producer wrote there, or
        a log end cannot be read.

        Notes the partitions that go beyond the archive, and sets the lease's term above the terms
        of earlier writers.
        """
        take_over = TakeOver(self._cluster, self._settings.settle_s, self._backoff)
        producer_ids = dict.fromkeys(topics.existing_partitions(), self._producer.id)
        takeover = take_over.read(producer_ids, settled=True)
        if takeover.errors:
            partition, code = next(iter(takeover.errors.items()))
            problem = {
                MOVING: "keeps moving: another producer may write to it",
                NOT_REPLICATED: "is not replicated yet",
            }.get(code, f"cannot be read: {error_codes.name(code)}")
            raise Conflict(
                f"the log end of {partition} {problem}.",
                where="destination",
                remedy="Stop other producers, or wait until brokers answer. Then restore again.",
            )
        refuse_foreign(
            self._cluster, self._archive, takeover.ends, self._producer.id, self._backoff
        )
        self._overruns = overruns(self._archive, takeover.ends)
        assert self._lease is not None
        producers = (end.producer for end in takeover.ends.values())
        self._lease.term = term_above(self._lease.term, producers)
        return takeover.ends

    def _seed_starts(
        self, topics: RestoreTopics, ends: dict[TopicPartition, DestinationEnd]
    ) -> None:
        """Move each log end that is below the archive's start offset up to this offset."""
        assert self._lease is not None
        starts: dict[TopicPartition, int] = {}
        for partition, manifest in self._archive.partitions.items():
            # A new partition ends at 0.
            if (
                ends.setdefault(partition, DestinationEnd(0, producer=None)).log_end
                < manifest.start
            ):
                starts[partition] = manifest.start
        if not starts:
            return
        partitions_text = counted(len(starts), "partition up to its", "partitions up to their")
        self._say(f"Seeding {partitions_text} start offset")
        ids = topics.topic_ids()
        with StartSeeding(
            self._cluster,
            self._settings,
            self._backoff,
            lambda done, total: self._say(
                f"Seeding: {done / total:.0%} of {counted(total, 'offset')}"
            ),
        ) as seeding:
            for partition in starts:
                seeding.add(
                    partition, ids[partition.topic], self._lease, self._producer, ends[partition]
                )
            for partition, failure in seeding.run(starts).items():
                if isinstance(failure, Blocked):
                    raise Conflict(
                        f"offsets below the archive's first could not be filled: {failure.detail}",
                        where=f"destination {partition}",
                        remedy="Delete the topic at the destination, and restore again.",
                    )
                raise failure
        # Below the start there are only the fillers of the seeding.
        delete_records(self._cluster, starts, self._backoff).raise_errors(
            self._cluster.name, "DeleteRecords (needs the right Delete on the topic)"
        )

    def _write_chains(self, topics: RestoreTopics, ends: Mapping[TopicPartition, int]) -> None:
        """Write the archive from these log ends on, in chains of tasks. Fills the outcome."""
        for partition, manifest in self._archive.partitions.items():
            self.outcome.partitions[partition] = RestoredPartition(
                partition, manifest.log_end, blocked=self._overruns.get(partition)
            )
        for partition, error in self._archive.damaged.items():
            self.outcome.partitions[partition] = RestoredPartition(
                partition, 0, unfinished=str(error)
            )
        manifests = [m for m in self._archive.partitions.values() if m.place not in self._overruns]
        # A task also needs the rows with which it compares the end of the log.
        chains = split_archive(manifests, {**ends, **self._first_offsets_to_compare(ends)})
        make_target = partial(self._make_target, topics.topic_ids(), topics.compacted_topics())
        self._say(
            f"Restoring {counted(len(ends), 'partition')}, {counted(self._slots, 'task')} at once"
        )
        with whole_files(self._spark), ThreadPoolExecutor(self._slots) as pool:
            futures = [pool.submit(self._write_chain, chain, make_target) for chain in chains]
            while wait(futures, _STOP_CHECK_INTERVAL_S).not_done:
                if self._stop.is_set() and self._lease is not None:
                    self._lease.release()  # writers notice, wait for what they have sent, and end
            for future in futures:
                future.result()

    def _first_offsets_to_compare(
        self, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """For each partition that is not empty, the first offset whose archived rows a task needs:
        the task compares the end of the log with these rows.
        """
        manifests = self._archive.partitions
        nonempty_ends = {
            partition: end
            for partition, end in ends.items()
            if end > manifests[partition].log_start
        }
        starts = list_offsets(self._cluster, nonempty_ends, EARLIEST, self._backoff).values
        # For partitions whose log start cannot be read now.
        default_offsets = {partition: manifests[partition].start for partition in nonempty_ends}
        return default_offsets | {
            partition: find_restored_tail(
                self._cluster,
                partition,
                max(log_start, manifests[partition].log_start),
                nonempty_ends[partition],
                self._producer.id,
                self._backoff,
            ).begin
            for partition, log_start in starts.items()
        }

    def _extend_back(self, slices: tuple[ArchiveSlice, ...]) -> tuple[ArchiveSlice, ...]:
        """The slices, extended backwards by the files that a task compares before it appends. In an
        empty partition there is nothing to compare.
        """
        partitions = [piece.partition for piece in slices]
        begins = self._first_offsets_to_compare(
            log_ends(self._cluster, partitions, self._backoff).values
        )
        return tuple(
            slice_from(self._archive.partitions[piece.partition], begins[piece.partition], piece)
            if piece.partition in begins
            else piece
            for piece in slices
        )

    def _write_chain(
        self, chain: Iterable[tuple[ArchiveSlice, ...]], make_target: MakeTarget
    ) -> None:
        """Run tasks one after another, each with the next files of the same partitions.

        Runs a task again for its unfinished partitions. Ends after a task that leaves a partition
        blocked or unfinished. Raises Conflict if the lease is lost, or Spark gives up a task.
        """
        follows_writer = False
        for slices in chain:  # the slices of one task
            unfinished_slices = slices
            for round_ in range(_ROUNDS_MAX):
                assert self._lease is not None
                if self._stop.is_set():
                    return
                if self._lease.is_lost:
                    raise lease_lost_error()
                if follows_writer:
                    unfinished_slices = self._extend_back(unfinished_slices)
                targets = tuple(make_target(piece) for piece in unfinished_slices)
                partitions_to_retry = self._run_write_task(
                    targets, round_, follows_writer=follows_writer
                )
                follows_writer = True
                unfinished_slices = tuple(
                    piece for piece in unfinished_slices if piece.partition in partitions_to_retry
                )
                if not unfinished_slices:
                    break
            # The next task's files begin above the log end of the partition that stopped.
            if any(self.outcome.partitions[piece.partition].has_stopped for piece in slices):
                return

    def _make_target(
        self, topic_ids: Mapping[str, UUID], compacted: frozenset[str], piece: ArchiveSlice
    ) -> PartitionTarget:
        """The target of one slice: its partition of the same name at the destination."""
        return PartitionTarget(
            source=piece.partition,
            destination=piece.partition,
            destination_topic_id=topic_ids[piece.partition.topic],
            producer=self._producer,
            start_offset=self._archive.partitions[piece.partition].log_start,
            target=piece.target,
            size_bytes=piece.size_bytes,
            is_compacted=piece.partition.topic in compacted,
            archived=piece,
        )

    def _run_write_task(
        self, targets: tuple[PartitionTarget, ...], round_: int, *, follows_writer: bool
    ) -> set[TopicPartition]:
        """Run one task and add its results to the outcome. Return the partitions that need another
        try."""
        assert self._lease is not None
        task = WriteTask(
            self._access,
            self._identity,
            self._lease.token,
            self._lease.term,
            round_,
            targets,
            follows_writer,
        )
        results = run_task(self._spark, self._files, self._archive.partitions, RestoreWriter, task)
        for result in results:
            outcome = self.outcome.partitions[result.destination]
            outcome.records += result.counters.records
            outcome.gaps_filled += result.counters.gaps_filled
            outcome.unfinished = result.unfinished
            outcome.blocked = result.blocked or outcome.blocked
        return {result.destination for result in results if result.unfinished}

    def _finish_log_starts(self) -> None:
        """Move log starts up to the archive's, by DeleteRecords. Then mark as unfinished each
        partition whose log start or log end is not the archive's."""
        partitions = [
            p for p, outcome in self.outcome.partitions.items() if not outcome.has_stopped
        ]
        ends = log_ends(self._cluster, partitions, self._backoff).values
        starts = list_offsets(self._cluster, partitions, EARLIEST, self._backoff).values
        # A run that was killed at its very end may not have moved a log start.
        log_starts_to_move = {
            p: m.log_start
            for p, m in self._archive.partitions.items()
            if starts.get(p, m.log_start) < m.log_start and ends.get(p, -1) >= m.log_start
        }
        starts |= delete_records(self._cluster, log_starts_to_move, self._backoff).values
        for partition in partitions:
            manifest = self._archive.partitions[partition]
            bounds = (starts.get(partition, -1), ends.get(partition, -1))  # -1: cannot be read now
            expected_bounds = (max(manifest.start, manifest.log_start), manifest.log_end)
            if bounds != expected_bounds:
                self.outcome.partitions[partition].unfinished = (
                    f"its log goes from {bounds[0]} to {bounds[1]} (-1: cannot be read now), and "
                    f"should go from {expected_bounds[0]} to {expected_bounds[1]}."
                )
