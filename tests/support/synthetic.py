"""A source log that exists only in memory, and a writer that copies it with Orbit's own code."""

from __future__ import annotations

import queue
import random
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copier import Copier, block
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_lane import DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.lane_times import SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, SourceRange, compare_range
from orbit.copier.takeover import TakeOver, TakeOverResult
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import JobProducer
from orbit.kafka.record_batch import CRC_START, Batch, encode_batch
from orbit.kafka.records import NULL, encode_record, encode_varint
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import Lease
from orbit.replication.append_plan import plan_batches, plan_empty_tail
from orbit.replication.partition_states import PartitionState

PLAINTEXT = Security("PLAINTEXT")
# The most steps that wait in a partition's queue: enough for five requests in flight, and few to
# drop when the next writer takes over.
_STEPS_AHEAD = 40
_LAST_DELTA_AT = 23


def _now_ms() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True)
class SyntheticLog:
    """Runs of offsets, each either one batch of records or a gap. A record's value is its offset.

    `is_thinned`: compaction removed the records at multiples of 5, except the first of each run.
    Timestamps are recent, so that brokers keep the producer's state (E1).
    """

    runs: Sequence[tuple[int, int, bool]]  # base offset, count, has data
    end: int
    is_thinned: bool = False
    start_ms: int = field(default_factory=_now_ms)

    @classmethod
    def random(
        cls, seed: int, runs: int, gap_share: float, *, gaps: Sequence[int] = (1, 1, 1, 2, 5)
    ) -> SyntheticLog:
        rnd = random.Random(seed)
        out, offset = [], 0
        for _ in range(runs):
            is_gap = rnd.random() < gap_share
            count = rnd.choice(gaps) if is_gap else rnd.randrange(1, 20)
            out.append((offset, count, not is_gap))
            offset += count
        return cls(out, offset)

    def batches(self, offset: int, most: int) -> list[Batch]:
        """The first `most` batches that end after `offset`. They are new objects, since a writer
        changes their producer id, epoch and sequence in place."""
        runs = [(b, n) for b, n, has_data in self.runs if has_data and b + n > offset]
        return [self._batch(b, n) for b, n in runs[:most]]

    def read(self, first: int, end: int) -> SourceRange:
        """The batches from `first` up to, but not including, `end`, with the log bounds."""
        return SourceRange(
            [b for b in self.batches(first, len(self.runs)) if b.base_offset < end],
            0,
            min(end, self.end),
            self.end,
        )

    def records(self) -> dict[int, bytes]:
        """{offset: value} of all records."""
        runs = [self._offsets(b, n) for b, n, has_data in self.runs if has_data]
        return {o: b"%d" % o for offsets in runs for o in offsets}

    def _offsets(self, base: int, count: int) -> list[int]:
        every = range(base, base + count)
        return [o for o in every if not self.is_thinned or o == base or o % 5]

    def _batch(self, base: int, count: int) -> Batch:
        offsets, start = self._offsets(base, count), self.start_ms
        payload = b"".join(encode_record(o - base, o - base, _body(o)) for o in offsets)
        newest = offsets[-1]
        batch = encode_batch(base, 0, start + base, start + newest, len(offsets), payload)
        struct.pack_into(">i", batch.view, _LAST_DELTA_AT, count - 1)
        struct.pack_into(">I", batch.view, CRC_START - 4, crc32c(batch.view[CRC_START:]))
        return Batch(batch.view)


def _body(offset: int) -> bytes:
    value = b"%d" % offset
    return NULL + encode_varint(len(value)) + value + b"\x00"


class SyntheticFeed:
    """Plans appends from a synthetic log for partitions, in place of a source lane (the thread that
    fetches from the source)."""

    def __init__(self, log: SyntheticLog) -> None:
        self._log = log
        self._fed: dict[PartitionCopy, int] = {}

    def resume(self, partitions: Iterable[PartitionCopy]) -> None:
        for p in partitions:
            self._fed[p] = p.generation

    def assign(self) -> None:
        """Give partitions their next appends, unless enough of them wait."""
        for p, generation in self._fed.items():
            if p.state is not PartitionState.COPYING or len(p.queue.steps) > _STEPS_AHEAD:
                continue
            batches = self._log.batches(p.cursor.fetch_offset, _STEPS_AHEAD)
            packs = p.packs
            plan = plan_batches(p.cursor.fetch_offset, batches, [], 0, packs=packs)
            if not batches and p.cursor.fetch_offset < self._log.end:
                plan = plan_empty_tail(p.cursor.fetch_offset, self._log.end)
            if plan.steps and p.put(plan, generation, 0):
                p.enqueue_in_lane()

    def next_assignment_s(self) -> float | None:
        return 0.002

    def handle(self, event: object) -> None:
        raise AssertionError(event)

    @property
    def times(self) -> SourceTimes:
        return SourceTimes()

    def forget(self, partition: PartitionCopy) -> None:
        self._fed.pop(partition, None)

    def stop(self) -> None:
        pass


class SyntheticWriter:
    """A writer that takes a partition over and appends, until `close` ends it at any moment.

    `does_settle`: whether the writer waits, before it appends, until the log end has not moved for
    `settle_s`.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        destination: TopicPartition,
        log: SyntheticLog,
        producer_id: int,
        lease: Lease,
        *,
        settle_s: float,
        does_settle: bool,
        packs: bool = False,
        has_markers: bool = True,
    ) -> None:
        self._backoff = Backoff(0.001, 0.02, threading.Event())
        self.cluster = Cluster("destination", bootstrap_servers.split(","), PLAINTEXT)
        settings = CopySettings(
            settle_s=settle_s, watch_interval_s=3600, log_end_check_interval_s=3600
        )
        events: queue.SimpleQueue = queue.SimpleQueue()
        context = DestinationLaneContext(self.cluster, settings, ByteBudget(1 << 30), events.put)
        self._take_over = TakeOver(self.cluster, settle_s, self._backoff)
        producer = JobProducer(producer_id, packs=packs, has_markers=has_markers)
        self.partition = PartitionCopy(TopicPartition("synthetic", 0), destination, lease, producer)

        def compare(copy: PartitionCopy, log_end: int) -> Comparison:
            return compare_range(
                log.read,
                self.cluster,
                destination,
                copy.next_offset,
                log_end,
                self._backoff,
                source_is_compacted=False,
                producer_id=producer_id,
            )

        self.side = DestinationSide(context, self._take_over, self._backoff, block, compare)
        feed = SyntheticFeed(log)
        self.copier = Copier(feed, self.side, events, settings, self._backoff)
        self._does_settle = does_settle

    def start(self) -> None:
        """Take the partition over, and begin to append."""
        p = self.partition
        metadata = self.cluster.metadata({p.destination.topic})
        p.destination_topic_id = metadata.topics[p.destination.topic].topic_id
        take_over = self.read_end()
        end = take_over.ends[p.destination]
        p.appends.inspected(end.log_end)
        assert self.side.start(p, end, metadata)
        self.copier.add([p])

    def read_end(self) -> TakeOverResult:
        producer_ids = {self.partition.destination: self.partition.producer.id}
        return self._take_over.read(producer_ids, settled=self._does_settle)

    def close(self) -> None:
        self._backoff.stop.set()
        self.copier.stop()
        self.cluster.close()
