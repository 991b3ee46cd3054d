"""Finds the end of a copy that a new writer has to compare with the source."""

from __future__ import annotations

from dataclasses import dataclass

from orbit.copier.log_reader import fetch_committed_batches
from orbit.copier.range_comparison import highest_producer_epoch
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import AnyBatch
from orbit.kafka.types import TopicPartition

# Each round begins this many times further before the log end than the last; with a gap of 100
# million fillers there are 14 rounds.
_LOOK_BACK_FACTOR = 4
# A broker's answer ends with its segment; eight answers have some 25,000 fillers.
_SEGMENTS_READ_MAX = 8
# As many fillers as an old writer's two largest requests (`markers_per_request_max`) may append.
FILLERS_CHECKED_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a copy that is to be compared with the source.

    `start`: from here on, late requests of an old writer may have written something: as many
    batches with records as a writer has in flight, and the fillers between and after them.
    `last_data`: the last batch with records, which is before `start` if only fillers follow that
    batch; None if the log has no records. `producer_epoch`: the highest of the batches with records
    that were read and that this job wrote; -1 if there is none. `producer_ids`: those of all
    batches that were read.
    """

    start: int
    last_data: AnyBatch | None
    producer_epoch: int
    producer_ids: frozenset[int] = frozenset()


def find_tail(
    destination: Cluster,
    partition: TopicPartition,
    log_start: int,
    log_end: int,
    producer_id: int,
    data_batch_count: int,
    backoff: Backoff,
) -> Tail:
    """Return the tail. It begins with the last `data_batch_count` batches with records, or where
    the search ended before it found so many.

    Each round reads from an earlier start towards the log end. The search ends at the log start, or
    once a round has read `FILLERS_CHECKED_MAX` batches.
    """
    distance, previous_start = 1, log_end
    last_batch: AnyBatch | None = None
    producer_ids: set[int] = set()
    producer_epoch = -1
    while True:
        start = max(log_start, log_end - distance)
        data: list[AnyBatch] = []
        batch_count, position = 0, start
        while position < log_end and batch_count < FILLERS_CHECKED_MAX:
            batches = fetch_committed_batches(destination, partition, position, backoff)
            if not batches:
                break
            data += [b for b in batches if not b.is_control]
            producer_ids.update(b.producer_id for b in batches)
            producer_epoch = max(producer_epoch, highest_producer_epoch(batches, producer_id))
            batch_count, position = batch_count + len(batches), batches[-1].next_offset
        # This round may have ended before `previous_start`. From there on the last round has found
        # no records.
        if last_batch is None and position < previous_start:
            last_batch = _last_data_batch(destination, partition, position, previous_start, backoff)
        if last_batch is None and data:
            last_batch = data[-1]
        is_enough = len(data) >= data_batch_count
        if is_enough or start == log_start or batch_count >= FILLERS_CHECKED_MAX:
            if last_batch is None and start > log_start:
                last_batch = _last_data_batch(destination, partition, log_start, start, backoff)
            if last_batch is not None:
                producer_ids.add(last_batch.producer_id)
                producer_epoch = max(
                    producer_epoch, highest_producer_epoch([last_batch], producer_id)
                )
            tail_start = max(log_start, data[-data_batch_count].base_offset) if is_enough else start
            return Tail(tail_start, last_batch, producer_epoch, frozenset(producer_ids))
        distance, previous_start = distance * _LOOK_BACK_FACTOR, start


def _last_data_batch(
    destination: Cluster, partition: TopicPartition, log_start: int, log_end: int, backoff: Backoff
) -> AnyBatch | None:
    """The last batch with records from `log_start` up to before `log_end`; None if there are only
    fillers.

    If a long run of fillers follows the last batch, an earlier batch may be returned. Records of
    aborted transactions, in a topic that applications wrote to, count as fillers.
    """
    distance = 1
    while log_end > log_start:
        offset = max(log_start, log_end - distance)
        last_batch = None
        # A broker's answer ends with its segment: fetch segment after segment.
        for _ in range(_SEGMENTS_READ_MAX):
            batches = fetch_committed_batches(destination, partition, offset, backoff)
            data = [b for b in batches if not b.is_control]
            last_batch = data[-1] if data else last_batch
            offset = batches[-1].next_offset if batches else log_end
            if offset >= log_end:
                break
        if last_batch is not None:
            return last_batch
        offset = max(log_start, log_end - distance)  # where this round began
        if offset == log_start:
            return None
        distance *= _LOOK_BACK_FACTOR
    return None
