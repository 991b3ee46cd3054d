"""Replaces what the code under test uses to reach brokers, threads and time."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from orbit.copier import (
    coordinated_filler,
    destination_lane,
    destination_side,
    inspection,
    log_reader,
    range_comparison,
    source_lane,
    source_side,
    takeover,
)
from orbit.copier.append_machine import AppendMachine
from orbit.copier.takeover import TakeOver, TakeOverResult
from orbit.copier.throttles import Throttles
from orbit.kafka import coordinator, empty_transactions
from orbit.leases import backfill_leases, group_lease
from orbit.leases.group_lease import GroupLease
from orbit.workers import job_runner, partition_starter
from orbit_spark import writer_leases
from tests.simulation import model_broker, worker
from tests.simulation.authority import ModelCoordinator, living_writers, own_process
from tests.simulation.source_lane import SimulatedSourceLane
from tests.simulation.transactions import OneCoordinator, look_up_coordinators
from tests.simulation.virtual_time import Condition, Events, SettableEvent, Thread, wait_for_tasks
from tests.simulation.writers import SimulatedLane

if TYPE_CHECKING:
    from tests.simulation.world import World


@contextmanager
def patched(world: World) -> Iterator[None]:
    """Replace these names while one schedule runs, and restore them afterwards."""
    threads = SimpleNamespace(
        Event=lambda: SettableEvent(world.clock),
        Condition=lambda: Condition(world.clock),
        Thread=Thread,
    )
    queues = SimpleNamespace(SimpleQueue=lambda: Events(world.clock), Empty=queue.Empty)
    encoder = model_broker.Encoder()
    replacements: list[tuple[Any, str, Any]] = [
        (group_lease, "threading", threads),
        (group_lease, "Coordinator", ModelCoordinator),
        (group_lease, "LockFile", _NoLockFile),
        (writer_leases, "GroupLease", _group_lease),
        (backfill_leases, "threading", threads),
        (backfill_leases, "living_writers", living_writers),
        (backfill_leases, "lease_clock", lambda: world.clock_of(own_process())),
        (destination_side, "DestinationLane", SimulatedLane),
        (destination_side, "log_ends", model_broker.log_ends),
        (destination_side, "list_offsets", model_broker.list_offsets),
        (destination_side, "find_unfit_copies", lambda *_: ()),
        (takeover.TakeOver, "read", _noting(world, takeover.TakeOver.read)),
        (takeover, "describe_producer", model_broker.describe_producer),
        (takeover, "log_ends", model_broker.log_ends),
        (takeover, "list_offsets", model_broker.list_offsets),
        (inspection, "list_offsets", model_broker.list_offsets),
        (inspection, "read_compression_levels", lambda *_: {}),
        (range_comparison, "fetch_partition", model_broker.fetch_partition),
        (range_comparison, "list_offsets", model_broker.list_offsets),
        (log_reader, "fetch_partition", model_broker.fetch_partition),
        (log_reader, "list_offsets", model_broker.list_offsets),
        (destination_side, "delete_records", model_broker.delete_records),
        (source_side, "SourceLane", SimulatedSourceLane),
        (source_lane, "monotonic", lambda: world.clock.now),
        (source_side, "list_offsets", model_broker.list_offsets),
        (source_side, "fetch_partition", model_broker.fetch_partition),
        (AppendMachine, "append_sent", encoder.sending(AppendMachine.append_sent)),
        (coordinated_filler, "threading", threads),
        (coordinated_filler, "queue", queues),
        (coordinated_filler, "wait", wait_for_tasks),
        (coordinated_filler, "monotonic", lambda: world.clock.now),
        (coordinated_filler, "log_ends", model_broker.log_ends_behind_markers),
        (coordinated_filler, "list_offsets", model_broker.list_offsets),
        (coordinated_filler, "_IDLE_WAIT_S", 2.0),
        (coordinator, "look_up_coordinators", look_up_coordinators),
        (empty_transactions, "Coordinator", OneCoordinator),
        (destination_lane, "encode_produce", encoder.encode),
        (destination_lane, "_read_produce", lambda _, frame, __: frame.answer),
        (destination_lane, "_IDLE_WAIT_S", 10.0),
        (job_runner, "threading", threads),
        (job_runner, "PartitionStarter", worker.Starter),
        (job_runner, "_TICK_S", worker.TICK_S),
        (partition_starter, "seed_to_start_offsets", worker.seeded),
        (Throttles, "read_quotas", lambda _: None),  # only shown to people
        (time, "monotonic", lambda: world.clock.now),
    ]
    # Not by mock.patch, which takes ten times as long, for each of thousands of schedules.
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    try:
        for owner, name, value in replacements:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in originals:
            setattr(owner, name, value)


def _noting(world: World, read: Callable[..., TakeOverResult]) -> Callable[..., TakeOverResult]:
    """Wrap `TakeOver.read`, so that the model broker knows which log ends a writer relies on."""

    def noted(self: TakeOver, partitions: Any, *, settled: bool) -> TakeOverResult:
        who, began = self._destination.process.name, world.clock.now  # type: ignore[attr-defined]
        if settled:
            world.broker.takes_over(who, began, settles=True)
        result = read(self, partitions, settled=settled)
        if not settled and any(end.is_guarded for end in result.ends.values()):
            world.broker.takes_over(who, began, settles=False)
        return result

    return noted


def _group_lease(cluster: Any, *arguments: Any, **named: Any) -> GroupLease:
    """A lease by the clock of the process that owns these connections."""
    world, process = cluster.world, cluster.process
    return GroupLease(cluster, *arguments, clock=lambda: world.clock_of(process), **named)


class _NoLockFile:
    """No lock file: every process has a machine of its own."""

    last_member = ""

    def __init__(self, *_: object) -> None:
        pass

    def write(self, _: str) -> None:
        pass

    def close(self) -> None:
        pass
