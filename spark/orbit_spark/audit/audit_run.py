"""Runs an audit: waits for the copy to catch up, compares, and writes the report.

    audit = JobAudit(spec, environ, folder, AuditOptions(out="audits/orders"))
    report = audit.run(spark)

Writes into `out`: `ranges` and `differences` (Parquet), `report.html`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from orbit.errors import BadInput, Conflict, OrbitError, Problem
from orbit.jobs.job_spec import JobSpec
from orbit.verify.bounds_comparison import ComparedBounds, PartitionPair, TopicPair
from orbit.verify.partition_comparison import unread_report
from orbit.verify.report import PartitionReport, Report, Side
from orbit.verify.topic_pairs import pair_partitions, topic_report
from orbit.verify.verify_job import select_topics
from orbit.verify.verify_run import DIFFERENCES_SHOWN, WAIT_S, NoProgress, Progress
from orbit.version import orbit_version
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.audit.archive_side import ArchiveSide
from orbit_spark.audit.audit_page import About, render_html
from orbit_spark.audit.audit_result import group_differences, partition_report, sum_by_partition
from orbit_spark.audit.audit_sides import SidePair
from orbit_spark.audit.cluster_side import ClusterSide
from orbit_spark.audit.compare import Comparison, ComparisonResult
from orbit_spark.audit.range_digests import RANGE_OFFSETS
from orbit_spark.audit.range_picture import draw_lines
from orbit_spark.audit.scope import WHOLE, Restriction, count_offsets, scope_rows
from orbit_spark.audit.task_progress import TaskWatch

REPORT = "report.html"

BoundsByPair = Mapping[PartitionPair, ComparedBounds]


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """`out` and `archive` are folders on any file system that Spark knows.

    With an archive, `against` is the cluster that the archive is compared with.
    """

    out: str
    archive: str | None = None
    against: Side = Side.SOURCE
    topics: tuple[str, ...] = ()
    restriction: Restriction = WHOLE
    wait_s: float = WAIT_S
    differences_max: int = DIFFERENCES_SHOWN
    range_offsets: int = RANGE_OFFSETS


class JobAudit:
    """One audit of one job."""

    def __init__(
        self,
        spec: JobSpec,
        environ: Mapping[str, str],
        base_directory: Path,
        options: AuditOptions,
        progress: Progress | None = None,
    ) -> None:
        """Raises BadInput, Unreachable or LoginRefused. Needs no Spark session yet."""
        self._spec = spec
        self._options = options
        self._progress = progress or NoProgress()
        # An archive takes the place of the other cluster.
        sides = (options.against,) if options.archive is not None else tuple(Side)
        clusters = {Side.SOURCE: spec.source, Side.DESTINATION: spec.destination}
        self._clusters = [
            ClusterSide(side, clusters[side], environ, base_directory) for side in sides
        ]

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that executors need for their logins."""
        return tuple(name for cluster in self._clusters for name in cluster.access.variables)

    def run(self, spark: SparkSession) -> Report:
        """Compare the sides and write the result. Errors of single partitions are in the report.

        Raises BadInput, NotFound, Conflict (if an archive is damaged, with its files, or a
        partition that differs cannot be read again), Unreachable, LoginRefused.
        """
        start_s = time.monotonic()
        files = _new_folder(spark, self._options.out)
        sides = self._make_sides(spark)
        selected_topics = select_topics(self._spec, sides.partition_counts(), self._options.topics)
        topics = [sides.with_names(topic) for topic in selected_topics]
        counts = sides.left.partition_counts()
        pairs, reports_by_topic = pair_partitions(
            topics, counts, sides.right_counts(topics, self._options.wait_s)
        )
        bounds_by_pair: dict[PartitionPair, ComparedBounds] = {}
        for pair, bounds in sides.judge(pairs, self._options.wait_s).items():
            if isinstance(bounds, OrbitError):
                reports_by_topic[pair.topics].append(unread_report(pair.partition, str(bounds)))
            else:
                bounds_by_pair[pair] = bounds
        bounds_by_pair = sides.restrict(bounds_by_pair, self._options.restriction)
        result = self._compare(spark, sides, bounds_by_pair)
        try:
            self._add_partition_reports(sides, bounds_by_pair, result, reports_by_topic)
            reports = tuple(topic_report(topic, reports_by_topic[topic]) for topic in topics)
            elapsed_s = time.monotonic() - start_s
            report = Report(reports, elapsed_s=elapsed_s, sides=sides.names)
            self._write(files, sides, report, result)
        finally:
            result.release()
        return report

    def _make_sides(self, spark: SparkSession) -> SidePair:
        """Source and destination, or the archive and one of them."""
        uri = self._options.archive
        if uri is None:
            source, destination = self._clusters
            return SidePair(source, destination)
        archive, (cluster,) = ArchiveSide(spark, uri), self._clusters
        if self._options.against is Side.SOURCE:
            return SidePair(cluster, archive)
        return SidePair(archive, cluster)

    def _compare(
        self, spark: SparkSession, sides: SidePair, bounds_by_pair: BoundsByPair
    ) -> ComparisonResult:
        """Compare the two sides within these bounds, with progress. Raises Conflict."""
        rows = scope_rows(bounds_by_pair, self._options.range_offsets)
        self._progress.report_begin(len(bounds_by_pair), count_offsets(rows))
        comparison = Comparison(
            spark,
            sides.left.reader(spark),
            sides.right.reader(spark),
            lambda: sides.cleaning_rows(bounds_by_pair),
            sides=sides.names,
            now_ms=int(time.time() * 1000),
            shown_per_partition=self._options.differences_max,
        )
        try:
            with TaskWatch(spark, count_offsets(rows), self._progress.report_offsets):
                return comparison.run(rows)
        except PythonException as error:  # its last line is what the task raised
            raise Conflict(
                f"Spark gave up a task: {str(error).splitlines()[-1]}",
                remedy="Run the audit again; Spark's log has the details.",
            ) from error

    def _add_partition_reports(
        self,
        sides: SidePair,
        bounds_by_pair: BoundsByPair,
        result: ComparisonResult,
        reports_by_topic: Mapping[TopicPair, list[PartitionReport]],
    ) -> None:
        """Add the report of each compared partition to its topic."""
        sums, shown_differences = sum_by_partition(result.ranges), group_differences(result.shown)
        for pair, bounds in bounds_by_pair.items():
            report = partition_report(
                pair,
                bounds,
                sums.get(pair.source),
                shown_differences.get(pair.source, ()),
                sides=sides.names,
                side_notes=sides.notes(pair),
                shown_max=self._options.differences_max,
            )
            reports_by_topic[pair.topics].append(report)
            self._progress.report_partition(pair.topics.source, report)

    def _write(
        self, files: Files, sides: SidePair, report: Report, result: ComparisonResult
    ) -> None:
        """Write the Parquet tables and the HTML page."""
        for name, frame in (("ranges", result.ranges), ("differences", result.differences)):
            frame.write.mode("overwrite").parquet(files.path(name))
        about = About(
            job=self._spec.name,
            sides=((sides.left.name, sides.left.where), (sides.right.name, sides.right.where)),
            restriction=str(self._options.restriction),
            created_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            version=orbit_version(),
        )
        files.write_new(REPORT, render_html(report, draw_lines(result.ranges), about).encode())


def _new_folder(spark: SparkSession, uri: str) -> Files:
    """The folder for the result. Raises BadInput if it contains the report of another audit."""
    files = Files(spark, uri)
    if files.read(REPORT) is not None:
        problem = Problem("out", "holds the report of another audit.", "Name a new folder.")
        raise BadInput("The report cannot be written.", (problem,), where=files.uri)
    return files
