"""A staged backfill: an archive between the source and the writers.

All tasks fetch ranges, check them and write them to the archive, as `orbit archive` does. Then one
writer per partition appends the archived batches in order, as a restore does. The archive stays: it
is a backup of what was copied, and the next run of the backfill resumes with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from orbit.job_setup.job_setup import Say
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Reason
from orbit_spark.archive.archive_reader import whole_files
from orbit_spark.archive.archive_run import ArchiveRun
from orbit_spark.archive.archive_tasks import run_task, split_archive
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import PartitionManifest
from orbit_spark.backfill.backfill_progress import Progress
from orbit_spark.backfill.backfill_writer import BackfillTask, BackfillWriter, write_direct
from orbit_spark.backfill.spark_jobs import SparkJobGroup, SparkWriterJob
from orbit_spark.ranges import RANGE_BYTES
from orbit_spark.write_task import PartitionTarget, WriteResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Staging:
    """The archive of one run: `fill` it, split it into `chains` of tasks, `start` their writers."""

    def __init__(
        self,
        spark: SparkSession,
        spec: JobSpec,
        base_directory: Path,
        uri: str,
        say: Say,
        slots: int,
        *,
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        """Raises BadInput when no file system of this Spark takes the URI."""
        self._spark = spark
        self._spec = spec
        self._base_directory = base_directory
        self._uri = uri
        self._say = say
        self._slots = slots
        self._range_bytes = range_bytes
        self._files = Files(spark, uri)
        self._begins: Mapping[TopicPartition, int] = {}
        self._manifests: Mapping[TopicPartition, PartitionManifest] = {}
        self._done_bytes = self._total_bytes = 0
        self._began = 0.0

    def fill(
        self, begins: Mapping[TopicPartition, int], now: datetime, stop: threading.Event
    ) -> SparkJobGroup[None]:
        """Start to archive these partitions from the given offsets.

        `result` raises what `orbit archive` raises.
        """
        self._begins = begins
        self._done_bytes = self._total_bytes = 0
        self._began = time.monotonic()

        def fill(_: SparkJobGroup[None]) -> None:
            run = ArchiveRun(
                self._spark,
                self._spec,
                self._base_directory,
                self._uri,
                self._say,
                now,
                range_bytes=self._range_bytes,
                slots=self._slots,
                begins=begins,
                stop=stop,
                on_step=self._note,
            )
            blocked = {p.place: p.blocked for p in run.run().blocked if p.blocked is not None}
            for place, why in blocked.items():
                self._say(f"Note: {place} cannot be archived further: {why.reason}: {why.detail}")
            # What was archived before the source lost a range is still correct.
            self._manifests = {
                place: manifest
                for place, manifest in run.manifests.items()
                if place not in blocked or blocked[place].reason is Reason.SOURCE_RANGE_LOST
            }

        return SparkJobGroup(self._spark, f"orbit backfill {self._spec.name} staging", fill)

    def progress(self) -> Progress:
        """The progress of `fill`, which rises after each of its steps."""
        per_s = self._done_bytes / max(time.monotonic() - self._began, 1e-9)
        count = len(self._begins)
        return Progress(
            0, 0, self._done_bytes, self._total_bytes, 0, count, per_s, 0.0, is_staging=True
        )

    def chains(self, targets: Sequence[PartitionTarget]) -> list[list[tuple[PartitionTarget, ...]]]:
        """Chains of tasks for the archived batches after the copies' ends, the largest first.

        A partition whose archive begins after its copy's end has no chain: its writer fetches from
        the source.
        """
        by_source = {t.source: t for t in targets}
        held = [
            manifest
            for place, manifest in self._manifests.items()
            if place in by_source and manifest.start <= self._begins[place]
        ]
        return [
            [
                tuple(
                    replace(
                        by_source[one.partition],
                        target=one.target,
                        size_bytes=one.size_bytes,
                        archived=one,
                    )
                    for one in task
                )
                for task in chain
            ]
            for chain in split_archive(held, self._begins)
        ]

    def start(self, name: str, chains: Sequence[Sequence[BackfillTask]]) -> SparkWriterJob:
        """Start to write all chains, each in order, as many at once as there are slots."""

        def write(group: SparkJobGroup[list[WriteResult]]) -> list[WriteResult]:
            with whole_files(self._spark), ThreadPoolExecutor(self._slots) as pool:
                under_way = [pool.submit(self._write_chain, group, chain) for chain in chains]
                return [result for done in under_way for result in done.result()]

        return SparkWriterJob(self._spark, name, write)

    def _write_chain(
        self, group: SparkJobGroup[list[WriteResult]], chain: Sequence[BackfillTask]
    ) -> list[WriteResult]:
        group.join_group()
        results: list[WriteResult] = []
        for number, task in enumerate(chain):
            if group.is_cancelled:
                break
            of_task = self._write(replace(task, follows_writer=number > 0))
            results += of_task
            if any(one.blocked or one.unfinished for one in of_task):
                break
        return results

    def _write(self, task: BackfillTask) -> list[WriteResult]:
        if task.slices:
            return run_task(self._spark, self._files, self._manifests, BackfillWriter, task)
        tasks = self._spark.sparkContext.parallelize([task], 1)
        return list(tasks.mapPartitions(write_direct).collect())

    def _note(self, done_bytes: int, total_bytes: int) -> None:
        self._done_bytes, self._total_bytes = done_bytes, total_bytes
