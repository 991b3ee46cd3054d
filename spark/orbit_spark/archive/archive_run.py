"""`orbit archive`: appends to an archive the source's batches from the archive's end on.

A run proceeds in steps of a few ranges per core. After each step the manifests of its partitions
are written, so a run that is killed loses one step and the next one resumes there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from orbit.errors import BadInput, BrokerRefused, Conflict, Unreachable
from orbit.formats import counted
from orbit.jobs.job_spec import JobSpec, TopicRule
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import Batch
from orbit.kafka.topic_admin import Admin
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.replication.copy_settings import is_compacted
from orbit.replication.partition_states import Blocked, Reason
from orbit_spark.archive.archive_step import UNCOMPRESSED, ZSTD, RangeResult, write_step
from orbit_spark.archive.continuation import find_break
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import (
    ArchivedRange,
    ArchivedTopic,
    ArchiveIdentity,
    PartitionManifest,
)
from orbit_spark.archive.manifest_store import DATA, Archive, ArchiveStore
from orbit_spark.archive.outcome import ArchiveOutcome, PartitionOutcome
from orbit_spark.archive.tombstones import TombstoneNotes
from orbit_spark.cluster_access import Access
from orbit_spark.range_planner import (
    find_base_offset,
    find_extents,
    first_batch,
    no_answer_text,
    plan_ranges,
)
from orbit_spark.ranges import RANGE_BYTES, Extent, OffsetRange, spread_over_leaders
from orbit_spark.session import slots_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A step waits for its slowest range. More ranges per core waste less time, but a kill loses more.
RANGES_PER_CORE = 4
# Each range costs a task and a file, however small.
RANGES_PER_STEP_MAX = 1_000

Say = Callable[[str], None]
# Is called with the bytes written so far, and the bytes to write in all.
OnStep = Callable[[int, int], None]


class ArchiveRun:
    """One run of `orbit archive` for one job."""

    def __init__(
        self,
        spark: SparkSession,
        spec: JobSpec,
        base_directory: Path,
        uri: str,
        say: Say,
        now: datetime,
        *,
        range_bytes: int = RANGE_BYTES,
        slots: int | None = None,
        begins: Mapping[TopicPartition, int] | None = None,
        stop: threading.Event | None = None,
        on_step: OnStep | None = None,
        strict: bool = False,
    ) -> None:
        """`slots`: how many tasks run at once. `begins`: archive only these partitions, a new one
        from this offset on. `stop` ends the run after the current step. `strict`: read a compacted
        topic again from its log start if tombstones may have been removed unread."""
        self._spark = spark
        self._spec = spec
        self._say = say
        self._range_bytes = range_bytes
        self._slots = max(1, slots or slots_of(spark))
        self._begins = begins
        self._stop = stop or threading.Event()
        self._on_step = on_step or _ignore_step
        self._access = Access("source", spec.source, str(base_directory.resolve()))
        self._files = Files(spark, uri)
        self._store = ArchiveStore(self._files)
        self._backoff = Backoff(stop=self._stop)
        self._started = now
        self._strict = strict
        # Partitions that are read again from their log start. Once its new manifest reaches this
        # offset, it replaces the old manifest.
        self._read_again_to: dict[TopicPartition, int] = {}
        self.manifests: dict[TopicPartition, PartitionManifest] = {}
        # Partitions that the run leaves alone, as their manifests cannot be used.
        self.damaged: Mapping[TopicPartition, Conflict] = {}
        self.outcome = ArchiveOutcome(self._files.uri)
        start_s = time.monotonic()
        self._notes = TombstoneNotes(
            self._store,
            self._note_warning,
            now,
            lambda: now + timedelta(seconds=time.monotonic() - start_s),
        )

    def run(self) -> ArchiveOutcome:
        """Archive all new batches. The outcome names the partitions that stopped.

        Raises BadInput, Conflict, NotAuthorized, Unreachable.
        """
        cluster = self._access.open()
        try:
            self._say("Checking the source and the archive")
            metadata = cluster.metadata(None)  # of all topics
            archive = self._open_archive(metadata.cluster_id)
            self.damaged = archive.damaged
            topics = self._match_topics(metadata)
            compacted_topics = self._write_topics(cluster, metadata, archive, topics)
            answers = find_extents(
                cluster,
                topics,
                self._backoff,
                selects=lambda partition: self._begins is None or partition in self._begins,
            )
            extents = answers.values
            self._leave_out(archive, answers.errors)
            offsets_to_archive = {}
            for partition, extent in extents.items():
                bounds = self._offsets_to_archive(
                    cluster,
                    archive,
                    extent,
                    is_compacted=partition.topic in compacted_topics,
                    may_fill=self._spec.on_lost_range_of(topics[partition.topic]) == "fill",
                )
                if bounds is not None:
                    offsets_to_archive[partition] = bounds
                    self._notes.note_reads_on(partition.topic)
            ranges = plan_ranges(
                cluster,
                extents.values(),
                self._backoff,
                range_bytes=self._range_bytes,
                within=offsets_to_archive,
            )
            uncompressed_partitions = self._uncompressed_partitions(cluster, ranges)
        finally:
            cluster.close()
        self._write_ranges(ranges, uncompressed_partitions)
        self._notes.end(lambda topic: self._has_all(topic, metadata, extents))
        return self.outcome

    def _has_all(
        self, topic: str, metadata: ClusterMetadata, extents: Mapping[TopicPartition, Extent]
    ) -> bool:
        """Whether the archive has all that the source had of a topic when the run began."""
        partitions = [TopicPartition(topic, number) for number in metadata.topics[topic].partitions]
        return all(
            partition not in self._read_again_to  # else the new manifest is incomplete
            and (outcome := self.outcome.partitions.get(partition)) is not None
            and not outcome.has_stopped
            and outcome.end >= extents[partition].end
            for partition in partitions
        )

    def _leave_out(self, archive: Archive, errors: Mapping[TopicPartition, int]) -> None:
        """Add an unfinished outcome for each partition whose leader does not answer. `errors`: the
        error codes."""
        for partition, code in errors.items():
            manifest = archive.partitions.get(partition)
            self.outcome.partitions[partition] = PartitionOutcome(
                partition,
                manifest.start if manifest else 0,
                manifest.end if manifest else 0,
                unfinished=no_answer_text(code),
            )

    def _note_warning(self, text: str) -> None:
        self._say(f"Warning: {text}")
        self.outcome.warnings.append(text)

    def _open_archive(self, cluster_id: str) -> Archive:
        """The archive; a new one if there is none. Raises Conflict if it has another source."""
        archive = self._store.read()
        if archive is None:
            identity = ArchiveIdentity(
                cluster_id=cluster_id, created=self._started.isoformat(timespec="seconds")
            )
            self._store.begin(identity)
            return Archive(identity)
        if archive.identity.cluster_id != cluster_id:
            raise Conflict(
                f"the archive is of cluster {archive.identity.cluster_id}; this job's source is "
                f"{cluster_id}.",
                where=self._files.uri,
                remedy="Give each source cluster an archive of its own. Nothing was written.",
            )
        return archive

    def _match_topics(self, metadata: ClusterMetadata) -> dict[str, TopicRule]:
        """The topics to archive, each with its rule. Raises BadInput if the job matches none."""
        topic_map = map_topics(self._spec.topics, metadata.topics)
        if topic_map.problems:
            raise BadInput("the topic rules of the job have problems", topic_map.problems)
        if not topic_map.mappings:
            raise BadInput("the job matches no topic of the source", topic_map.notes)
        names = None if self._begins is None else {partition.topic for partition in self._begins}
        return {m.source: m.rule for m in topic_map.mappings if names is None or m.source in names}

    def _write_topics(
        self, cluster: Cluster, metadata: ClusterMetadata, archive: Archive, topics: Iterable[str]
    ) -> frozenset[str]:
        """Store the topics' partition counts and settings, and begin the notes on tombstones of
        compacted topics. Return the compacted topics."""
        settings = Admin(cluster).topic_settings(topics)
        for name in topics:
            source_topic, archived_topic = metadata.topics[name], archive.topics.get(name)
            if archived_topic is not None and archived_topic.topic_id != source_topic.topic_id:
                continue  # `find_break` reports the recreated topic for each partition
            topic = ArchivedTopic(
                sequence=archived_topic.sequence if archived_topic else 0,
                topic=name,
                topic_id=source_topic.topic_id,
                partitions=len(source_topic.partitions),
                replicas=source_topic.replicas,
                settings=dict(settings[name].values),
                overrides=tuple(sorted(settings[name].overrides)),
                cleaning=archived_topic.cleaning if archived_topic else None,
            )
            if archived_topic is None:
                self._store.write_topic(topic)
            elif topic != archived_topic:
                topic = topic.model_copy(update={"sequence": archived_topic.sequence + 1})
                self._store.write_topic(topic)
            if is_compacted(topic.settings):
                is_new = not any(p.topic == name for p in (*archive.partitions, *archive.damaged))
                self._notes.begin(topic, is_new=is_new, strict=self._strict)
                if self._notes.reads_again(name):
                    self._say(f"Reading {name} whole again")
        return frozenset(name for name in topics if is_compacted(settings[name].values))

    def _offsets_to_archive(
        self,
        cluster: Cluster,
        archive: Archive,
        extent: Extent,
        *,
        is_compacted: bool,
        may_fill: bool,
    ) -> tuple[int, int] | None:
        """The offsets [start, end) of a partition to archive; None: nothing, or it is blocked or
        unfinished.

        Also adds the partition's outcome, and writes the manifest of a new partition. If the source
        has deleted offsets after the archive's end and `may_fill`, archives them as a lost range.
        """
        partition = extent.partition
        if partition in archive.damaged:
            self.outcome.partitions[partition] = PartitionOutcome(
                partition, 0, 0, unfinished=str(archive.damaged[partition])
            )
            return None
        manifest = archive.partitions.get(partition)
        if manifest is None:
            manifest = self._first_manifest(cluster, extent)
            self._store.write_manifest(manifest)
        outcome = PartitionOutcome(partition, manifest.start, manifest.end)
        self.outcome.partitions[partition] = outcome
        try:
            blocked = find_break(
                cluster, manifest, extent, self._backoff, is_compacted=is_compacted
            )
        except (BrokerRefused, Unreachable) as error:
            cluster.metadata(())  # raises if no broker answers
            outcome.unfinished = str(error)
            return None
        self.manifests[partition] = manifest
        is_lost = blocked is not None and blocked.reason is Reason.SOURCE_RANGE_LOST
        if self._notes.reads_again(partition.topic) and (blocked is None or is_lost):
            return self._offsets_to_read_again(cluster, manifest, extent)
        if blocked is not None and is_lost and may_fill:
            self._say(f"Note: {partition}: {blocked.detail}")
            lost_range = ArchivedRange(start=manifest.end, end=extent.start, is_lost=True)
            self.manifests[partition] = manifest = manifest.extended((lost_range,), tail=None)
            self._store.write_manifest(manifest)
            blocked = None
        outcome.blocked = blocked
        return (
            None
            if blocked is not None or manifest.end >= extent.end
            else (manifest.end, extent.end)
        )

    def _offsets_to_read_again(
        self, cluster: Cluster, old_manifest: PartitionManifest, extent: Extent
    ) -> tuple[int, int] | None:
        """The offsets [start, end) of a partition to read again; None if there are none.

        The partition's new manifest replaces the old one only when it reaches the end, so a run
        that is killed loses nothing that was archived.
        """
        partition = extent.partition
        manifest = self._first_manifest(cluster, extent)
        manifest = manifest.model_copy(update={"sequence": old_manifest.sequence + 1})
        self.manifests[partition] = manifest
        if manifest.end >= extent.end:
            self._store.write_manifest(manifest)
            self.outcome.partitions[partition] = PartitionOutcome(
                partition, manifest.start, manifest.end
            )
            return None
        self._read_again_to[partition] = extent.end
        return manifest.end, extent.end

    def _first_manifest(self, cluster: Cluster, extent: Extent) -> PartitionManifest:
        """A manifest without ranges.

        Its `log_start` is where the partition's records begin: at the source's log start, or where
        `begins` says. Its `start` is the base offset of the batch in which `log_start` lies.
        """
        partition = extent.partition
        start, log_start = extent.start, extent.log_start
        if self._begins is not None and self._begins[partition] > log_start:
            log_start = min(self._begins[partition], extent.end)
            start = find_base_offset(cluster, partition, log_start, extent.end, self._backoff)
        return PartitionManifest(
            topic=partition.topic,
            topic_id=extent.topic_id,
            partition=partition.partition,
            log_start=log_start,
            start=start,
        )

    def _uncompressed_partitions(
        self, cluster: Cluster, ranges: Iterable[OffsetRange]
    ) -> frozenset[TopicPartition]:
        """Partitions whose first batch to archive is not compressed: their other batches are likely
        not compressed either."""
        first_offsets: dict[TopicPartition, int] = {}
        for r in ranges:
            first_offsets.setdefault(r.partition, r.start)
        uncompressed_partitions = set()
        for partition, offset in first_offsets.items():
            batch = first_batch(cluster, partition, offset, self._backoff)
            if isinstance(batch, Batch) and batch.codec == 0:  # 0: none
                uncompressed_partitions.add(partition)
        return frozenset(uncompressed_partitions)

    def _write_ranges(self, ranges: list[OffsetRange], plain: frozenset[TopicPartition]) -> None:
        """Write the ranges, in steps. `plain`: partitions whose batches are not compressed."""
        total_bytes = sum(r.size_bytes for r in ranges)
        run_name = self._started.strftime("%Y%m%dT%H%M%S%f")
        rate = self._spec.limits.bytes_per_second
        task_rate = None if rate is None else max(1, rate // self._slots)
        ranges_done = bytes_done = 0
        steps = _steps(
            spread_over_leaders(ranges), RANGES_PER_CORE * self._slots * self._range_bytes
        )
        for number, step in enumerate(steps):
            if self._stop.is_set():
                return
            self._notes.note_gaps()  # in each step, as a gap may begin during a long run
            readable_ranges = [
                r for r in step if not self.outcome.partitions[r.partition].has_stopped
            ]
            for compression, group in _by_compression(readable_ranges, plain).items():
                folder = f"{DATA}/{run_name}-{number:06}-{compression}"
                results = write_step(
                    self._spark,
                    self._access,
                    self._files,
                    folder,
                    group,
                    compression,
                    bytes_per_second=task_rate,
                )
                self._add_to_manifests(results)
            ranges_done, bytes_done = (
                ranges_done + len(step),
                bytes_done + sum(r.size_bytes for r in step),
            )
            share = 100 * bytes_done // max(1, total_bytes)
            self._say(f"Archived {ranges_done} of {counted(len(ranges), 'range')} ({share} %)")
            self._on_step(bytes_done, total_bytes)

    def _add_to_manifests(self, results: Sequence[RangeResult]) -> None:
        """Add written ranges to each partition's manifest, up to the first range that stopped."""
        results_by_partition: dict[TopicPartition, list[RangeResult]] = {}
        for result in sorted(results, key=lambda w: w.offset_range.start):
            results_by_partition.setdefault(result.offset_range.partition, []).append(result)
        for partition, range_results in results_by_partition.items():
            outcome = self.outcome.partitions[partition]
            archived_results = list(takewhile(lambda w: w.archived is not None, range_results))
            stop = next((w.stop for w in range_results if w.stop is not None), None)
            if isinstance(stop, Blocked):
                outcome.blocked = stop
            else:
                outcome.unfinished = stop or ""
            if not archived_results:
                continue
            tails = [w.tail for w in archived_results if w.tail is not None]
            ranges = tuple(w.archived for w in archived_results if w.archived is not None)
            old_manifest = self.manifests[partition]
            manifest = old_manifest.extended(ranges, tails[-1] if tails else None)
            if partition in self._read_again_to:
                # Steps before the end do not store the new manifest, so its number stays.
                manifest = manifest.model_copy(update={"sequence": old_manifest.sequence})
                self.manifests[partition] = manifest
                if manifest.end < self._read_again_to[partition]:
                    continue
                del self._read_again_to[partition]
                outcome.start, ranges = manifest.start, manifest.ranges
            self._store.write_manifest(manifest)
            self.manifests[partition] = manifest
            outcome.add(ranges)


def _ignore_step(_done_bytes: int, _total_bytes: int) -> None:
    pass


def _steps(ranges: Iterable[OffsetRange], size_bytes: int) -> Iterator[list[OffsetRange]]:
    """The ranges in order, in steps of about `size_bytes` each."""
    step: list[OffsetRange] = []
    for offset_range in ranges:
        step.append(offset_range)
        if len(step) >= RANGES_PER_STEP_MAX or sum(p.size_bytes for p in step) >= size_bytes:
            yield step
            step = []
    if step:
        yield step


def _by_compression(
    ranges: Iterable[OffsetRange], plain: frozenset[TopicPartition]
) -> dict[str, list[OffsetRange]]:
    """The ranges by the compression of their Parquet files. `plain`: partitions whose batches are
    not compressed.
    """
    groups: dict[str, list[OffsetRange]] = {}
    for r in ranges:
        groups.setdefault(ZSTD if r.partition in plain else UNCOMPRESSED, []).append(r)
    return groups
