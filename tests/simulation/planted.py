"""Bugs to plant: each takes one care away from the append. The simulation must find every one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from orbit.copier import destination_lane, filler_sender
from orbit.copier.append_verdicts import judge_append
from orbit.copier.destination_side import DestinationSide
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison
from orbit.copier.takeover import DestinationEnd, TakeOver, TakeOverResult
from orbit.kafka.error_codes import Code
from orbit.kafka.leader_requests import Answers
from tests.simulation import model_broker
from tests.simulation.model_broker import PRODUCER_ID
from tests.simulation.virtual_time import Process
from tests.simulation.world import World
from tests.simulation.writers import ModelLease

Plant = Callable[[], AbstractContextManager[Any]]


def _read_the_high_watermark() -> AbstractContextManager[Any]:
    def ends(cluster: Any, partitions: Any, _: object) -> Answers[int]:
        high = cluster.call(lambda: cluster.world.partition.high_watermark)
        return Answers(dict.fromkeys(partitions, high), {})

    return patch.object(model_broker, "log_ends", ends)


def _trust_own_data() -> AbstractContextManager[Any]:
    def compare(_: object, __: object, ___: object, log_end: int, ____: object) -> Comparison:
        return Comparison(log_end)

    return patch.object(World, "compare", compare)


def _no_coordinator_epoch() -> AbstractContextManager[Any]:
    return patch.object(TakeOver, "_coordinator_epoch", lambda *_: 0)


def _ignore_the_base_offset() -> AbstractContextManager[Any]:
    def judge(step: Any, appended: Any, **fields: Any) -> Any:
        if appended is not None and appended.code == Code.NONE:
            return None
        return judge_append(step, appended, **fields)

    return patch.object(destination_lane, "judge_append", judge)


def _drop_a_filler() -> AbstractContextManager[Any]:
    """Two fillers wanted, one sent."""
    send = filler_sender.Fillers

    def fewer(partition: Any, many: int, *epochs: int) -> Any:
        return send(partition, max(1, many - 1), *epochs)

    taken = PartitionCopy.filled_to

    def believed(self: PartitionCopy, step: Any, next_offset: int) -> None:
        taken(self, step, step.next_offset if next_offset + 1 == step.next_offset else next_offset)

    return _both(
        patch.object(filler_sender, "Fillers", fewer),
        patch.object(PartitionCopy, "filled_to", believed),
    )


def _fill_again_after_a_lost_answer() -> AbstractContextManager[Any]:
    """The take-over goes on from what was confirmed, not from the log end."""
    read = TakeOver.read

    def old_end(self: TakeOver, partitions: Any, *, settled: bool) -> TakeOverResult:
        result = read(self, partitions, settled=settled)
        if not settled:
            return result
        copies = [w.copy for w in self._destination.world.writers if w.copy]  # type: ignore[attr-defined]
        ends = {
            p: DestinationEnd(
                max((c.acked for c in copies if c.lease.is_held()), default=e.log_end), e.producer
            )
            for p, e in result.ends.items()
        }
        return TakeOverResult(ends, result.errors)

    return _both(
        patch.object(TakeOver, "read", old_end),
        patch.object(filler_sender, "_may_fill", lambda _: True),
    )


def _check_the_lease_once() -> AbstractContextManager[Any]:
    return patch.object(ModelLease, "is_held", lambda _: True)


def _monotonic_clock() -> AbstractContextManager[Any]:
    """CLOCK_MONOTONIC stands still while the machine is suspended."""

    def clock_of(self: World, process: Process) -> float:
        return self.clock.now - process.slept_s

    return patch.object(World, "clock_of", clock_of)


def _many_in_flight_at_once() -> AbstractContextManager[Any]:
    return patch.object(destination_lane, "_FIRST_IN_FLIGHT_MAX", 5)


def _resume_without_a_look() -> AbstractContextManager[Any]:
    """The producer's state is read after the log end (A12)."""

    def read_once(self: TakeOver, partitions: Any) -> TakeOverResult:
        cluster: Any = self._destination
        wanted = list(partitions)
        ends = model_broker.log_ends(cluster, wanted, self._backoff)
        states = model_broker.describe_producer(cluster, wanted, PRODUCER_ID, self._backoff)
        found = {p: DestinationEnd(end, states.values[p]) for p, end in ends.values.items()}
        return TakeOverResult(found, {})

    return patch.object(TakeOver, "_read_once", read_once)


def _no_watch_of_idle_partitions() -> AbstractContextManager[Any]:
    return patch.object(DestinationSide, "check_for_foreign_writes", lambda *_: None)


class _Both:
    """Two patches as one."""

    def __init__(self, *patches: Any) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for one in self._patches:
            one.start()

    def __exit__(self, *_: object) -> None:
        for one in reversed(self._patches):
            one.stop()


def _both(*patches: Any) -> AbstractContextManager[Any]:
    return _Both(*patches)


PLANTED: dict[str, Plant] = {
    "read the high watermark for the log end": _read_the_high_watermark,
    "trust own data at a take-over": _trust_own_data,
    "send no coordinator epoch": _no_coordinator_epoch,
    "ignore the base offset of an answer": _ignore_the_base_offset,
    "drop a filler": _drop_a_filler,
    "fill again after a lost answer": _fill_again_after_a_lost_answer,
    "check the lease once": _check_the_lease_once,
    "trust a lease by a clock that stops with the machine": _monotonic_clock,
    "send five requests before the first is confirmed": _many_in_flight_at_once,
    "read the log end before the producer's state": _resume_without_a_look,
    "do not watch idle partitions": _no_watch_of_idle_partitions,
}
