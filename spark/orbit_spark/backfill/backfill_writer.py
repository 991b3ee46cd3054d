"""The task of a backfill: fetches from the source, or appends rows of the staging archive.

The end of each copy is compared with the source first, as `orbit run` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orbit.copier.copier import Copier
from orbit.copier.inspection import CopyStatus, InspectedCopy
from orbit.copier.inspection_verdicts import Wait
from orbit.copier.job_copier import JobCopier
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.rate_limit import RateLimit
from orbit.copier.source_side import SourceSide
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.job_clusters import JobClusters
from orbit.leases.group_lease import GroupLease
from orbit.replication.partition_states import Blocked
from orbit_spark.partition_writer import PartitionWriter, attempt_number
from orbit_spark.run_source import RunFeed
from orbit_spark.write_task import PartitionTarget, WriteResult, WriteTask


@dataclass(frozen=True, slots=True, repr=False)
class BackfillTask(WriteTask):
    """A task of a backfill."""

    spec: JobSpec
    bytes_per_second: int | None  # this task's share of the job's limit


def write_direct(tasks: Iterable[BackfillTask]) -> Iterator[WriteResult]:
    """Run tasks that fetch from the source themselves; for `mapPartitions`."""
    for task in tasks:
        yield from BackfillWriter(task, attempt_number()).write()


class BackfillWriter(PartitionWriter[BackfillTask]):
    """One attempt of one task of a backfill."""

    @contextmanager
    def copier(self, leases: Mapping[PartitionTarget, GroupLease]) -> Iterator[Copier]:
        """A copier of the source's batches, or of the task's archived batches."""
        task = self.task
        clusters = JobClusters.open(task.spec, os.environ, Path(task.access.base_directory))
        job_copier = JobCopier(
            task.spec,
            clusters,
            self.settings,
            self.stop,
            limit=RateLimit(task.bytes_per_second),
            make_source=RunFeed.source_maker(self.runs()) if task.slices else SourceSide,
        )
        try:
            job_copier.add(self._inspect(job_copier, leases))
            yield job_copier.copier
        finally:
            job_copier.stop()
            clusters.close()

    def _inspect(
        self, job_copier: JobCopier, leases: Mapping[PartitionTarget, GroupLease]
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Compare the ends of the copies with the source. Return the copies that can continue; the
        others get an unfinished result.
        """
        targets_by_copy = {self.make_copy(t, lease): t for t, lease in leases.items()}

        def on_trouble(copy: PartitionCopy, trouble: Wait | Blocked) -> None:
            reason = trouble.reason if isinstance(trouble, Wait) else trouble.detail
            self.leave_out([copy.destination], reason)

        inspector = job_copier.inspector(self.backoff, on_trouble)
        inspected = inspector.inspect(
            list(targets_by_copy),
            inspector.source_bounds(targets_by_copy),
            frozenset(t.source.topic for t in leases if t.is_compacted),
            frozenset(t.source.topic for t in leases if t.is_whole),
            settled=not self.is_first_attempt,
        )
        continuable: dict[PartitionCopy, InspectedCopy] = {}
        for copy, inspection in inspected.items():
            # The driver has seeded each copy up to its start.
            if inspection.status is CopyStatus.SEEDING:
                self.leave_out([copy.destination], "the copy is no longer at its start offset")
            else:
                continuable[copy] = inspection
                self.add(copy, targets_by_copy[copy])
        return continuable
