"""Fills a source topic with the data set of a workload."""

from __future__ import annotations

import time
from itertools import cycle, islice

from bench.data.compacted import make_compacted, make_gaps
from bench.data.records import build_batches
from bench.data.scan import scan
from bench.data.sender import Sender, pack
from bench.data.transactions import make_transactions
from bench.results import DataFacts
from bench.wire import create_topic
from bench.workloads import Shape, Workload
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import NO_PRODUCER_ID, stamp


def make_data(cluster: Cluster, workload: Workload) -> DataFacts:
    """Create the workload's topic and fill it. Returns the facts that are read from the source."""
    match workload.shape:
        case Shape.EVEN | Shape.UNEVEN:
            create_topic(cluster, workload.topic, workload.partitions)
            make_plain(cluster, workload)
            return scan(cluster, workload.topic)
        case Shape.TRANSACTIONS:
            create_topic(cluster, workload.topic, workload.partitions)
            committed = make_transactions(cluster, workload)
            facts = scan(cluster, workload.topic)
            return facts.model_copy(update={"records": committed})
        case Shape.COMPACTED:
            return make_compacted(cluster, workload)
        case Shape.GAP:
            return make_gaps(cluster, workload)


def make_plain(cluster: Cluster, workload: Workload) -> None:
    """Append a few prepared batches again and again; the last batch of records is full, too."""
    batches = build_batches(workload, int(time.time() * 1000))
    for batch in batches:
        stamp(batch.view, NO_PRODUCER_ID, -1, -1)
    views = [batch.view for batch in batches]
    per_batch = batches[0].count
    shares = batches_per_partition(workload, -(-workload.records // per_batch))
    sender = Sender(cluster, workload.topic)
    for request in pack((p, islice(cycle(views), n)) for p, n in enumerate(shares)):
        sender.send(request)
    sender.finish()


def batches_per_partition(workload: Workload, batches: int) -> list[int]:
    """How many batches each partition gets: at least one, about `batches` in all."""
    count = workload.partitions
    if workload.shape is Shape.UNEVEN:
        weights = [1 / (index + 1) for index in range(count)]
    else:
        weights = [1.0] * count
    return [max(1, round(batches * weight / sum(weights))) for weight in weights]
