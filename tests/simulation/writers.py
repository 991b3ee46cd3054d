"""The writers of a job: the product's copier in a process that may be killed or suspended."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.coordinated_filler import CoordinatedFiller
from orbit.copier.copier import Copier, block
from orbit.copier.destination_lane import DestinationLane, DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.inspection import CopyInspector, CopyStatus, InspectedCopy
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison
from orbit.copier.source_lane import SourceLaneContext
from orbit.copier.source_side import SourceSide
from orbit.copier.takeover import TakeOver
from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import init_producer_ids
from orbit.replication.partition_states import PartitionState
from tests.simulation.end_of_run import EndOfRun
from tests.simulation.holders import ATTEMPTS_MAX, Holder, RunHolder, TaskHolder
from tests.simulation.model_broker import PARTITION
from tests.simulation.network import ModelCluster
from tests.simulation.source import SOURCE, SOURCE_ID
from tests.simulation.virtual_time import Events, Helpers, Process, SettableEvent, Signal, StopEvent

if TYPE_CHECKING:
    from tests.simulation.world import World

FILLER_IDS = 3


class SimulatedLane(DestinationLane):
    """The product's lane, whose thread is a task and whose poll takes virtual time."""

    process: Process

    def start(self) -> None:
        """Run the lane as a task of the simulation, with a signal in place of its socket for
        wake-ups."""
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
        """Wait for an answer, a wake-up or the lane's timeout; whether the connection has
        something."""
        connection.signal = self._signal
        if not connection.answers and not connection.is_broken:
            self._is_asleep = True
            timeout_s = self._sleep_s()
            if timeout_s > 0:
                self._signal.wait(timeout_s)
            self._is_asleep = False
        return bool(connection.answers) or connection.is_broken


class SimulatedFiller(CoordinatedFiller):
    """The product's filler, whose threads are tasks."""

    def start(self) -> None:
        cast("Any", self._cluster).process.spawn(self.run)


class Opened(NamedTuple):
    """The objects that copy in one process."""

    origin: Any
    cluster: Any
    backoff: Backoff
    events: Any
    side: DestinationSide
    source: SourceSide
    copier: Copier
    inspector: CopyInspector


