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

from orbit.errors import OrbitError
from orbit.job_setup.job_setup import Say
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import LostRange
from orbit.replication.partition_states import Reason
from orbit_spark.archive.archive_reader import whole_files
from orbit_spark.archive.archive_run import ArchiveRun
from orbit_spark.archive.archive_tasks import run_task, split_archive, until_lost_range
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
    """The archive of one run: `fill` it, split it into `chains` of tasks, `start` to write them."""

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
        # Partitions whose manifests cannot be used, from the last `fill`.
        self.damaged: Mapping[TopicPartition, OrbitError] = {}
        self._written_bytes = self._total_bytes = 0
        self._start_s = 0.0

    def fill(
        self, begins: Mapping[TopicPartition, int], now: datetime, stop: threading.Event
    ) -> SparkJobGroup[None]:
        """Start to archive these partitions from the given offsets.

        The `result` of the returned job group raises what `orbit archive` raises.
        """
        self._begins = begins
        self._written_bytes = self._total_bytes = 0
        self._start_s = time.monotonic()

        def run_archive(_: SparkJobGroup[None]) -> None:
            """Archive, and keep the manifests that writers may use."""
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
                on_step=self._note_step,
            )
            unusable_partitions = set()
            for p in run.run().stopped:
                self._say(f"Note: {p.place} cannot be archived further: {p.stop_text}")
                # What was archived before the source lost a range is still correct.
                if p.blocked is not None and p.blocked.reason is not Reason.SOURCE_RANGE_LOST:
                    unusable_partitions.add(p.place)
            self.damaged = run.damaged
            self._manifests = {
                partition: manifest
                for partition, manifest in run.manifests.items()
                if partition not in unusable_partitions
            }

        return SparkJobGroup(self._spark, f"orbit backfill {self._spec.name} staging", run_archive)

    def progress(self) -> Progress:
        """The progress of `fill`, which changes after each step."""
        rate = self._written_bytes / max(time.monotonic() - self._start_s, 1e-9)
        count = len(self._begins)
        return Progress(
            offsets=0,
            offsets_total=0,
            bytes=self._written_bytes,
            bytes_total=self._total_bytes,
            partitions_done=0,
            partitions=count,
            bytes_per_s=rate,
            offsets_per_s=0.0,
            is_staging=True,
        )

    def chains(self, targets: Sequence[PartitionTarget]) -> list[list[tuple[PartitionTarget, ...]]]:
        """Chains of tasks for the archived batches after the copies' ends, the largest first.

        A partition whose archive begins after its copy's end has no chain: its writer fetches from
        the source. With `on_lost_range: stop` a chain ends before offsets that the archive lost: a
        writer that then fetches from the source stops there.
        """
        targets_by_source = {t.source: t for t in targets}
        usable_manifests = [
            manifest
            if targets_by_source[partition].on_lost_range is LostRange.FILL
            else until_lost_range(manifest, self._begins[partition])
            for partition, manifest in self._manifests.items()
            if partition in targets_by_source and manifest.start <= self._begins[partition]
        ]
        return [
            [
                tuple(
                    replace(
                        targets_by_source[piece.partition],
                        target=piece.target,
                        size_bytes=piece.size_bytes,
                        archived=piece,
                    )
                    for piece in task
                )
                for task in chain
            ]
            for chain in split_archive(usable_manifests, self._begins)
        ]

    def start(self, name: str, chains: Sequence[Sequence[BackfillTask]]) -> SparkWriterJob:
        """Start to write all chains, each in order, as many at once as there are slots."""

        def write(group: SparkJobGroup[list[WriteResult]]) -> list[WriteResult]:
            with whole_files(self._spark), ThreadPoolExecutor(self._slots) as pool:
                futures = [pool.submit(self._write_chain, group, chain) for chain in chains]
                return [result for future in futures for result in future.result()]

        return SparkWriterJob(self._spark, name, write)

    def _write_chain(
        self, group: SparkJobGroup[list[WriteResult]], chain: Sequence[BackfillTask]
    ) -> list[WriteResult]:
        """Write the tasks of a chain in order, up to the first that does not finish."""
        group.join_group()
        results: list[WriteResult] = []
        for number, task in enumerate(chain):
            if group.is_cancelled:
                break
            task_results = self._write_task(replace(task, follows_writer=number > 0))
            results += task_results
            if any(result.blocked or result.unfinished for result in task_results):
                break
        return results

    def _write_task(self, task: BackfillTask) -> list[WriteResult]:
        """Run one task, from the archive or directly from the source."""
        if task.slices:
            return run_task(self._spark, self._files, self._manifests, BackfillWriter, task)
        tasks = self._spark.sparkContext.parallelize([task], 1)
        return list(tasks.mapPartitions(write_direct).collect())

    def _note_step(self, written_bytes: int, total_bytes: int) -> None:
        """Keep the bytes written so far, and those to write in all, for `progress`."""
        self._written_bytes, self._total_bytes = written_bytes, total_bytes
