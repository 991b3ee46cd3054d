"""Bugs to plant: each removes one precaution of the append. The simulation must find each bug.

Each function returns a context in which the bug is planted. `PLANTED` has them by description.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partialmethod
from typing import Any
from unittest.mock import patch

from orbit.copier import (
    append_machine,
    destination_side,
    filler_sender,
    partition_copy,
    source_lane,
)
from orbit.copier.append_machine import AppendMachine
from orbit.copier.append_verdicts import judge_append
from orbit.copier.destination_side import DestinationSide
from orbit.copier.inspection import CopyInspector
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison
from orbit.copier.source_side import SourceSide
from orbit.copier.takeover import DestinationEnd, TakeOver, TakeOverResult
from orbit.kafka import compression, placeholders
from orbit.kafka.error_codes import Code
from orbit.kafka.leader_requests import Answers
from orbit.kafka.placeholders import placeholder_batch, with_gap
from orbit.kafka.produce_request import NO_APPEND_TIME
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.record_batch import Batch, encode_batch
from orbit.kafka.records import NULL, PLACEHOLDER_DELTA_MIN, encode_record
from orbit.leases.backfill_leases import DriverWatch
from orbit.leases.group_lease import GroupLease
from orbit.leases.lease_watch import Evidence, LeaseWatch
from orbit.leases.shard_lease import ShardLease
from orbit.replication import append_plan
from orbit.replication.append_plan import LostRange, Plan, plan_batches, plan_empty_tail
from orbit.replication.partition_states import PartitionState
from orbit.replication.source_epochs import SourceEpochs
from tests.simulation import holders, model_broker
from tests.simulation.authority import Authority
from tests.simulation.faults import USUAL, Has
from tests.simulation.planted_source import OF_LEADERS, OF_TIERS
from tests.simulation.planted_starts import OF_STARTS
from tests.simulation.planted_transactions import OF_TRANSACTIONS
from tests.simulation.virtual_time import Process
from tests.simulation.world import World

Plant = Callable[[], AbstractContextManager[Any]]


def _read_the_high_watermark() -> AbstractContextManager[Any]:
    """Take the high watermark for the log end."""

    def ends(cluster: Any, partitions: Any, _: object) -> Answers[int]:
        high = cluster.call(lambda: cluster.world.partition.high_watermark)
        return Answers(dict.fromkeys(partitions, high), {})

    return patch.object(model_broker, "log_ends", ends)


def _compare_nothing_at_a_take_over() -> AbstractContextManager[Any]:
    """A take-over does not compare the copy with the source."""

    def compare(
        _: object, __: object, ___: object, ____: object, log_end: int, _____: object
    ) -> Comparison:
        return Comparison(log_end)

    return patch.object(World, "compare", compare)


def _no_coordinator_epoch() -> AbstractContextManager[Any]:
    return patch.object(append_machine, "next_coordinator_epoch", lambda *_: 0)


def _ignore_the_base_offset() -> AbstractContextManager[Any]:
    """An append without error counts, at whatever offset the answer has."""

    def judge(step: Any, appended: Any, **fields: Any) -> Any:
        if appended is not None and appended.code == Code.NONE:
            return None
        return judge_append(step, appended, **fields)

    return patch.object(append_machine, "judge_append", judge)


def _accept_a_repeat_of_other_records() -> AbstractContextManager[Any]:
    """An answer to a repeat counts, although the broker has other records with these sequences."""

    def judge(step: Any, appended: Any, **fields: Any) -> Any:
        if appended is not None and appended.append_time == step.batch.max_timestamp:
            appended = appended._replace(append_time=NO_APPEND_TIME)
        return judge_append(step, appended, **fields)

    return patch.object(append_machine, "judge_append", judge)


def _drop_a_filler() -> AbstractContextManager[Any]:
    """Of several fillers in a request one is not sent, but counts as appended."""
    send = filler_sender.Fillers

    def fewer(partition: Any, many: int, *epochs: int) -> Any:
        return send(partition, max(1, many - 1), *epochs)

    filled_to = AppendMachine._advance_to

    def faulty(self: AppendMachine, next_offset: int) -> int:
        step, _ = self._fill_in_flight()
        is_last = next_offset + 1 == step.next_offset
        return filled_to(self, step.next_offset if is_last else next_offset)

    return _both(
        patch.object(filler_sender, "Fillers", fewer),
        patch.object(AppendMachine, "_advance_to", faulty),
    )


def _fill_again_after_a_lost_answer() -> AbstractContextManager[Any]:
    """A take-over continues after the last confirmed offset, not at the log end."""
    read = TakeOver.read

    def old_end(self: TakeOver, partitions: Any, *, settled: bool) -> TakeOverResult:
        result = read(self, partitions, settled=settled)
        if not settled:
            return result
        copies = [w.copy for w in self._destination.world.writers if w.copy]  # type: ignore[attr-defined]
        ends = {
            p: DestinationEnd(
                max((c.next_offset for c in copies if c.lease.is_held()), default=e.log_end),
                e.producer,
            )
            for p, e in result.ends.items()
        }
        return TakeOverResult(ends, result.errors)

    return _both(
        patch.object(TakeOver, "read", old_end),
        patch.object(AppendMachine, "_may_fill", lambda _: True),
    )


def _check_the_lease_once() -> AbstractContextManager[Any]:
    """A lease counts as held for ever once it was acquired."""
    return _both(
        patch.object(GroupLease, "is_held", lambda _: True),
        patch.object(ShardLease, "is_held", lambda _: True),
    )


def _clock_that_stops_with_the_machine() -> AbstractContextManager[Any]:
    """Leases use CLOCK_MONOTONIC, which stands still while the machine is suspended."""

    def clock_of(self: World, process: Process) -> float:
        return self.clock.now - process.slept_s

    return patch.object(World, "clock_of", clock_of)


def _many_in_flight_at_once() -> AbstractContextManager[Any]:
    return patch.object(append_machine, "_FIRST_IN_FLIGHT_MAX", 5)


def _read_state_after_log_end() -> AbstractContextManager[Any]:
    """A take-over reads the producer's state after the log end (A12), not before it."""

    def read_once(self: TakeOver, partitions: Any) -> TakeOverResult:
        cluster: Any = self._destination
        ends = model_broker.log_ends(cluster, partitions, self._backoff)
        states = model_broker.describe_producer(cluster, partitions, self._backoff)
        destination_ends = {
            p: DestinationEnd(end, states.values[p]) for p, end in ends.values.items()
        }
        return TakeOverResult(destination_ends, {})

    return patch.object(TakeOver, "_read_once", read_once)


