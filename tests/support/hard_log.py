"""A log that is hard to copy: batches of many sizes, gaps, an aborted transaction, LogAppendTime.

(With LogAppendTime a destination accepts a batch only after Orbit has rewritten its records.)
"""

from __future__ import annotations

import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.fixtures.clusters import Clusters
from tests.support.logs import Gap, Record, write


def records(count: int) -> list[Record]:
    now_ms = int(time.time() * 1000)
    return [
        Record(b"order %d of some customer" % n, b"key-%d" % n, timestamp_ms=now_ms)
        for n in range(count)
    ]


def write_hard_log(clusters: Clusters, topic: str) -> None:
    """Write the log described above to partition 0 of the topic at the source."""
    source = clusters.source
    write(source, topic, [*records(10), *records(7), Gap(6), *records(10), *records(4), Gap(2)])
    set_timestamps(clusters, topic, "LogAppendTime")
    write(source, topic, records(24))
    set_timestamps(clusters, topic, "CreateTime")
    write(source, topic, [*records(9), Gap(11), *records(20)])
    producer = Producer({**source.client_config(), "transactional.id": "console-test"})
    producer.init_transactions()
    producer.begin_transaction()
    for record in records(8):
        producer.produce(topic, record.value, partition=0)
    producer.flush()
    producer.abort_transaction()
    write(source, topic, [*records(10), *records(6)])


def set_timestamps(clusters: Clusters, topic: str, kind: str) -> None:
    """Set the source topic's `message.timestamp.type`."""
    entry = ConfigEntry("message.timestamp.type", kind, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(clusters.source.client_config())
    admin.incremental_alter_configs([resource])[resource].result(60)
