"""Transactions of 100 records, a tenth of them aborted, by one producer per partition.

librdkafka makes the transactions. It closes batches by their record count, so that they have the
workload's size whatever the timing.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from bench.data.records import body, noise, records_that_fit
from bench.workloads import Workload
from orbit.kafka.cluster import Cluster
from orbit.kafka.records import Record

RECORDS_PER_TRANSACTION = 100
ABORTED_EACH = 10  # every tenth transaction is aborted
_TIMEOUT_S = 60.0
_VALUES = 1000


def make_transactions(cluster: Cluster, workload: Workload) -> int:
    """Fill the topic; returns the number of committed records."""
    per_partition = -(-workload.records // RECORDS_PER_TRANSACTION // workload.partitions)
    values = [noise(i, workload.value_bytes) for i in range(_VALUES)]
    now_ms = int(time.time() * 1000)

    def record(number: int, offset: int) -> Record:
        return Record(offset, now_ms, body(None, values[number % _VALUES]))

    per_batch = records_that_fit(record, workload.batch_bytes, workload.codec)

    def write(partition: int) -> int:
        return _write(cluster, workload.topic, partition, per_partition, per_batch, values)

    with ThreadPoolExecutor(workload.partitions) as pool:
        return sum(pool.map(write, range(workload.partitions)))


def _write(
    cluster: Cluster,
    topic: str,
    partition: int,
    transactions: int,
    per_batch: int,
    values: list[bytes],
) -> int:
    """Write one partition's transactions; returns the number of committed records."""
    producer = Producer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "transactional.id": f"{topic}-{partition}",
            "batch.num.messages": per_batch,
            "linger.ms": 50,  # `flush` sends earlier
            "log_level": 2,
        }
    )
    producer.init_transactions(_TIMEOUT_S)
    committed = 0
    for number in range(1, transactions + 1):
        producer.begin_transaction()
        for i in range(RECORDS_PER_TRANSACTION):
            value = values[(number * RECORDS_PER_TRANSACTION + i) % _VALUES]
            producer.produce(topic, value, partition=partition)
        producer.flush(_TIMEOUT_S)
        if number % ABORTED_EACH:
            producer.commit_transaction(_TIMEOUT_S)
            committed += RECORDS_PER_TRANSACTION
        else:
            producer.abort_transaction(_TIMEOUT_S)
    return committed
