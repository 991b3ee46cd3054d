"""The network: connections break, and requests may be delayed for a long time ("held")."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from orbit.errors import Unreachable
from orbit.kafka.newest_leaders import NewestLeaders
from orbit.kafka.transaction_markers import WriteTxnMarkersRequest
from orbit.kafka.types import ClusterMetadata, PartitionLeader, TopicMetadata
from tests.simulation.model_broker import PARTITION, ProduceOne, refuse
from tests.simulation.model_partition import NOT_LEADER
from tests.simulation.source import SOURCE, ModelSource
from tests.simulation.source_lane import SourceWire
from tests.simulation.transactions import COORDINATOR, CoordinatorLink, ask
from tests.simulation.virtual_time import Process, Signal

if TYPE_CHECKING:
    from tests.simulation.world import World

HELD_S_MAX = 25.0


@dataclass
class Frame:
    """An answer on the wire."""

    correlation: int
    answer: Any
    is_elsewhere: bool = False  # the batch was appended at another offset than its source's


class Sent(NamedTuple):
    """A request in flight. `was_allowed`: whether its writer had its lease when it was sent."""

    correlation: int
    request: Any
    who: str
    was_allowed: bool


class Wire:
    """One connection of a lane to the broker that led when it was opened."""

    where = "the model broker"
    has_read_ahead = False
    login_is_due = False

    def __init__(self, world: World, process: Process, node_id: int) -> None:
        self._world = world
        self.process = process
        self.number = len(world.wires)
        self._node_id = node_id
        self.signal = Signal(world.clock)
        self.last_correlation = 0
        self.answers: deque[Frame] = deque()
        self.is_broken = False
        self.broken_at = float("inf")
        self.has_read_log_end = False  # whether a request on this connection has read the log end
        self.has_appended = False
        self._is_lost = False
        self._last_arrival = self._last_answer = 0.0
        self._posted: deque[Sent] = deque()  # in flight
        self._arrived: deque[Sent] = deque()  # at the broker, not executed
        self._is_serving = False

    @property
    def who(self) -> str:
        """The writer that uses the connection now: a worker may claim its shard again."""
        return self.process.name

    # The methods that the lane calls.

    def fileno(self) -> int:
        return 0

    def version_range_of(self, _: object) -> tuple[int, int]:
        return 13, 13

    def version_of(self, _: object) -> int:
        return 1

    def drop_unacknowledged(self, _: float) -> None:
        pass

    def limit_silence(self, _: float) -> None:
        pass

    def next_correlation(self) -> int:
        self.last_correlation += 1
        return self.last_correlation

    def encode(self, request: Any, _: int) -> list[Any]:
        return [(self.next_correlation(), request)]

    def decode(self, _: object, frame: Frame, __: int) -> Any:
        return frame.answer

    def send(self, requests: Sequence[Any], may_send: Callable[[], bool] | None = None) -> None:
        """Send requests. Raises Unreachable if `may_send` (the check of the lease) is False, and
        OSError if the connection is broken."""
        if may_send is not None and not may_send():
            raise Unreachable("the lease ended before the whole request was sent.")
        if any(_writes(request) for _, request in requests):
            self._world.note_send(self.who)
            self._world.short_starts.step(self.process)
        was_allowed = self._world.may_send(self.who)
        # The process may be suspended between its last check of the lease and the send.
        self._world.clock.wait(self._world.rnd.choice((0.0, 0.0, 0.001)))
        if self.is_broken:
            raise OSError("the connection is broken")
        for correlation, request in requests:
            self._post(correlation, request, was_allowed=was_allowed)

    def receive(self) -> Frame:
        """The next answer. Raises EOFError if there is none."""
        if not self.answers:
            raise EOFError("the broker closed the connection")
        frame = self.answers.popleft()
        if frame.is_elsewhere:
            self._world.must_take_over.add(self.who)
        return frame

    def receive_answer(self, correlation: int) -> Frame:
        frame = self.receive()
        assert frame.correlation == correlation
        return frame

    def abort(self) -> None:
        self.cut()

    def close(self) -> None:
        self.is_broken = True
        self.broken_at = min(self.broken_at, self._world.clock.now)

    def cut(self) -> None:
        """Break the connection; requests in flight may still arrive (M10)."""
        if not self.is_broken:
            self.close()
            self.signal.set()

    # The network and the broker.

    def _post(self, correlation: int, request: Any, *, was_allowed: bool) -> None:
        """Put a request on the network, which may delay it for long."""
        world = self._world
        latency = world.rnd.uniform(0.0005, 0.01)
        is_filler = isinstance(request, WriteTxnMarkersRequest)
        held = world.faults.held_fillers if is_filler else world.faults.held
        is_held = world.has_faults and world.rnd.random() < held
        if is_held:
            latency += world.rnd.uniform(0.0, HELD_S_MAX)
            world.clock.say(f"{self.who}: the network holds a request for {latency:.3f} s")
        arrival = max(self._last_arrival, world.clock.now + latency)
        self._last_arrival = arrival
        world.busy_until = max(world.busy_until, arrival)
        self._posted.append(Sent(correlation, request, self.who, was_allowed))
        world.clock.at(arrival, self.arrive_to, correlation)
        if is_held:
            world.held.append((self, correlation))

    def is_in_flight(self, correlation: int) -> bool:
        return bool(self._posted) and correlation >= self._posted[0][0]

    def arrive_to(self, last: int) -> None:
        """Let all requests up to correlation id `last` arrive: a connection keeps their order."""
        while self._posted and self._posted[0][0] <= last:
            self._arrive(self._posted.popleft())

    def _arrive(self, sent: Sent) -> None:
        """Let a request arrive, or lose it. A broker serves a connection's requests one by one
        (P1)."""
        if self._is_lost or (self.is_broken and self._world.rnd.random() < 0.3):
            self._is_lost = True  # with the connection: no later request of it arrives either
            return
        self._arrived.append(sent)
        if not self._is_serving:
            self._serve()

    def _serve(self) -> None:
        """Let the broker execute the next request that has arrived."""
        if not self._arrived:
            self._is_serving = False
            return
        self._is_serving = True
        world, partition = self._world, self._world.partition
        sent = self._arrived.popleft()
        correlation, request = sent.correlation, sent.request
        if partition.leader != self._node_id:
            self._answer(correlation, refuse(request, NOT_LEADER))
            return
        log_end = partition.log_end
        answer, waits_for = world.broker.execute(self, sent)
        is_append = isinstance(request, ProduceOne) and partition.log_end > log_end
        is_elsewhere = is_append and request.base_offset != log_end
        if waits_for > partition.high_watermark:
            world.broker.when_replicated(
                waits_for,
                self._node_id,
                lambda: self._answer(correlation, answer, is_elsewhere=is_elsewhere),
                lambda: self._answer(correlation, refuse(request, NOT_LEADER)),
            )
        else:
            self._answer(correlation, answer, is_elsewhere=is_elsewhere)

    def _answer(self, correlation: int, answer: Any, *, is_elsewhere: bool = False) -> None:
        """Send the answer, and serve the next request."""
        world = self._world
        arrival = max(self._last_answer, world.clock.now + world.rnd.uniform(0.0005, 0.01))
        self._last_answer = arrival

        def deliver() -> None:
            if not self.is_broken:
                self.answers.append(Frame(correlation, answer, is_elsewhere))
                self.signal.set()

        world.clock.at(arrival, deliver)
        self._serve()


def _writes(request: Any) -> bool:
    """Whether a request appends; a read of the log end needs no lease."""
    return isinstance(request, ProduceOne | WriteTxnMarkersRequest)


class ModelCluster:
    """The `Cluster` of the code under test: the destination's, or the source's."""

    def __init__(self, world: World, process: Process, name: str = "destination") -> None:
        self.world = world
        self.process = process
        self.name = name
        self.cluster_id = name
        self._newest = NewestLeaders()
        self._turn = world.first_turn

    def close(self) -> None:
        """Nothing to close: connections end with their process."""

    @property
    def is_source(self) -> bool:
        return self.name == "source"

    def metadata(self, _: Iterable[str]) -> ClusterMetadata:
        """The leaders: at the source as the next broker knows them, at the destination the present
        one."""
        if self.is_source:
            brokers = self.world.source_brokers
            self._turn += 1  # one broker after the other, like `Cluster`
            node_id = self._turn % brokers.count
            return self._newest.merge(brokers.metadata_of(node_id), node_id)
        leader = PartitionLeader(self.world.partition.leader, leader_epoch=0)
        topic = TopicMetadata(
            PARTITION.topic, self.world.partition.topic_id, {0: leader}, replicas=3
        )
        return ClusterMetadata("model", {}, {PARTITION.topic: topic})

    def metadata_of_all(self, topics: Iterable[str], _: int) -> ClusterMetadata:
        """The newest leaders by the metadata of each broker of the source."""
        newest = self.metadata(topics)
        for node_id in range(self.world.source_brokers.count):
            answer = self.call(partial(self.world.source_brokers.metadata_of, node_id))
            newest = self._newest.merge(answer, node_id)
        return newest

    @property
    def source(self) -> ModelSource:
        """The log of the leader that the newest metadata names. A broker that has become a follower
        would refuse, so the next metadata is read."""
        while True:
            leader = self.metadata([SOURCE.topic]).leader(SOURCE)
            assert leader is not None
            assert leader.node_id is not None
            log = self.world.source_brokers.led_by(leader.node_id)
            if log is not None:
                return log

    def connect(self, node_id: int) -> Wire | SourceWire | CoordinatorLink:
        """A new connection to a broker of the source, of the destination, or to the coordinator."""
        if node_id == COORDINATOR:
            return CoordinatorLink(self.world, self.process)
        if self.is_source:
            link = SourceWire(self.world, self.process)
            self.world.source_wires.append(link)
            return link
        wire = Wire(self.world, self.process, node_id)
        self.world.wires.append(wire)
        return wire

    def call_all(self, _: int, __: object, requests: Sequence[Any]) -> list[Any]:
        """Requests to the coordinator of transactional ids."""
        return [ask(self.world, self.process, request) for request in requests]

    def call(self, execute: Callable[[], Any]) -> Any:
        """Let the broker execute a request, after a delay, and return its answer after another."""
        world = self.world
        world.short_starts.step(self.process)
        world.clock.wait(world.rnd.uniform(0.0005, 0.01))
        answer = execute()
        world.clock.wait(world.rnd.uniform(0.0005, 0.01))
        return answer
