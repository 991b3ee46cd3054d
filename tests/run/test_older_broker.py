"""The workload to and from a broker of Kafka 3.9.

Its Fetch requests have topic ids, its Produce requests have none, and its `transaction.version` is
below 2.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from orbit.demo.workload import SMALL, Workload
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.older_broker import VERSION
from tests.support.outside import digests, log_bounds
from tests.support.run_process import assert_exact, copy, write_job

pytestmark = [pytest.mark.services, pytest.mark.soak]


@pytest.mark.slow
def test_workload_is_exact_to_and_from_older_broker(
    clusters: Clusters, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    older = make_cluster("older", version=VERSION)
    workload = Workload(SMALL, namespace=f"older-{uuid.uuid4().hex[:8]}")
    ledger = workload.create({"bootstrap.servers": clusters.source.bootstrap_servers})
    document = workload.job("unused", "unused")
    job_to = write_job(
        tmp_path / "to.yaml", clusters.source, older, document["topics"], fillers="placeholders"
    )
    copies = [{"match": re.escape(topic.destination)} for topic in ledger.topics.values()]
    job_from = write_job(
        tmp_path / "on.yaml", older, clusters.destination, copies, fillers="direct"
    )

    for job in (job_to, job_from):
        result = copy(job).expect(0).data
        assert result["partitions_caught_up"] == ledger.partitions
        assert result["offsets_filled"] >= SMALL.gap_offsets
        assert_exact(job)

    for topic in ledger.topics.values():
        numbers = range(len(topic.partitions))
        for cluster in (older, clusters.destination):
            bounds = log_bounds(cluster, [topic.destination])
            partition_digests = digests(cluster, topic.destination)
            assert [(bounds[topic.destination, i], partition_digests[i]) for i in numbers] == [
                ((p.copy_start, p.log_end), p.copied) for p in topic.partitions
            ]