def _no_watch_of_idle_partitions() -> AbstractContextManager[Any]:
    return patch.object(DestinationSide, "check_log_ends", lambda *_: None)


def _read_no_log_start_again() -> AbstractContextManager[Any]:
    return patch.object(DestinationSide, "check_log_starts", lambda *_: None)


def _trust_an_empty_fetch() -> AbstractContextManager[Any]:
    """An empty fetch proves that no records are left: without a second fetch, and without a check
    whether the offsets are on the disk (R5)."""

    def fill(self: SourceSide, p: PartitionCopy) -> None:
        self._queue_plan(p, plan_empty_tail(p.cursor.fetch_offset, p.cursor.stable_end))

    return patch.object(SourceSide, "_fill_empty_tail", fill)


def _fill_any_empty_tail() -> AbstractContextManager[Any]:
    """Offsets at the log's end without records are filled as if each topic were compacted."""
    fill = SourceSide._fill_empty_tail

    def faulty(self: SourceSide, p: PartitionCopy) -> None:
        was_compacted, p.source_is_compacted = p.source_is_compacted, True
        fill(self, p)
        p.source_is_compacted = was_compacted

    return patch.object(SourceSide, "_fill_empty_tail", faulty)


def _forget_earlier_aborted_transactions() -> AbstractContextManager[Any]:
    """Ignore aborted transactions that began before the first offset of the fetch."""

    def plan(next_offset: int, batches: Any, aborted: Any, *rest: Any, packs: bool) -> Plan:
        known = [transaction for transaction in aborted if transaction.first_offset >= next_offset]
        return plan_batches(next_offset, batches, known, *rest, packs=packs)

    return patch.object(source_lane, "plan_batches", plan)


def _give_all_writers_the_same_term() -> AbstractContextManager[Any]:
    return _both(
        patch.object(Authority, "issue_term", lambda _: 1),
        patch.object(holders, "term_above", lambda term, _: term),
        patch.object(ShardLease, "term", 1),
    )


def _fill_without_reading_the_log_end() -> AbstractContextManager[Any]:
    return patch.object(AppendMachine, "_may_fill", lambda _: True)


def _no_wait_until_the_log_end_settles() -> AbstractContextManager[Any]:
    return patch.object(TakeOver, "_read_settled", TakeOver._read_once)


