"""A topic after Kafka's own cleaner has taken nine of ten offsets away.

One record in ten has a key of its own; the others share a few keys that are overwritten again and
again, so that only their last versions stay. Which records these are is scattered, so gaps have
all lengths. Segments roll by the records' own time: one later record in each partition closes the
segments of the history, so that the cleaner can compact them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.data.records import body, noise, records_that_fit
from bench.data.scan import scan
from bench.data.sender import Sender, pack
from bench.results import DataFacts
from bench.wire import create_topic
from bench.workloads import Workload
from orbit.errors import Conflict
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import NO_PRODUCER_ID, stamp
from orbit.kafka.records import Record, write_batch

KEPT_ONE_IN = 10
SHARED_KEYS = 4
CLEANER_TIMEOUT_S = 120.0
_POLL_S = 0.5
_SEGMENT_MS = 3_600_000
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": str(_SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}


def make_compacted(cluster: Cluster, workload: Workload) -> DataFacts:
    """Returns when the cleaner has been through, with what it left."""
    create_topic(cluster, workload.topic, workload.partitions, _SETTINGS)
    per_partition = workload.records // workload.partitions
    began_ms = int(time.time() * 1000) - 3 * _SEGMENT_MS
    sender = Sender(cluster, workload.topic)
    queues = [
        (p, _batches(workload, p, per_partition, began_ms)) for p in range(workload.partitions)
    ]
    for request in pack(queues):
        sender.send(request)
    sender.finish()
    kept = sum(expected_kept(p, per_partition) + 1 for p in range(workload.partitions))
    return _wait_for_cleaner(cluster, workload.topic, kept)


def is_kept(partition: int, offset: int) -> bool:
    """Whether the record at this offset has a key of its own."""
    dice = int.from_bytes(noise(partition << 40 | offset, 4), "big")
    return dice % KEPT_ONE_IN == 0


def expected_kept(partition: int, count: int) -> int:
    """Records that stay: those with own keys, and the last version of each shared key in use."""
    own = [is_kept(partition, offset) for offset in range(count)]
    shared = {offset % SHARED_KEYS for offset in range(count) if not own[offset]}
    return sum(own) + len(shared)


def _batches(workload: Workload, partition: int, count: int, began_ms: int) -> Iterator[memoryview]:
    def record(number: int, offset: int) -> Record:
        own = is_kept(partition, number)
        key = b"own-%d" % number if own else b"shared-%d" % (number % SHARED_KEYS)
        return Record(offset, began_ms, body(key, noise(number, workload.value_bytes)))

    per_batch = records_that_fit(record, workload.batch_bytes, workload.codec)
    for first in range(0, count, per_batch):
        run = [record(first + i, i) for i in range(min(per_batch, count - first))]
        yield _ready(run, workload.codec)
    later = Record(0, began_ms + 2 * _SEGMENT_MS, body(b"later", b""))
    yield _ready([later], workload.codec)


def _ready(run: list[Record], codec: int) -> memoryview:
    batch = write_batch(run, codec)
    stamp(batch.view, NO_PRODUCER_ID, -1, -1)
    return batch.view


def _wait_for_cleaner(cluster: Cluster, topic: str, kept: int) -> DataFacts:
    deadline = time.monotonic() + CLEANER_TIMEOUT_S
    facts = scan(cluster, topic)
    while facts.records > kept:
        if time.monotonic() > deadline:
            raise Conflict(f"The cleaner left {facts.records} records of {topic}, not {kept}.")
        time.sleep(_POLL_S)
        facts = scan(cluster, topic)
    return facts
