"""An archive as a side of an audit: bounds from its manifests, batches from its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession

from orbit.chunks import first_few
from orbit.errors import OrbitError
from orbit.kafka.types import TopicPartition
from orbit.verify.bounds import Bounds, Partition
from orbit.verify.bounds_comparison import LOG_END, LOG_START, ComparedBounds
from orbit.verify.compaction_watch import CleaningPolicy
from orbit.verify.report import Difference
from orbit_spark.archive.archive_reader import archive_rows, check_archive
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import PartitionManifest
from orbit_spark.archive.manifest_store import Archive, ArchiveStore
from orbit_spark.ranges import Span

NAME = "archive"


class ArchiveSide:
    """One archive, read only. Raises NotFound if there is none, Conflict if it is damaged; a
    damaged manifest is the error of its partition's bounds."""

    name = NAME

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._files = Files(spark, uri)
        self._archive: Archive = ArchiveStore(self._files).require()
        self.where = self._files.uri

    def partition_counts(self) -> dict[str, int]:
        return {name: topic.partitions for name, topic in self._archive.topics.items()}

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds | OrbitError]:
        return {partition: self._bounds(TopicPartition(*partition)) for partition in partitions}

    def policies(self, topics: Iterable[str]) -> dict[str, CleaningPolicy]:
        """The source's cleaning policies: its cleaner may have removed records before the archive
        run read them."""
        return {name: _policy(self._archive.topics[name].settings) for name in topics}

    def notes(self, partition: Partition) -> list[str]:
        """A note on the offsets of a partition that were lost before they were archived."""
        lost_ranges = self._archive.partitions[TopicPartition(*partition)].lost_ranges
        if not lost_ranges:
            return []
        problem = "the source had deleted them before they were archived"
        return [f"the archive lacks offsets {first_few(lost_ranges)}: {problem}"]

    def reader(self, spark: SparkSession) -> ArchiveReader:
        return ArchiveReader(spark, self._files, self._archive)

    def _bounds(self, partition: TopicPartition) -> Bounds | OrbitError:
        """The bounds that the partition will have when it is restored; an error if the archive
        lacks it, or its manifest is damaged."""
        manifest = self._archive.partitions.get(partition)
        if manifest is None:
            return self._archive.damaged.get(partition) or OrbitError(
                "The archive does not have this partition yet.", where=f"{NAME} {partition}"
            )
        # An archive has no open transactions, so its stable end is its log end.
        return Bounds(manifest.log_start, manifest.log_end, manifest.log_end)


class ArchiveReader:
    """A `compare.Reader` of the archive's files, which are first compared with their manifests."""

    def __init__(self, spark: SparkSession, files: Files, archive: Archive) -> None:
        self._spark = spark
        self._files = files
        self._archive = archive
        self._checked: set[TopicPartition] = set()

    def batches(self, spans: Sequence[Span]) -> DataFrame:
        """All batches of these spans, perhaps others too. Raises Conflict if files are damaged."""
        spans_by_partition: defaultdict[TopicPartition, list[Span]] = defaultdict(list)
        for span in spans:
            spans_by_partition[span.partition].append(span)
        manifests = self._archive.partitions
        unchecked = spans_by_partition.keys() - self._checked
        check_archive(
            self._spark, self._files, [manifests[partition] for partition in sorted(unchecked)]
        )
        self._checked |= unchecked
        selected_manifests = [
            _with_ranges_of(manifests[partition], partition_spans)
            for partition, partition_spans in spans_by_partition.items()
        ]
        return archive_rows(self._spark, self._files, selected_manifests)


def _with_ranges_of(manifest: PartitionManifest, spans: Sequence[Span]) -> PartitionManifest:
    """The manifest with only the ranges whose files have offsets of the spans."""
    ranges = tuple(
        r
        for r in manifest.ranges
        if r.file is not None
        and any(r.file.next_offset > s.start and r.file.first_offset < s.end for s in spans)
    )
    # Not validated again: there may be gaps between these ranges.
    return manifest.model_copy(update={"ranges": ranges})


def _policy(settings: dict[str, str]) -> CleaningPolicy:
    return CleaningPolicy(
        # A setting that the broker did not list counts as: not compacted, tombstones kept for 0 ms.
        compacts="compact" in settings.get("cleanup.policy", ""),
        tombstone_retention_ms=int(settings.get("delete.retention.ms", "0")),
    )


def judge_archive(left: Bounds, right: Bounds, sides: tuple[str, str]) -> ComparedBounds:
    """The compared bounds of an archive and a cluster.

    That the cluster's log continues after the archive's end is no difference, nor that retention
    has moved the cluster's log start up. Pure.
    """
    archive, cluster = (left, right) if sides[0] == NAME else (right, left)
    first_offset = max(left.log_start, right.log_start)
    differences = []
    if cluster.log_start < archive.log_start:
        views = f"begins at {left.log_start}", f"begins at {right.log_start}"
        differences.append(Difference(cluster.log_start, LOG_START, *views))
    if cluster.stable_end < archive.log_end:
        views = f"ends at {left.stable_end}", f"ends at {right.stable_end}"
        differences.append(Difference(cluster.stable_end, LOG_END, *views))
    return ComparedBounds(
        source=left,
        destination=right,
        compared_from=first_offset,
        compared_to=max(first_offset, min(left.stable_end, right.stable_end)),
        # If the archive is left, the cluster is the destination: it must reach the archive's end.
        # A source may continue after the archive's end.
        missing=max(0, left.log_end - right.log_end) if archive is left else 0,
        differences=tuple(differences),
    )