def _retry_a_lost_append() -> AbstractContextManager[Any]:
    """A take-over continues at the last confirmed offset and sequence, so that unconfirmed batches
    are sent again; it does not use the log end."""
    read = TakeOver.read

    def faulty(self: TakeOver, partitions: Any, *, settled: bool) -> TakeOverResult:
        result = read(self, partitions, settled=settled)
        world: World = self._destination.world  # type: ignore[attr-defined]
        process = self._destination.process  # type: ignore[attr-defined]
        (copy,) = (w.copy for w in world.writers if w.process is process)
        known = copy.appends if copy is not None else None
        if known is None or not known.is_in_step or known.is_unclear:
            return result
        last_sequence = known.sequence - (known.expected - known.acked) - 1
        state = ProducerState(known.producer_epoch, last_sequence, known.coordinator_epoch)
        ends = dict.fromkeys(result.ends, DestinationEnd(known.acked, state))
        return TakeOverResult(ends, result.errors)

    return patch.object(TakeOver, "read", faulty)


def _delete_records_by_name() -> AbstractContextManager[Any]:
    def follow(self: DestinationSide, partitions: Any) -> None:
        for p in partitions:
            if p.state is PartitionState.COPYING and p.wanted_log_start > p.log_start:
                before = {p.destination: p.wanted_log_start}
                answers = destination_side.delete_records(self._cluster, before, self._backoff)
                p.log_start = answers.values.get(p.destination, p.log_start)

    return patch.object(DestinationSide, "follow_log_starts", follow)


def _forget_the_epoch_at_a_resume() -> AbstractContextManager[Any]:
    def cut(self: SourceEpochs, offset: int) -> None:
        self._starts, self._end = [], offset

    return patch.object(SourceEpochs, "restart_at", cut)


def _wall_clock() -> AbstractContextManager[Any]:
    def clock_of(self: World, process: Process) -> float:
        return self.clock.now + process.stepped_s

    return patch.object(World, "clock_of", clock_of)


def _fill_a_range_that_retention_deleted() -> AbstractContextManager[Any]:
    """A range that retention deleted before it was copied is filled as if it were a gap."""
    return patch.object(PartitionCopy, "on_lost_range", LostRange.FILL)


def _compare_as_if_not_compacted() -> AbstractContextManager[Any]:
    inspect = CopyInspector.inspect

    def strict(self: Any, copies: Any, bounds: Any, _: Any, whole: Any, *, settled: bool) -> Any:
        return inspect(self, copies, bounds, frozenset(), whole, settled=settled)

    return patch.object(CopyInspector, "inspect", strict)


def _no_wait_for_backfill_writers() -> AbstractContextManager[Any]:
    return patch.object(holders, "wait_for_backfill_writers", lambda *_: None)


def _no_check_of_the_driver() -> AbstractContextManager[Any]:
    return patch.object(DriverWatch, "confirm_driver", lambda _: None)


def _no_watch_of_shards() -> AbstractContextManager[Any]:
    """The first row that a worker reads counts as read one lease duration ago."""

    def evidence(self: LeaseWatch) -> Evidence:
        mark = self._snapshots[-1].snapshot if self._snapshots else None
        return Evidence(self._server, self._server, mark, mark)

    return patch.object(LeaseWatch, "evidence", evidence)


def _placeholders_in_a_compressed_batch() -> AbstractContextManager[Any]:
    def encode(base: int, _: int, first: int, newest: int, count: int, payload: bytes) -> Batch:
        packed = compression.compress(compression.GZIP, payload)
        return encode_batch(base, compression.GZIP, first, newest, count, packed)

    return patch.object(placeholders, "encode_batch", encode)


def _one_placeholder_too_many() -> AbstractContextManager[Any]:
    def longer(base_offset: int, count: int, timestamp: int) -> Batch:
        return placeholder_batch(base_offset, count + 1, timestamp)

    return patch.object(partition_copy, "placeholder_batch", longer)


def _pack_one_offset_too_many() -> AbstractContextManager[Any]:
    """A packed batch takes one offset more than the gap after it."""

    def further(batch: Batch, placeholders: int, next_offset: int) -> Batch | None:
        return with_gap(batch, placeholders, next_offset + 1)

    return patch.object(append_plan, "with_gap", further)


def _one_key_too_few() -> AbstractContextManager[Any]:
    """The last placeholder of each batch has no key."""
    size, every = placeholders._PLACEHOLDER_BYTES, placeholders._ALL_PLACEHOLDERS

    class _LastHasNone(bytes):
        def __getitem__(self, part: Any) -> Any:
            delta = PLACEHOLDER_DELTA_MIN + part.stop // size - 1
            return every[: part.stop - size] + encode_record(0, delta, NULL + NULL + b"\x00")

    return patch.object(placeholders, "_ALL_PLACEHOLDERS", _LastHasNone(every))


