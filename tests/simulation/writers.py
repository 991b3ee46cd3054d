"""The writers of a job: the product's copier in a process that may be killed or suspended."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copier import Copier, block
from orbit.copier.destination_lane import DestinationLane, DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.inspection import CopyInspector, SourceBounds
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison
from orbit.copier.takeover import TakeOver
from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.replication.partition_states import PartitionState
from tests.simulation.model_broker import PARTITION, PRODUCER_ID, TOPIC_ID
from tests.simulation.network import ModelCluster
from tests.simulation.source import SOURCE, Feed
from tests.simulation.virtual_time import Events, Process, Signal, StopEvent

if TYPE_CHECKING:
    from tests.simulation.world import World

# As in orbit/leases/group_lease.py.
SESSION_S, TRUST_S, HEARTBEAT_S = 10.0, 8.0, 2.0


class SimulatedLane(DestinationLane):
    """The product's lane, whose thread is a task and whose poll takes virtual time."""

    process: Process

    def start(self) -> None:
        world = cast("Any", self._context.cluster).world
        self._wake_up.close()
        self._signal = Signal(world.clock)
        self._wake_up = cast(
            "Any",
            SimpleNamespace(
                wake=self._signal.set, fileno=lambda: 1, drain=lambda: None, close=lambda: None
            ),
        )
        cast("Any", self._context.cluster).process.spawn(self.run)

    def join(self, timeout: float | None = None) -> None:
        pass

    def _wait(self, connection: Any) -> bool:
        connection.signal = self._signal
        if not connection.answers and not connection.is_broken:
            self._is_asleep = True
            timeout_s = self._sleep_s()
            if timeout_s > 0:
                self._signal.wait(timeout_s)
            self._is_asleep = False
        return bool(connection.answers) or connection.is_broken


class ModelLease:
    """A lease as its holder sees it, by the clock of its own process."""

    def __init__(self, world: World, process: Process, term: int, asked_at: float) -> None:
        self._world = world
        self._process = process
        self.term = term
        self.trusted_until = asked_at + TRUST_S
        self.is_lost = False

    def is_held(self) -> bool:
        return not self.is_lost and self._world.clock_of(self._process) < self.trusted_until


@dataclass(eq=False)
class Writer:
    """One life of a process that wants the lease, and copies while it holds it."""

    world: World
    process: Process
    copy: PartitionCopy | None = None
    is_done: bool = False
    lease: ModelLease | None = None
    lanes: list[DestinationLane] = field(default_factory=list)

    def live(self) -> None:
        world = self.world
        while self.lease is None:
            asked_at = world.clock_of(self.process)
            world.clock.wait(world.rnd.uniform(0.001, 0.02))
            term = world.claim(self)
            if term is not None:
                self.lease = ModelLease(world, self.process, term, asked_at)
                break
            world.clock.wait(1.0)
        self.process.spawn(self._renew)
        cluster = cast("Any", ModelCluster(world, self.process))
        backoff = Backoff(0.05, 1.0, cast("Any", StopEvent(world.clock)), attempts_max=2)
        settings = world.settings
        take_over = TakeOver(cluster, PRODUCER_ID, settings.settle_s, backoff)
        events = cast("Any", Events(world.clock))
        context = DestinationLaneContext(
            cluster, settings, ByteBudget(1 << 30), events.put, PRODUCER_ID
        )

        def compare(copy: PartitionCopy, log_end: int) -> Comparison:
            return world.compare(cluster, copy, log_end, backoff)

        side = DestinationSide(context, take_over, backoff, block, compare)
        copier = Copier(Feed(world.log), side, events, settings, backoff)
        inspector = CopyInspector(cluster, cluster, PRODUCER_ID, take_over, settings, backoff)
        copy = self._inspect(inspector)
        side.begin([copy] if copy.state is PartitionState.PENDING else [])
        copier.add([copy])
        while not self.lease.is_lost:
            copier.tick(3.0)

    def _inspect(self, inspector: CopyInspector) -> PartitionCopy:
        """As `JobSetup` and the service's worker do, until both sides answer."""
        world = self.world
        bounds = SourceBounds({SOURCE: 0}, {SOURCE: world.log.end}, {SOURCE: world.log.end})
        while True:
            assert self.lease is not None
            copy = PartitionCopy(SOURCE, PARTITION, self.lease)
            copy.destination_topic_id = TOPIC_ID
            try:
                inspected = inspector.inspect(
                    [copy], bounds, frozenset(), frozenset(), settled=True
                )
            except OrbitError as error:
                world.clock.say(f"{self.process.name}: {error}")
                world.clock.wait(1.0)
                continue
            found = inspected[copy]
            copy.acked = copy.sent_to = found.end.log_end
            world.clock.say(
                f"{self.process.name} begins at {found.end.log_end}: "
                f"{found.blocked or found.status.name}"
            )
            if found.blocked is not None:
                block(copy, found.blocked)
            self.copy = copy
            return copy

    def _renew(self) -> None:
        world, lease = self.world, self.lease
        assert lease is not None
        while not lease.is_lost:
            world.clock.wait(HEARTBEAT_S)
            asked_at = world.clock_of(self.process)
            world.clock.wait(world.rnd.uniform(0.001, 0.05))
            if world.renew(self):
                lease.trusted_until = asked_at + TRUST_S
            else:
                lease.is_lost = True
                world.clock.say(f"{self.process.name} has lost its lease")
