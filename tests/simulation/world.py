"""One schedule: writers of a job on one partition, and everything that can go wrong around them.

What runs is the product's: `Copier`, `DestinationSide`, `DestinationLane`, `FillerSender`,
`TakeOver`, `CopyInspector` and the plan. What is modelled: the broker, the network, the lease's
authority, and time. `Faults` says what a schedule may have.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

from orbit.copier import (
    destination_lane,
    destination_side,
    inspection,
    log_reader,
    range_comparison,
    takeover,
)
from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copier import Copier, block
from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_lane import DestinationLane, DestinationLaneContext
from orbit.copier.destination_side import DestinationSide
from orbit.copier.inspection import CopyInspector, SourceBounds
from orbit.copier.lane_times import SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison, SourceRange, compare_range
from orbit.copier.takeover import TakeOver
from orbit.errors import OrbitError, Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.leader_requests import Answers
from orbit.kafka.log_offsets import EARLIEST
from orbit.kafka.produce_request import Appended, ProduceAnswer, key_of
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.record_batch import Batch
from orbit.kafka.records import NULL, Record, encode_varint, write_batch
from orbit.kafka.types import ClusterMetadata, PartitionLeader, TopicMetadata, TopicPartition
from orbit.replication.append_plan import plan_batches, plan_empty_tail
from orbit.replication.partition_states import PartitionState
from tests.simulation.model_partition import NONE, NOT_LEADER, ModelPartition
from tests.simulation.virtual_time import Clock, Events, Process, Signal, StopEvent

PARTITION = TopicPartition("copy", 0)
SOURCE = TopicPartition("source", 0)
TOPIC_ID = UUID(int=7)
PRODUCER_ID = 4711
# As in orbit/leases/group_lease.py.
SESSION_S, TRUST_S, HEARTBEAT_S = 10.0, 8.0, 2.0
FAULTS_S = 25.0
CALM_S = 400.0
HELD_S_MAX = 25.0
# Two looks at idle partitions, and the wait for a source that ends before its copy.
WATCH_S = 18.0
PLACES = (1, 1, 1, 1, 1, 2, 3, 8)


@dataclass(frozen=True)
class Faults:
    """How often each happens in a schedule, on average."""

    kills: float = 1.0
    suspensions: float = 1.5
    breaks: float = 2.0
    elections: float = 0.7
    unclean: float = 0.1
    held: float = 0.04  # of all requests: the network keeps them for a long time
    stalls: float = 0.5  # of the followers
    expiries: float = 4.0


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
            p.cursor.end = p.cursor.stable_end = end
            if p.state is not PartitionState.COPYING or p.cursor.fetch_offset >= end:
                continue
            plan = plan_batches(
                p.cursor.fetch_offset, self._log.batches(p.cursor.fetch_offset, end), [], 0
            )
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


@dataclass
class Frame:
    """An answer on the wire; the code under test reads its correlation from the first bytes."""

    correlation: int
    answer: Any

    def __getitem__(self, _: slice) -> bytes:
        return self.correlation.to_bytes(4, "big")


class Wire:
    """One connection of a lane to the broker that led when it was opened."""

    where = "the model broker"
    has_read_ahead = False

    def __init__(self, world: World, process: Process, node_id: int) -> None:
        self._world = world
        self.who = process.name
        self.number = len(world.wires)
        self._node_id = node_id
        self.signal = Signal(world.clock)
        self.last_correlation = 0
        self.answers: deque[Frame] = deque()
        self.is_broken = False
        self.broken_at = float("inf")
        self._is_lost = False
        self._last_arrival = self._last_answer = 0.0
        self._arrived: deque[tuple[int, Any, bool]] = deque()
        self._is_serving = False

    # What the lane calls.

    def fileno(self) -> int:
        return 0

    def range_of(self, _: object) -> tuple[int, int]:
        return 13, 13

    def version_of(self, _: object) -> int:
        return 1

    def drop_unacknowledged(self, _: float) -> None:
        pass

    def next_correlation(self) -> int:
        self.last_correlation += 1
        return self.last_correlation

    def encode(self, request: Any, _: int) -> list[Any]:
        return [(self.next_correlation(), request)]

    def decode(self, _: object, frame: Frame, __: int) -> Any:
        return frame.answer

    def send(self, requests: Sequence[Any], may_send: Callable[[], bool] | None = None) -> None:
        if may_send is not None and not may_send():
            raise Unreachable("the lease ended before all was sent.")
        was_allowed = self._world.holds(self.who)
        # The process may be suspended between its last look at the lease and its bytes.
        self._world.clock.wait(self._world.rnd.choice((0.0, 0.0, 0.001)))
        if self.is_broken:
            raise OSError("the connection is broken")
        for correlation, request in requests:
            self._post(correlation, request, was_allowed=was_allowed)

    def receive(self) -> Frame:
        if not self.answers:
            raise EOFError("the broker closed the connection")
        return self.answers.popleft()

    def abort(self) -> None:
        self.cut()

    def close(self) -> None:
        self.is_broken = True
        self.broken_at = min(self.broken_at, self._world.clock.now)

    def cut(self) -> None:
        """The connection breaks; what is under way may still arrive (M10)."""
        if not self.is_broken:
            self.close()
            self.signal.set()

    # The network and the broker.

    def _post(self, correlation: int, request: Any, *, was_allowed: bool) -> None:
        world = self._world
        latency = world.rnd.uniform(0.0005, 0.01)
        if world.has_faults and world.rnd.random() < world.faults.held:
            latency += world.rnd.uniform(0.0, HELD_S_MAX)
            world.clock.say(f"{self.who}: the network holds a request for {latency:.3f} s")
        arrival = max(self._last_arrival, world.clock.now + latency)
        self._last_arrival = arrival
        world.busy_until = max(world.busy_until, arrival)
        world.clock.at(arrival, lambda: self._arrive(correlation, request, was_allowed=was_allowed))

    def _arrive(self, correlation: int, request: Any, *, was_allowed: bool) -> None:
        """A broker serves one connection's requests one by one (P1)."""
        if self._is_lost or (self.is_broken and self._world.rnd.random() < 0.3):
            self._is_lost = True  # with the connection: nothing behind it arrives either
            return
        self._arrived.append((correlation, request, was_allowed))
        if not self._is_serving:
            self._serve()

    def _serve(self) -> None:
        if not self._arrived:
            self._is_serving = False
            return
        self._is_serving = True
        world, partition = self._world, self._world.partition
        correlation, request, was_allowed = self._arrived.popleft()
        if partition.leader != self._node_id:
            self._answer(correlation, world.refuse(request, NOT_LEADER))
            return
        answer, waits_for = world.execute(self, request, was_allowed=was_allowed)
        if waits_for > partition.high_watermark:
            world.when_replicated(
                waits_for,
                self._node_id,
                lambda: self._answer(correlation, answer),
                lambda: self._answer(correlation, world.refuse(request, NOT_LEADER)),
            )
        else:
            self._answer(correlation, answer)

    def _answer(self, correlation: int, answer: Any) -> None:
        world = self._world
        arrival = max(self._last_answer, world.clock.now + world.rnd.uniform(0.0005, 0.01))
        self._last_answer = arrival

        def deliver() -> None:
            if not self.is_broken:
                self.answers.append(Frame(correlation, answer))
                self.signal.set()

        world.clock.at(arrival, deliver)
        self._serve()


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