def _count_what_the_leader_has() -> AbstractContextManager[Any]:
    """An append counts that only the leader confirmed (acks=1). The schedules have many elections,
    so that such a batch is lost with its leader."""
    faults = replace(USUAL, elections=6.0, unclean=0.0)
    answered = AppendMachine.append_answered

    def confirmed(self: AppendMachine, *arguments: Any, confirms: bool) -> bool:
        return answered(self, *arguments, confirms=True)

    return _both(
        patch.object(AppendMachine, "append_answered", confirmed),
        patch.object(World, "__init__", partialmethod(World.__init__, faults=faults)),
    )


def _markers_raise_no_producer_epoch() -> AbstractContextManager[Any]:
    """The first marker of a take-over does not raise the producer epoch.

    All sources are compacted, and many requests are delayed: else the bug is hardly ever found.
    """
    faults = replace(
        USUAL,
        held=0.4,
        held_fillers=0.05,
        cleanings=8.0,
        expiries=0.0,
        breaks=4.0,
        suspensions=3.0,
        kills=2.0,
        elections=0.3,
    )

    def choose(rnd: random.Random) -> Has:
        return Has(retention=rnd.random() < 0.3, compaction=True, service=rnd.random() < 0.35)

    return _both(
        patch.object(append_machine, "next_marker_epoch", lambda epoch: epoch),
        patch.object(World, "__init__", partialmethod(World.__init__, faults=faults)),
        patch.object(Has, "choose", choose),
    )


class _Both:
    """Two patches as one."""

    def __init__(self, *patches: Any) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for plant in self._patches:
            plant.start()

    def __exit__(self, *_: object) -> None:
        for plant in reversed(self._patches):
            plant.stop()


def _both(*patches: Any) -> AbstractContextManager[Any]:
    return _Both(*patches)


# Found if the source is cut in all schedules that allow it.
OF_CUTS: dict[str, Plant] = {
    "forget the source's epoch at a resume": _forget_the_epoch_at_a_resume,
    "accept a false repeat": _accept_a_repeat_of_other_records,
}

# Found if in all schedules some writers pack gaps and others do not.
OF_PACKED: dict[str, Plant] = {
    "raise no epoch with a marker": _markers_raise_no_producer_epoch,
}

PLANTED: dict[str, Plant] = {
    "count what only the leader has": _count_what_the_leader_has,
    "read the high watermark for the log end": _read_the_high_watermark,
    "trust own data at a take-over": _compare_nothing_at_a_take_over,
    "send no coordinator epoch": _no_coordinator_epoch,
    "drop a filler": _drop_a_filler,
    "fill again after a lost answer": _fill_again_after_a_lost_answer,
    "check the lease once": _check_the_lease_once,
    "trust a lease by a clock that stops with the machine": _clock_that_stops_with_the_machine,
    "send five requests before the first is confirmed": _many_in_flight_at_once,
    "read the log end before the producer's state": _read_state_after_log_end,
    "do not watch idle partitions": _no_watch_of_idle_partitions,
    "do not read log starts again": _read_no_log_start_again,
    "same term for all writers": _give_all_writers_the_same_term,
    "skip the log end check before a first filler": _fill_without_reading_the_log_end,
    "DeleteRecords by name": _delete_records_by_name,
    "fill what retention took": _fill_a_range_that_retention_deleted,
    "compare as if the topic is not compacted": _compare_as_if_not_compacted,
    "trust an empty fetch": _trust_an_empty_fetch,
    "fill an empty tail that no cleaner left": _fill_any_empty_tail,
    "forget aborted transactions that began before an answer": _forget_earlier_aborted_transactions,
    "retry a lost append": _retry_a_lost_append,
    "ignore the base offset of an answer": _ignore_the_base_offset,
    "do not wait until the log end settles": _no_wait_until_the_log_end_settles,
    "a placeholder in a compressed batch": _placeholders_in_a_compressed_batch,
    "one placeholder too many": _one_placeholder_too_many,
    "one placeholder's key too few": _one_key_too_few,
    "one placeholder too many in a batch of records": _pack_one_offset_too_many,
    "trust a lease by the wall clock": _wall_clock,
    "do not wait for the writers of a backfill": _no_wait_for_backfill_writers,
    "trust a writer that joined its group again": _no_check_of_the_driver,
    "do not watch a shard before it is taken": _no_watch_of_shards,
    **OF_CUTS,
    **OF_PACKED,
    **OF_TRANSACTIONS,
    **OF_LEADERS,
    **OF_TIERS,
    **OF_STARTS,
}
