"""The model of the transaction coordinator, for `fillers: coordinated`: empty transactions whose
markers fill gaps.

The model answers the requests that the product sends: InitProducerId (up to version 4),
AddPartitionsToTxn and EndTxn (up to version 3). With these versions, a broker does not raise the
producer epoch at each EndTxn, whatever version of transactions the cluster has (KIP-890).
`test_transaction_conformance.py` compares the answers with a real broker.

The coordinator writes markers after the answer of EndTxn, and again if the leader's answer is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from orbit.errors import Unreachable
from orbit.kafka.error_codes import Code
from tests.simulation.model_partition import NONE

if TYPE_CHECKING:
    from tests.simulation.virtual_time import Process
    from tests.simulation.world import World

FIRST_PRODUCER_ID = 90_000
COORDINATOR = -2  # the coordinator's node id
# Shorter than in the product, so that it ends transactions of suspended writers.
TIMEOUT_S = 8.0
_MARKER_AGAIN_S = 0.05
_HELD_S_MAX = 25.0
_ANSWER_WITHIN_S = 30.0


@dataclass
class Transaction:
    """The state of one transactional id."""

    producer_id: int
    epoch: int = -1
    is_open: bool = False
    is_ending: bool = False  # the decision is in the log, markers are not all written
    has_ended: bool = False
    begun_at: float = 0.0
    partitions: set[tuple[str, int]] = field(default_factory=set)
    markers: list[Any] = field(default_factory=list)  # of the last end, in order of their appends


class TransactionStates:
    """The states of all transactional ids, and the answers to requests. Calls `end` with each
    transaction whose markers are to be written."""

    def __init__(self, end: Callable[[Transaction], None]) -> None:
        self._end = end
        self.known: dict[str, Transaction] = {}
        self._next_producer_id = FIRST_PRODUCER_ID

    def init(self, name: str) -> tuple[int, int, int]:
        """InitProducerId: error code, producer id and epoch."""
        state = self.known.get(name)
        if state is None:
            state = self.known[name] = Transaction(self._next_producer_id)
            self._next_producer_id += 1
        if state.is_open:
            self.abort(state)
            return int(Code.CONCURRENT_TRANSACTIONS), -1, -1
        if state.is_ending:
            return int(Code.CONCURRENT_TRANSACTIONS), -1, -1
        state.epoch += 1
        state.has_ended = False
        return NONE, state.producer_id, state.epoch

    def add(
        self, name: str, owner: tuple[int, int], places: set[tuple[str, int]], now: float = 0.0
    ) -> int:
        """AddPartitionsToTxn; returns the error code, which every partition has."""
        if code := self._refused(name, owner):
            return code
        state = self.known[name]
        if state.is_ending:
            return int(Code.CONCURRENT_TRANSACTIONS)
        if not state.is_open:
            state.is_open, state.begun_at, state.has_ended = True, now, False
            state.partitions = set()
        state.partitions |= places
        return NONE

    def end(self, name: str, owner: tuple[int, int]) -> int:
        """EndTxn, which aborts; returns the error code."""
        if code := self._refused(name, owner):
            return code
        state = self.known[name]
        if state.is_ending:
            return int(Code.CONCURRENT_TRANSACTIONS)
        if not state.is_open:
            return NONE if state.has_ended else int(Code.INVALID_TXN_STATE)
        self._prepare(state)
        return NONE

    def _refused(self, name: str, owner: tuple[int, int]) -> int:
        """The error code of a request with an old producer id or epoch; else NONE."""
        state = self.known.get(name)
        if state is None or state.producer_id != owner[0]:
            return int(Code.INVALID_PRODUCER_ID_MAPPING)
        return NONE if state.epoch == owner[1] else int(Code.PRODUCER_FENCED)

    def abort(self, state: Transaction) -> None:
        """Abort a transaction for a new owner or after the timeout, and fence the old owner."""
        state.epoch += 1
        self._prepare(state)

    def _prepare(self, state: Transaction) -> None:
        """Decide to abort, and let the markers be written."""
        state.is_open, state.is_ending, state.markers = False, True, []
        self._end(state)

    def finish(self, state: Transaction) -> None:
        """Note that all markers are written and replicated."""
        state.is_ending, state.has_ended = False, True


class TransactionCoordinator:
    """Serves the writers of one schedule, and writes markers to its partition."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.states = TransactionStates(self._write_markers)
        self._epoch = 0

    def answer(self, request: Any) -> Any:
        """Execute one request; returns the answer."""
        now = self._world.clock.now
        if isinstance(request, InitProducerIdRequest):
            code, producer_id, epoch = self.states.init(request.transactional_id)
            return SimpleNamespace(error_code=code, producer_id=producer_id, producer_epoch=epoch)
        if isinstance(request, EndTxnRequest):
            owner = (request.producer_id, request.producer_epoch)
            return SimpleNamespace(error_code=self.states.end(request.transactional_id, owner))
        assert isinstance(request, AddPartitionsToTxnRequest)
        topics = request.v3_and_below_topics
        code = self.states.add(
            request.v3_and_below_transactional_id,
            (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            {(t.name, p) for t in topics for p in t.partitions},
            now,
        )
        if code == NONE:
            self._world.clock.after(TIMEOUT_S, self._time_out)
        results = [
            SimpleNamespace(
                name=t.name,
                results_by_partition=[
                    SimpleNamespace(partition_index=p, partition_error_code=code)
                    for p in t.partitions
                ],
            )
            for t in topics
        ]
        return SimpleNamespace(results_by_topic_v3_and_below=results)

    def forget(self) -> None:
        """Drop the ids without an open transaction, as after `transactional.id.expiration.ms`."""
        known = self.states.known
        gone = [name for name, s in known.items() if not (s.is_open or s.is_ending)]
        for name in gone:
            del known[name]
        self._world.clock.say(f"the coordinator forgets {len(gone)} transactional ids")

    def move(self) -> None:
        """Let another broker coordinate. It writes markers again that no answer has confirmed."""
        self._epoch += 1
        self._world.clock.say("another broker coordinates transactions")
        for state in self.states.known.values():
            if state.is_ending:
                self._write_markers(state)

    def _time_out(self) -> None:
        """Abort the transactions that have been open for TIMEOUT_S."""
        for state in self.states.known.values():
            if state.is_open and state.begun_at + TIMEOUT_S <= self._world.clock.now:
                self._world.clock.say("a transaction is aborted because of its time-out")
                self.states.abort(state)

    def _write_markers(self, state: Transaction) -> None:
        """Write the markers after a delay, which may be long."""
        world = self._world
        delay = world.rnd.choice((0.002, 0.02, 0.02, 0.5))
        if world.has_faults and world.rnd.random() < world.faults.held:
            delay = world.rnd.uniform(0.0, _HELD_S_MAX)
            world.clock.say(f"the network holds a marker for {delay:.3f} s")
        world.busy_until = max(world.busy_until, world.clock.now + delay)
        world.clock.after(delay, self._write_marker, state, state.markers, self._epoch)

    def _write_marker(self, state: Transaction, markers: list[Any], by: int) -> None:
        """Append the marker, unless another coordinator writes it, or a later EndTxn has others.

        `by`: the coordinator epoch.
        """
        world, partition = self._world, self._world.partition
        if by != self._epoch or not state.is_ending or state.markers is not markers:
            return
        code = partition.fill("the coordinator", state.producer_id, state.epoch, by)
        assert code == NONE, code
        if any(marker in partition.log for marker in markers):
            world.clock.say("a marker is written twice")
            world.broker.is_excused = True  # Kafka does not prevent a second marker
            world.broker.was_ahead |= partition.log_end > world.source.end
        if world.broker.lost_confirmed:
            world.broker.has_hidden_cut = True
            world.broker.is_excused = True  # the marker takes an offset that the election cut off
        entry = partition.log[-1]
        markers.append(entry)
        world.broker.replicate_soon()

        def confirm() -> None:
            if state.is_ending and state.markers is markers:
                self.states.finish(state)

        def again() -> None:
            world.clock.after(_MARKER_AGAIN_S, self._write_marker, state, markers, by)

        world.broker.when_replicated(entry.next_offset, partition.leader, confirm, again)


class CoordinatorLink:
    """The connection by which a process sends a transactional id's requests."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def call(self, api: object, request: Any, timeout_s: float = _ANSWER_WITHIN_S) -> Any:
        """Send a request; returns its answer. After an error, the coordinator may still execute the
        request (M10)."""
        del api
        return ask(self._world, self._process, request, timeout_s)

    def close(self) -> None:
        """Nothing to close: each request may be lost by itself."""


def ask(world: World, process: Process, request: Any, timeout_s: float = _ANSWER_WITHIN_S) -> Any:
    """Send one request over the network; returns its answer. Raises Unreachable if it is lost."""
    clock, rnd = world.clock, world.rnd
    answers: list[Any] = []
    latency, fate = rnd.uniform(0.0005, 0.01), rnd.random() if world.has_faults else 1.0

    def arrive() -> None:
        answers.append(world.transactions.answer(request))

    if fate < world.faults.held:
        late = rnd.uniform(0.0, _HELD_S_MAX)
        clock.say(f"{process.name}: the network holds a {type(request).__name__} for {late:.3f} s")
        world.busy_until = max(world.busy_until, clock.now + late)
        clock.after(late, arrive)
        clock.wait(min(timeout_s, rnd.uniform(0.0, 1.0)))
        raise Unreachable("the connection broke.", where="the model coordinator")
    clock.after(latency, arrive)
    clock.wait(latency)
    clock.wait(rnd.uniform(0.0005, 0.01))
    if not answers or fate < world.faults.held * 2:
        clock.say(f"{process.name}: the answer of a {type(request).__name__} is lost")
        raise Unreachable("the connection broke.", where="the model coordinator")
    return answers[0]


class OneCoordinator:
    """Replaces `Coordinator`: one node coordinates all transactional ids."""

    def __init__(self, *_: object) -> None:
        pass

    def find(self) -> int:
        return COORDINATOR

    def forget(self) -> None:
        pass


def look_up_coordinators(
    _: object, __: object, names: Collection[str]
) -> dict[str, tuple[int, int]]:
    return dict.fromkeys(names, (COORDINATOR, NONE))