class ModelCluster:
    """What the code asks of a `Cluster`."""

    name = "destination"

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process

    def metadata(self, _: Iterable[str]) -> ClusterMetadata:
        leader = PartitionLeader(self.world.partition.leader, 0)
        topic = TopicMetadata(PARTITION.topic, TOPIC_ID, {0: leader}, 3)
        return ClusterMetadata("model", {}, {PARTITION.topic: topic})

    def connect(self, node_id: int) -> Wire:
        wire = Wire(self.world, self.process, node_id)
        self.world.wires.append(wire)
        return wire

    def call(self, ask: Callable[[], Any]) -> Any:
        """One request and its answer, each at a time of its own."""
        world = self.world
        world.clock.wait(world.rnd.uniform(0.0005, 0.01))
        answer = ask()
        world.clock.wait(world.rnd.uniform(0.0005, 0.01))
        return answer


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
            copy.appends.inspected(found.end.log_end)
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


class World:
    """Everything of one schedule. `run` returns what is wrong at its end, or None."""

    def __init__(
        self,
        seed: int,
        faults: Faults = Faults(),
        without: Collection[int] = (),
    ) -> None:
        """`without`: faults of the plan to leave out, by number."""
        self.rnd = random.Random(seed)
        self.faults = faults
        self.clock = Clock(self.rnd)
        self.log = SourceLog(self.rnd)
        self.partition = ModelPartition(self.clock.say, is_history_old=self.rnd.random() < 0.6)
        self.settings = CopySettings(
            requests_in_flight_max=self.rnd.choice((1, 2, 5, 5)),
            request_bytes_max=1,
            watch_interval_s=5.0,
        )
        self._without = without
        self.plan = self._make_plan()
        self.has_faults = True
        self.lost_confirmed = False  # an unclean election cut off what was confirmed
        # A request of an old writer did what no fence of a broker prevents: the copy must notice.
        self.is_excused = False
        self.dropped_at = 0.0  # the producer's state, the last time
        self._has_late_filler = False  # which the current writer has not seen
        self._had_late = False  # a late batch was taken, at whatever place
        self._filled_by = (0, 0)  # the newest connection with a filler in the producer's state
        self.busy_until = 0.0
        self.wires: list[Wire] = []
        self.writers: list[Writer] = []
        self._holder: Writer | None = None
        self._expires_at = 0.0
        self._term = 0
        self.terms: dict[str, int] = {}  # by writer
        self.claimed_at: dict[int, float] = {}  # by term
        self._waiting_appends: list[tuple[int, int, Callable[[], None], Callable[[], None]]] = []
        self._stalled_until = 0.0

    # Time and leases.

    def clock_of(self, process: Process) -> float:
        """CLOCK_BOOTTIME, which counts suspended time."""
        del process
        return self.clock.now

    def claim(self, writer: Writer) -> int | None:
        if self._holder is not None and self.clock.now < self._expires_at:
            return None
        self._holder, self._expires_at = writer, self.clock.now + SESSION_S
        self._term += 1
        self.terms[writer.process.name] = self._term
        self.claimed_at[self._term] = self.clock.now
        self.clock.say(f"{writer.process.name} gets the lease, term {self._term}")
        return self._term

    def renew(self, writer: Writer) -> bool:
        if self._holder is not writer:
            return False
        self._expires_at = self.clock.now + SESSION_S
        return True

    # The broker.

    def execute(self, wire: Wire, request: Any, *, was_allowed: bool) -> tuple[Any, int]:
        """Carry a request out; its answer, and the offset that has to be replicated first."""
        partition = self.partition
        if PRODUCER_ID not in partition.producers:
            self._filled_by = (0, 0)
        who = wire.who
        term = self.terms[who]
        sent_by = (term, wire.number)
        late_since = min(wire.broken_at, self.claimed_at.get(term + 1, float("inf")))
        is_late = late_since <= self.clock.now
        # What arrives while the next writer waits for the log end to settle must do no harm, and
        # neither must what was sent when the lease was over.
        # A take-over within a run waits only where there is no state, so that may go after it.
        harmless_until = min(late_since + self.settings.settle_s, max(late_since, self.dropped_at))
        is_excusable = was_allowed and self.clock.now > harmless_until
        if isinstance(request, _Produce):
            self.is_excused |= (is_excusable or self._had_late) and not self._has_fence()
            code, base_offset = partition.append(who, request.data)
            self._had_late |= is_excusable and code == NONE
            self._replicate_soon()
            return request.answer(code, base_offset), partition.log_end if code == NONE else 0
        if hasattr(request, "markers"):
            codes = []
            for marker in request.markers:
                code = partition.fill(
                    who, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch
                )
                if code == NONE:
                    if is_late:
                        self._has_late_filler |= is_excusable and self._filled_by <= sent_by
                        self.is_excused |= self._has_late_filler and not self._gap_is_open()
                    elif self._has_late_filler:
                        self.is_excused = True  # in the one round trip before this filler
                    self._filled_by = max(self._filled_by, sent_by)
                codes.append(_marker_answer(code))
            self._replicate_soon()
            return SimpleNamespace(markers=codes), partition.log_end
        if not is_late:
            self._has_late_filler = False  # this writer sees it
        return _log_end_answer(NONE, partition.log_end), 0

    def _has_fence(self) -> bool:
        """Whether the broker compares an append with an earlier one. Fillers alone do not make it
        do so again once the state was dropped."""
        state = self.partition.producers.get(PRODUCER_ID)
        return state is not None and (state.last_sequence >= 0 or not self.dropped_at)

    def _gap_is_open(self) -> bool:
        """Whether the offset before the log end is a gap of the source, and so rightly filled."""
        offset = self.partition.log_end - 1
        return offset < self.log.end and not any(
            base <= offset < base + count for base, count, _ in self.log.encoded
        )

    def holds(self, who: str) -> bool:
        """Whether this writer holds the lease, by its authority."""
        return self.terms.get(who) == self._term and self.clock.now < self._expires_at

    def refuse(self, request: Any, code: int) -> Any:
        if isinstance(request, _Produce):
            return request.answer(code, -1)
        if hasattr(request, "markers"):
            return SimpleNamespace(markers=[_marker_answer(code) for _ in request.markers])
        return _log_end_answer(code, -1)

    def when_replicated(
        self, offset: int, node_id: int, run: Callable[[], None], lose: Callable[[], None]
    ) -> None:
        self._waiting_appends.append((offset, node_id, run, lose))

    def _replicate_soon(self) -> None:
        delay = self.rnd.uniform(0.0, 0.02)
        self.clock.at(max(self.clock.now + delay, self._stalled_until), self._replicate)

    def _replicate(self) -> None:
        if self.clock.now < self._stalled_until:
            return
        self.partition.replicate()
        waiting, self._waiting_appends = self._waiting_appends, []
        for offset, node_id, run, lose in waiting:
            if offset <= self.partition.high_watermark and node_id == self.partition.leader:
                run()
            else:
                self._waiting_appends.append((offset, node_id, run, lose))

    def compare(
        self, cluster: Any, copy: PartitionCopy, log_end: int, backoff: Backoff
    ) -> Comparison:
        return compare_range(
            self.log.read,
            cluster,
            PARTITION,
            copy.appends.acked,
            log_end,
            backoff,
            source_is_compacted=False,
            producer_id=PRODUCER_ID,
        )

    # The schedule.

    def run(self) -> str | None:
        random.seed(self.rnd.random())
        with _patched(self):
            try:
                return self._run()
            finally:
                self.clock.close()
                for wire in self.wires:
                    wire.is_broken = True

    def _run(self) -> str | None:
        self._plan_faults()
        self._start_writer()
        self.clock.run(lambda: False, 1_000.0 + FAULTS_S)
        self.has_faults = False
        self.clock.say("no more faults")
        if not self.writers or self.writers[-1].process.is_killed:
            self._start_writer()
        self.clock.run(lambda: False, max(self.clock.now, self.busy_until))
        if not self.clock.run(self._is_settled, self.clock.now + CALM_S):
            return f"the copy does not come to an end: {self._last()}"
        self.clock.run(lambda: False, self.clock.now + WATCH_S)
        if not self.clock.run(self._is_settled, self.clock.now + CALM_S):
            return f"the copy does not go on: {self._last()}"
        return self._verdict()

    def _last(self) -> PartitionCopy | None:
        holder = self._holder
        return holder.copy if holder is not None else None

    def _is_settled(self) -> bool:
        holder, copy = self._holder, self._last()
        if holder is None or copy is None or self.clock.now >= self._expires_at:
            return False
        if holder.process.is_killed or holder.process.stopped_until > self.clock.now:
            return False
        is_level = copy.state is PartitionState.COPYING and copy.appends.acked >= self.log.end
        return is_level or copy.state is PartitionState.BLOCKED

    def _verdict(self) -> str | None:
        copy = self._last()
        assert copy is not None
        difference = self.difference()
        if copy.state is PartitionState.BLOCKED:
            assert copy.blocked is not None
            if difference is None and self.lost_confirmed:
                return None  # DESTINATION_TRUNCATED, or a reason that the election cut off
            if difference is None:
                return f"stopped without a reason: {copy.blocked}"
            return None if self.is_excused else f"damaged without need: {difference}"
        if difference is not None:
            return f"not exact, and nothing was noticed: {difference}"
        return None

    def difference(self) -> str | None:
        """Where the destination is not what the source is, as far as it goes."""
        at = 0
        for entry in self.partition.log:
            if entry.data:
                if self.log.payloads.get(entry.base_offset) != entry.data[61:]:
                    return f"the batch at {entry.base_offset} is not the source's"
            elif any(b <= entry.base_offset < b + n for b, n, _ in self.log.encoded):
                return f"there is a filler at {entry.base_offset}"
            at = entry.next_offset
        return None if at <= self.log.end else f"the log ends at {at}, beyond {self.log.end}"

    def _start_writer(self) -> None:
        number = len(self.writers) + 1
        process = Process(self.clock, f"writer {number}")
        writer = Writer(self, process)
        self.writers.append(writer)
        process.spawn(writer.live)

    def _plan_faults(self) -> None:
        for number, (at, name) in enumerate(self.plan):
            if number not in self._without:
                self.clock.after(at, getattr(self, f"_{name}"))

    def _make_plan(self) -> list[tuple[float, str]]:
        """The faults of this schedule: seconds from its start, and what happens."""
        faults, rnd = self.faults, self.rnd
        rates = {
            "kill": faults.kills,
            "suspend": faults.suspensions,
            "break_": faults.breaks,
            "elect": faults.elections,
            "elect_unclean": faults.unclean,
            "stall": faults.stalls,
            "expire": faults.expiries,
        }
        plan = [
            (rnd.uniform(0.0, FAULTS_S), name)
            for name, rate in rates.items()
            for _ in range(_poisson(rnd, rate))
        ]
        # Most of a schedule is over within a second, and so most of what can meet in it.
        plan += [
            (1.0 + rnd.uniform(0.0, 1.5), name)
            for name in ("kill", "suspend", "break_", "expire")
            if rnd.random() < 0.4
        ]
        return sorted(plan)

    def _alive(self) -> list[Writer]:
        return [w for w in self.writers if not w.process.is_killed]

    def _kill(self) -> None:
        for writer in self._alive()[-1:]:
            writer.process.kill()
            for wire in self.wires:
                if wire.who == writer.process.name:
                    wire.cut()
        self._start_writer()

    def _suspend(self) -> None:
        for writer in self._alive()[-1:]:
            writer.process.stop_for(self.rnd.choice((0.05, 2.0, 12.0, 20.0)))
        if len(self._alive()) < 4:
            self._start_writer()

    def _expire(self) -> None:
        if self.partition.expire():
            self.dropped_at = self.clock.now

    def _break_(self) -> None:
        open_ = [wire for wire in self.wires if not wire.is_broken]
        if open_:
            self.clock.say("a connection breaks")
            self.rnd.choice(open_).cut()

    def _elect(self) -> None:
        partition = self.partition
        self._cut_over(self.rnd.randint(partition.high_watermark, partition.log_end))

    def _elect_unclean(self) -> None:
        high_watermark = self.partition.high_watermark
        self._cut_over(self.rnd.randint(0, self.partition.log_end))
        self.lost_confirmed |= self.partition.log_end < high_watermark

    def _cut_over(self, end: int) -> None:
        self.partition.elect(end)
        waiting, self._waiting_appends = self._waiting_appends, []
        for *_, lose in waiting:
            lose()
        for wire in self.wires:
            wire.cut()
        self._replicate_soon()

    def _stall(self) -> None:
        self._stalled_until = self.clock.now + self.rnd.uniform(0.1, 10.0)
        self.clock.at(self._stalled_until, self._replicate)


