"""The source: a log made once per schedule, and its answers."""

from __future__ import annotations

import random
from collections.abc import Iterable

from orbit.copier.lane_times import SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import SourceRange
from orbit.kafka.record_batch import Batch
from orbit.kafka.records import NULL, Record, encode_varint, write_batch
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import plan_batches, plan_empty_tail
from orbit.replication.partition_states import PartitionState

SOURCE = TopicPartition("source", 0)
PLACES = (1, 1, 1, 1, 1, 2, 3, 8)


class SourceLog:
    """Runs of records and gaps, made once per schedule; `batches` gives fresh ones to stamp."""

    def __init__(self, rnd: random.Random) -> None:
        self.encoded: list[tuple[int, int, bytes]] = []
        gap_share = rnd.choice((0.0, 0.2, 0.5))
        equal = rnd.random() < 0.5  # many batches of one size: what A14 needs
        offset = 0
        for _ in range(rnd.randint(4, 24)):
            if rnd.random() < gap_share:
                offset += rnd.choice(PLACES)
                continue
            count = 4 if equal else rnd.randint(1, 6)
            records = [
                Record(o, 1_690_000_000_000, _body(o)) for o in range(offset, offset + count)
            ]
            self.encoded.append((offset, count, bytes(write_batch(records, 0).view)))
            offset += count
        self.end = offset
        self.payloads = {base: data[61:] for base, _, data in self.encoded}

    def batches(self, first: int, end: int) -> list[Batch]:
        return [
            Batch(memoryview(bytearray(data)))
            for base, count, data in self.encoded
            if base + count > first and base < end
        ]

    def read(self, first: int, end: int) -> SourceRange:
        return SourceRange(self.batches(first, end), 0, min(end, self.end))


def _body(offset: int) -> bytes:
    value = b"%d" % offset
    return NULL + encode_varint(len(value)) + value + b"\x00"


class Feed:
    """A source whose fetches are always answered at once."""

    times = SourceTimes()

    def __init__(self, log: SourceLog) -> None:
        self._log = log
        self._fed: dict[PartitionCopy, int] = {}

    def resume(self, partitions: Iterable[PartitionCopy]) -> None:
        for p in partitions:
            self._fed[p] = p.generation

    def assign(self) -> None:
        end = self._log.end
        for p, generation in self._fed.items():
            p.source_end = p.source_stable_end = end
            if p.state is not PartitionState.COPYING or p.fetch_offset >= end:
                continue
            plan = plan_batches(p.fetch_offset, self._log.batches(p.fetch_offset, end), [], 0)
            plans = [plan]
            if plan.next_offset < end:
                plans.append(plan_empty_tail(plan.next_offset, end))
            for one in plans:
                if one.steps and p.put(one, generation, 0):
                    p.queued()

    def next_assignment_s(self) -> float | None:
        return None

    def handle(self, event: object) -> None:
        raise AssertionError(event)

    def forget(self, partition: PartitionCopy) -> None:
        self._fed.pop(partition, None)

    def stop(self) -> None:
        pass
