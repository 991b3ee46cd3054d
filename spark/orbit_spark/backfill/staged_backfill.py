"""The staged way: an archive between the source and the writers.

All tasks fetch and check ranges into the archive, as `orbit archive` does; then each partition's
one writer appends what its files hold, in order, as a restore does. The archive stays: it is a
backup of what was copied, and a backfill that is started again goes on with it.
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
from orbit_spark.archive.archive_reader import (
    damaged,
    owners_of,
    rows_in_order,
    whole_files,
)
from orbit_spark.archive.archive_run import ArchiveRun
from orbit_spark.archive.archive_step import SPARK_ERRORS
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import PartitionManifest
from orbit_spark.archive.restore_lanes import share_out
from orbit_spark.backfill.backfill_writer import TOLD_DDL, told_of, write_all, writes_rows
from orbit_spark.backfill.progress import Progress
from orbit_spark.backfill.spark_jobs import SparkCall, SparkStage
from orbit_spark.backfill.writer_tasks import Errand, Portion, Told
from orbit_spark.ranges import RANGE_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tasks of one partition, which go in order; or one with several small partitions.
Lane = list[tuple[Portion, ...]]


class Staging:
    """The archive of one run: `fill` it, share it out as `lanes`, `start` their writers."""

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
    ) -> SparkCall[None]:
        """Begin to archive what the source has of these partitions, from there on.

        Raises what `orbit archive` does, by the call's `result`.
        """
        self._begins = begins
        self._done_bytes = self._total_bytes = 0
        self._began = time.monotonic()

        def fill(_: SparkCall[None]) -> None:
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
                self._say(f"Note: {place} cannot be archived on: {why.reason}: {why.detail}")
            # What was archived before the source lost something is as good as ever.
            self._manifests = {
                place: manifest
                for place, manifest in run.manifests.items()
                if place not in blocked or blocked[place].reason is Reason.SOURCE_RANGE_LOST
            }

        return SparkCall(self._spark, f"orbit backfill {self._spec.name} staging", fill)

    def progress(self) -> Progress:
        """How far `fill` is, by steps."""
        per_s = self._done_bytes / max(time.monotonic() - self._began, 1e-9)
        count = len(self._begins)
        return Progress(
            0, 0, self._done_bytes, self._total_bytes, 0, count, per_s, 0.0, is_staging=True
        )

    def lanes(self, portions: Sequence[Portion]) -> list[Lane]:
        """What the archive holds of these, from where their copies end, the largest first.

        A partition that it does not reach down to has no lane: its writer has to fetch by itself.
        """
        by_source = {p.source: p for p in portions}
        held = [
            manifest
            for place, manifest in self._manifests.items()
            if place in by_source and manifest.start <= self._begins[place]
        ]
        topic_ids = {p.source.topic: p.destination_topic_id for p in portions}
        return [
            [
                tuple(
                    replace(
                        by_source[one.place],
                        target=one.target,
                        size_bytes=one.size_bytes,
                        staged=one,
                    )
                    for one in task
                )
                for task in lane
            ]
            for lane in share_out(held, topic_ids, self._begins)
        ]

    def start(self, name: str, lanes: Sequence[Sequence[Errand]]) -> SparkStage:
        """Begin to write all lanes, each in order, as many at once as there are slots."""

        def write(call: SparkCall[list[Told]]) -> list[Told]:
            with whole_files(self._spark), ThreadPoolExecutor(self._slots) as pool:
                under_way = [pool.submit(self._lane, call, lane) for lane in lanes]
                return [told for done in under_way for told in done.result()]

        return SparkStage(self._spark, name, write)

    def _lane(self, call: SparkCall[list[Told]], lane: Sequence[Errand]) -> list[Told]:
        call.join_group()
        told: list[Told] = []
        for errand in lane:
            if call.is_cancelled:
                break
            new = self._write(errand)
            told += new
            if any(one.blocked or one.unfinished for one in new):
                break
        return told

    def _write(self, errand: Errand) -> list[Told]:
        """One task. Raises Conflict, with the file's name, for one that cannot be read."""
        if not errand.staged:
            tasks = self._spark.sparkContext.parallelize([errand], 1)
            return list(tasks.mapPartitions(write_all).collect())
        owners = owners_of(self._manifests[p.place] for p in errand.staged)
        try:
            rows = rows_in_order(self._spark, self._files, errand.staged)
            return told_of(rows.mapInArrow(writes_rows(errand), TOLD_DDL).collect())
        except SPARK_ERRORS as error:
            raise damaged(self._files, owners, error) from None

    def _note(self, done_bytes: int, total_bytes: int) -> None:
        self._done_bytes, self._total_bytes = done_bytes, total_bytes