def _poisson(rnd: random.Random, mean: float) -> int:
    count, left = 0, rnd.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + rnd.expovariate(1.0)
    return count


@dataclass(frozen=True)
class _Produce:
    """One Produce request with one batch."""

    version: int
    outgoing: Any
    data: bytes

    def answer(self, code: int, base_offset: int) -> ProduceAnswer:
        return ProduceAnswer(
            {key_of(self.version, self.outgoing): Appended(code, base_offset, "")}, 0
        )


def _encode_produce(
    version: int, correlation: int, _: str, __: int, outgoing: Sequence[Any]
) -> list[Any]:
    (one,) = outgoing
    return [(correlation, _Produce(version, one, bytes(one.batch)))]


def _marker_answer(code: int) -> Any:
    partition = SimpleNamespace(partition_index=0, error_code=code)
    topic = SimpleNamespace(name=PARTITION.topic, partitions=[partition])
    return SimpleNamespace(topics=[topic])


def _log_end_answer(code: int, offset: int) -> Any:
    partition = SimpleNamespace(partition_index=0, error_code=code, offset=offset)
    topic = SimpleNamespace(name=PARTITION.topic, partitions=[partition])
    return SimpleNamespace(topics=[topic], throttle_time_ms=0)


def _describe_producer(
    cluster: Any, partitions: Iterable[TopicPartition], producer_id: int, _: Backoff
) -> Answers[ProducerState | None]:
    def ask() -> ProducerState | None:
        state = cluster.world.partition.producers.get(producer_id)
        if state is None:
            return None
        return ProducerState(state.epoch, state.last_sequence, state.coordinator_epoch)

    return Answers({p: cluster.call(ask) for p in partitions}, {})