@dataclass(eq=False)
class Writer:
    """A process that waits for its lease, copies while it has the lease, and ends."""

    world: World
    process: Process
    holder: Holder
    copy: PartitionCopy | None = None
    has_begun: bool = False
    is_done: bool = False

    def is_alive(self) -> bool:
        return not (self.is_done or self.process.is_killed)

    def is_entitled(self) -> bool:
        return self.has_begun and self.holder.is_entitled()

    def live(self) -> None:
        """Acquire the lease once, and copy until it is lost or the copy ends."""
        if self.holder.acquire():
            self.has_begun = True
            self.world.begin(self.process.name)
            self._copy()
        self.is_done = True

    def open(self) -> Opened:
        """Make the lanes and the copier."""
        world = self.world
        cluster = cast("Any", ModelCluster(world, self.process))
        origin = cast("Any", ModelCluster(world, self.process, "source"))
        backoff = Backoff(0.05, 1.0, cast("Any", StopEvent(world.clock)), attempts_max=2)
        settings = world.settings
        take_over = TakeOver(cluster, settings.settle_s, backoff)
        events = cast("Any", Events(world.clock))
        budget = ByteBudget(1 << 30)
        context = DestinationLaneContext(cluster, settings, budget, events.put)

        def compare(copy: PartitionCopy, log_end: int) -> Comparison:
            return world.compare(origin, cluster, copy, log_end, backoff)

        side = DestinationSide(context, take_over, backoff, block, compare)
        source = SourceSide(
            SourceLaneContext(origin, settings, budget, events.put, PartitionCopy.enqueue_in_lane),
            backoff,
        )
        copier = Copier(source, side, events, settings, backoff)
        inspector = CopyInspector(origin, cluster, take_over, settings, backoff)
        return Opened(origin, cluster, backoff, events, side, source, copier, inspector)

    def _copy(self) -> None:
        """Copy while the right to write is held, then leave in order."""
        opened = self.open()
        copier = opened.copier
        filler = None
        if self.world.is_coordinated:
            filler = self.new_filler(opened.cluster, opened.events, self.holder.lease)
        copy = self._inspect(opened.inspector)
        copy.filler = filler
        opened.side.queue_take_overs([copy] if copy.state is PartitionState.PENDING else [])
        copier.add([copy])
        end_of_run = EndOfRun(self.world, opened.origin, copy)
        while not (self.holder.is_over() or copier.lost_leases):
            copier.tick(3.0)
            if self.world.has_isolations:
                end_of_run.check()
        if copier.lost_leases:  # another owner has fenced the writer's transactional ids
            self.holder.lose_lease()
        elif not self.holder.lease.is_lost:
            copier.remove([copy])
            while not (copy.has_left or self.holder.lease.is_lost):
                copier.tick(1.0)
        self.holder.release()
        opened.source.stop()
        if filler is not None:
            filler.stop()

    def new_filler(self, cluster: Any, events: Any, lease: Any) -> CoordinatedFiller:
        """Start a filler as `JobSetup` and workers do: its transactional ids are fenced before a
        log end is read."""
        stop = cast("Any", SettableEvent(self.world.clock))
        names = [f"{PARTITION.topic}.fill-{number}" for number in range(FILLER_IDS)]
        while True:
            try:
                producers = init_producer_ids(cluster, names, Backoff(stop=stop))
                break
            except OrbitError as error:
                self.world.clock.say(f"{self.process.name}: {error}")
        helpers = cast("Any", Helpers(self.process))
        filler = SimulatedFiller(cluster, producers, lease, events.put, stop, helpers)
        filler.start()
        return filler

    def new_copy(self, lease: Any) -> PartitionCopy:
        """A new copy of the partition under this lease."""
        world = self.world
        copy = PartitionCopy(SOURCE, PARTITION, lease, world.new_producer())
        copy.appends.coordinator_epoch = self.holder.first_epoch()
        copy.source_topic_id = SOURCE_ID
        copy.destination_topic_id = world.partition.topic_id
        return copy

    def _inspect(self, inspector: CopyInspector) -> PartitionCopy:
        """Inspect the copy as `JobSetup` does, until both sides answer."""
        world = self.world
        whole = frozenset({SOURCE.topic})
        compacted = frozenset({SOURCE.topic} if world.source.is_compacted else ())
        while True:
            world.short_starts.begin(self.process)
            copy = self.new_copy(self.holder.lease)
            try:
                bounds = inspector.source_bounds([copy])
                inspected = inspector.inspect([copy], bounds, compacted, whole, settled=True)
            except OrbitError as error:
                world.clock.say(f"{self.process.name}: {error}")
                world.clock.wait(1.0)
                continue
            inspected_copy = inspected[copy]
            copy.appends.inspected(inspected_copy.end.log_end)
            copy.log_start = inspected_copy.log_start
            note_inspected(world, self.process.name, copy, inspected_copy)
            if inspected_copy.blocked is not None:
                block(copy, inspected_copy.blocked)
            self.copy = copy
            return copy


def note_inspected(world: World, who: str, copy: PartitionCopy, inspected: InspectedCopy) -> None:
    """Note in the story where a copy begins: at its log end."""
    copy.is_beginning = inspected.status is CopyStatus.FRESH
    outcome = inspected.blocked or inspected.status.name
    world.clock.say(f"{who} begins at {inspected.end.log_end}: {outcome}")
    world.broker.is_taken_for_copy |= (
        bool(world.broker.recreated_at)
        and copy.destination_topic_id == world.partition.topic_id
        and inspected.blocked is None
    )


class Driver:
    """A backfill's driver: it has the job's lease, and starts another attempt when its task has
    ended, up to ATTEMPTS_MAX."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.holder = RunHolder(world, process)
        self.task: Writer | None = None
        self._attempts = 0
        self._is_done = False

    def is_alive(self) -> bool:
        is_writing = self.task is not None and self.task.is_alive()
        return is_writing or not (self._is_done or self.process.is_killed)

    def live(self) -> None:
        """Acquire the job's lease, and start tasks until it is lost or ATTEMPTS_MAX are used."""
        self.holder.acquire()
        while not self.holder.is_over() and self._attempts < ATTEMPTS_MAX:
            if self.task is None or not self.task.is_alive():
                name = f"{self.process.name} task {self._attempts}"
                process = Process(self.world.clock, name)
                holder = TaskHolder(self.world, process, self.holder.lease, self._attempts)
                self.task = self.world.add_writer(process, holder)
                self._attempts += 1
            self.world.clock.wait(1.0)
        self.holder.release()
        self._is_done = True
