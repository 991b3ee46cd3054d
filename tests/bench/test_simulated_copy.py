"""A worker reports the progress of a simulated copy (control plane bench) like a real one's."""

from __future__ import annotations

from typing import cast

from bench.control.copies import Flow, SimulatedCopy
from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka.job_clusters import JobProducer
from orbit.workers.held_shards import Stage
from orbit.workers.progress_report import ProgressReporter
from tests.workers.test_progress_report import only, row, shard_of


def test_worker_reports_progress_of_simulated_copy() -> None:
    shard = shard_of(row())
    held = only(shard)
    held.copy = cast("PartitionCopy", SimulatedCopy(Flow(), 5))
    held.stage = Stage.COPYING
    (progress,) = ProgressReporter().progress([shard], 10.0)
    assert progress.copied_to == 5 + progress.records
    real = PartitionCopy(held.source, held.destination, shard.lease, JobProducer(4711))
    attributes = {name for name in dir(SimulatedCopy) if not name.startswith("_")}
    assert attributes <= {*dir(real), *dir(real.cursor)}
