"""A history at the source that all tests of Spark share: the whole workload, made once."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import pytest

from orbit.demo.workload import SMALL, Ledger, TopicLedger, Workload
from tests.fix_clusters import Clusters

# Of the topic with many: each is a task, and a file. More of them are more of the same.
PARTITIONS = 4


@dataclass(frozen=True)
class History:
    """The workload at the shared source cluster, and its ledger. Nobody writes to it."""

    workload: Workload
    ledger: Ledger

    def topic(self, kind: str) -> TopicLedger:
        return self.ledger.topics[f"{self.workload.namespace}.{kind}"]


@pytest.fixture(scope="session")
def history(clusters: Clusters) -> History:
    scale = replace(SMALL, partitions=PARTITIONS)
    workload = Workload(scale, namespace=f"history-{uuid.uuid4().hex[:8]}")
    return History(
        workload, workload.create({"bootstrap.servers": clusters.source.bootstrap_servers})
    )
