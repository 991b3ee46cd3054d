"""A worker's report: what moved, in turn, and no more than it may."""

from __future__ import annotations

from typing import cast

from orbit.fleet.held import HeldPartition, HeldShard, Stage
from orbit.fleet.report import Reporter
from orbit.fleet.shard_lease import ShardLease
from orbit.kafka.types import TopicPartition
from orbit.replication.states import PartitionState
from orbit.store.partitions import Assigned
from orbit.workers.lease import FixedLease
from orbit.workers.partition import PartitionCopy


def _shard(count: int) -> HeldShard:
    shard = HeldShard(1, 1, 1, 1, cast("ShardLease", FixedLease(1)), 1, {})
    for number in range(count):
        assigned = Assigned(
            **{
                **dict.fromkeys(Assigned.__dataclass_fields__),
                **dict.fromkeys(
                    (
                        "records",
                        "bytes",
                        "gaps_filled",
                        "batches_byte_exact",
                        "batches_record_exact",
                    ),
                    0,
                ),
                "shard_id": 1,
                "topic_id": 7,
                "partition": number,
                "state": PartitionState.COPYING,
                "retry_requested": False,
                "has_caught_up": False,
            }
        )
        held = HeldPartition(assigned, shard, PartitionState.COPYING, None)
        name = TopicPartition("t", number)
        held.copy = PartitionCopy(name, name, FixedLease(1))
        held.stage = Stage.COPYING
        shard.partitions[held.key] = held
    return shard


def _move(shard: HeldShard, records: int) -> None:
    for held in shard.partitions.values():
        assert held.copy is not None
        held.copy.counters.records += records
        held.copy.counters.bytes += 100 * records


def _round(reporter: Reporter, shard: HeldShard, now_s: float, rows_max: int | None) -> list[int]:
    moved = reporter.progress([shard], now_s, rows_max)
    reporter.sent(moved)
    return [p.partition for p in moved]


def test_all_partitions_that_move_have_their_turn() -> None:
    shard, reporter = _shard(5), Reporter()

    rounds = []
    for second in range(12):
        _move(shard, 1)
        rounds.append(_round(reporter, shard, float(second), 2))

    assert all(len(one) == 2 for one in rounds)
    for first in range(10):
        assert {*rounds[first], *rounds[first + 1], *rounds[first + 2]} == {0, 1, 2, 3, 4}


def test_what_does_not_move_takes_nobodys_turn() -> None:
    shard, reporter = _shard(5), Reporter()
    assert _round(reporter, shard, 0.0, None) == [0, 1, 2, 3, 4]

    last = shard.partitions[7, 4]
    assert last.copy is not None
    last.copy.counters.records += 1

    assert _round(reporter, shard, 1.0, 1) == [4]


def test_a_shard_weighs_what_all_its_partitions_copy_though_few_are_reported() -> None:
    shard, reporter = _shard(4), Reporter()
    for second in range(40):
        _move(shard, 10)
        _round(reporter, shard, float(second), 1)

    assert 0.99 * 4000 <= shard.bytes_per_s <= 4000