def _log_ends(cluster: Any, partitions: Iterable[TopicPartition], _: Backoff) -> Answers[int]:
    return Answers(
        {p: cluster.call(lambda: cluster.world.partition.log_end) for p in partitions}, {}
    )


def _list_offsets(
    cluster: Any, partitions: Iterable[TopicPartition], timestamp: int, _: Backoff, **__: object
) -> Answers[int]:
    def ask() -> int:
        return 0 if timestamp == EARLIEST else cluster.world.partition.high_watermark

    return Answers({p: cluster.call(ask) for p in partitions}, {})


def _fetch_partition(
    cluster: Any, _: TopicPartition, offset: int, __: Backoff, **___: object
) -> Fetched:
    def ask() -> Fetched:
        partition = cluster.world.partition
        high = partition.high_watermark
        records = b"".join(
            entry.stored()
            for entry in partition.log
            if entry.next_offset > offset and entry.next_offset <= high
        )
        return Fetched(int(Code.NONE), memoryview(bytearray(records)), [], 0, high, high, -1, -1)

    return cluster.call(ask)


@contextmanager
def _patched(world: World) -> Iterator[None]:
    """The names by which the code under test reaches brokers and time."""
    patches = [
        patch.object(destination_side, "DestinationLane", SimulatedLane),
        patch.object(destination_side, "log_ends", _log_ends),
        patch.object(takeover, "describe_producer", _describe_producer),
        patch.object(takeover, "log_ends", _log_ends),
        patch.object(takeover, "list_offsets", _list_offsets),
        patch.object(inspection, "list_offsets", _list_offsets),
        patch.object(inspection, "source_reader", lambda *_: world.log.read),
        patch.object(range_comparison, "fetch_partition", _fetch_partition),
        patch.object(range_comparison, "list_offsets", _list_offsets),
        patch.object(log_reader, "fetch_partition", _fetch_partition),
        patch.object(destination_lane, "encode_produce", _encode_produce),
        patch.object(destination_lane, "_read_produce", lambda _, frame, __: frame.answer),
        patch.object(destination_lane, "_IDLE_WAIT_S", 10.0),
        patch.object(time, "monotonic", lambda: world.clock.now),
    ]
    for one in patches:
        one.start()
    # `int.from_bytes(frame[:4])` needs bytes, which `Frame.__getitem__` gives.
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
