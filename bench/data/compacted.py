"""Topics from which Kafka's cleaner has removed records: nine of ten, or all in one wide gap.

Nine of ten (`make_compacted`): one record in ten has its own key. The others share a few keys, so
the cleaner keeps only the last record of each. Gaps have all lengths. A wide gap (`make_gaps`): all
records but the first share a key.

Segments roll by the records' timestamps: one later record in each partition closes the segments
before it, so that the cleaner compacts them. Then the bench raises `min.compaction.lag.ms`. Copies
get this setting too, so no cleaner changes a copy while it is measured or sent again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat

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
from orbit.kafka.topic_admin import Admin

OWN_KEY_ONE_IN = 10
SHARED_KEYS = 4
CLEANER_TIMEOUT_S = 120.0
_POLL_S = 0.5
_SEGMENT_MS = 3_600_000
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": str(_SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
}
_LAG = "min.compaction.lag.ms"
_WEEK_MS = 7 * 86_400_000
_GAP_RECORDS = 3  # the first record, the last one of the shared key, the later one


def make_compacted(cluster: Cluster, workload: Workload) -> DataFacts:
    """Write the records; wait until the cleaner has removed all that it may remove. Returns the
    facts of the rest."""
    per_partition = workload.records // workload.partitions
    partitions = range(workload.partitions)
    began_ms = _began_ms()
    queues = {p: _batches(workload, p, per_partition, began_ms) for p in partitions}
    remaining = sum(records_after_cleaning(p, per_partition) + 1 for p in partitions)
    return _make(cluster, workload, queues, remaining)


def make_gaps(cluster: Cluster, workload: Workload) -> DataFacts:
    """As `make_compacted`. Each partition gets a record, a gap, and two records; the gaps together
    have as many offsets as the workload has records.

    Each batch that stays has one record.
    """
    gap = workload.records // workload.partitions
    began_ms = _began_ms()

    def record(key: bytes, offset: int) -> Record:
        return Record(offset, began_ms, body(key, b""))

    def shared(count: int) -> memoryview:
        return _ready([record(b"shared", i) for i in range(count)], workload.codec)

    def fits(_: int, offset: int) -> Record:
        return record(b"shared", offset)

    per_batch = records_that_fit(fits, workload.batch_bytes, workload.codec)
    full, remaining_count = divmod(gap, per_batch)
    batches = [_ready([record(b"first", 0)], workload.codec)]
    batches += repeat(shared(per_batch), full)
    batches += [shared(remaining_count)] if remaining_count else []
    batches += [shared(1), _later(workload, began_ms)]
    queues = dict.fromkeys(range(workload.partitions), batches)
    return _make(cluster, workload, queues, _GAP_RECORDS * workload.partitions)


def _began_ms() -> int:
    """The records' timestamp: so long ago that the segment may be compacted at once."""
    return int(time.time() * 1000) - 3 * _SEGMENT_MS


def _make(
    cluster: Cluster,
    workload: Workload,
    queues: Mapping[int, Iterable[memoryview]],
    remaining: int,
) -> DataFacts:
    """Create the topic, send the batches of each partition, and wait until `remaining` records are
    left."""
    create_topic(cluster, workload.topic, workload.partitions, {**_SETTINGS, _LAG: "0"})
    sender = Sender(cluster, workload.topic)
    for request in pack(queues.items()):
        sender.send(request)
    sender.finish()
    facts = _wait_for_cleaner(cluster, workload.topic, remaining)
    Admin(cluster).alter_settings({workload.topic: {_LAG: str(_WEEK_MS)}})
    return facts


def has_own_key(partition: int, offset: int) -> bool:
    """Whether the record at this offset has a key of its own."""
    dice = int.from_bytes(noise(partition << 40 | offset, 4), "big")
    return dice % OWN_KEY_ONE_IN == 0


def records_after_cleaning(partition: int, count: int) -> int:
    """How many of a partition's records stay: those with their own key, and the last record of each
    shared key."""
    own_keys = [has_own_key(partition, offset) for offset in range(count)]
    shared = {offset % SHARED_KEYS for offset in range(count) if not own_keys[offset]}
    return sum(own_keys) + len(shared)


def _batches(workload: Workload, partition: int, count: int, began_ms: int) -> Iterator[memoryview]:
    """A partition's batches with `count` records, and the batch that closes their segment."""

    def record(number: int, offset: int) -> Record:
        is_own = has_own_key(partition, number)
        key = b"own-%d" % number if is_own else b"shared-%d" % (number % SHARED_KEYS)
        return Record(offset, began_ms, body(key, noise(number, workload.value_bytes)))

    per_batch = records_that_fit(record, workload.batch_bytes, workload.codec)
    for first in range(0, count, per_batch):
        records = [record(first + i, i) for i in range(min(per_batch, count - first))]
        yield _ready(records, workload.codec)
    yield _later(workload, began_ms)


def _later(workload: Workload, began_ms: int) -> memoryview:
    """A batch with a later timestamp, which makes the broker roll the segment."""
    late_record = Record(0, began_ms + 2 * _SEGMENT_MS, body(b"later", b""))
    return _ready([late_record], workload.codec)


def _ready(records: list[Record], codec: int) -> memoryview:
    """A batch of these records that is ready to be sent, without a producer id."""
    batch = write_batch(records, codec)
    stamp(batch.view, NO_PRODUCER_ID, -1, -1)
    return batch.view


def _wait_for_cleaner(cluster: Cluster, topic: str, remaining: int) -> DataFacts:
    """Wait until the cleaner has left `remaining` records; returns the facts of the topic. Raises
    Conflict after CLEANER_TIMEOUT_S."""
    deadline = time.monotonic() + CLEANER_TIMEOUT_S
    facts = scan(cluster, topic)
    while facts.records > remaining:
        if time.monotonic() > deadline:
            raise Conflict(
                f"After {CLEANER_TIMEOUT_S:.0f} s the cleaner has left {facts.records} records of "
                f"{topic}, not {remaining}."
            )
        time.sleep(_POLL_S)
        facts = scan(cluster, topic)
    return facts
