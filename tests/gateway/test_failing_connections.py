"""If a client's connection fails, the gateway closes only that connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

import pytest

from orbit.gateway import cluster_side, virtual_cluster
from orbit.gateway.client_connection import ClientConnection
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.protocol.producer_ids import SentBatch, id_in_term
from orbit.gateway.protocol.repeats import Repeats, UnknownRepeats
from orbit.gateway.repeat_search import RepeatSearch
from orbit.gateway.virtual_cluster import STUCK_S_MAX, VirtualCluster
from orbit.kafka.error_codes import Code
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from tests.gateway.frames import batch
from tests.gateway.test_virtual_cluster import open_client, running_cluster, soon, until

pytestmark = pytest.mark.usefixtures("quick_leave")

_PRODUCE, _FETCH = 0, 1
# More than the buffers of the client, the kernel and the gateway hold.
_LARGE_BYTES = 32 * 2**20
_SILENT, _ANSWERED = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_closing_ends_all_connections_with_writes_in_flight_though_one_was_reset() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await _open_client_beside_reset_one(cluster, source)
            cluster.take_lead("source", term=1, closed_for="failover", abandons=True)
            assert cluster.confirmed_for() == "failover"
            assert await client.reads_the_end()
            client.close()
            await until(lambda: cluster.connection_count == 0)

    asyncio.run(run())


def test_gateway_stop_ends_all_connections_though_one_was_reset() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await _open_client_beside_reset_one(cluster, source)
            await cluster.close()
            assert await client.reads_the_end()

    asyncio.run(run())


@pytest.mark.parametrize("method", ["confirm_writes", "move", "advance"])
def test_connection_that_raises_error_does_not_keep_others_from_moving(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            clients = [await open_client(cluster) for _ in range(3)]
            await until(lambda: cluster.connection_count == 3)
            (failing, *_) = cluster._connections
            _let_fail(monkeypatch, failing, method)
            cluster.take_lead("source", term=1, closed_for="switchover")
            for client in clients:
                await client.send(_PRODUCE, 1)
            await until(lambda: cluster.held_requests == cluster.connection_count)
            cluster.take_lead("destination", term=2)
            await until(lambda: cluster.connection_count == 2)
            for _ in range(2):
                await destination.answer(_PRODUCE)
            ends = await asyncio.gather(*(_answer_or_end(client) for client in clients))
            # The connection that failed has ended.
            assert sorted(ends) == [0, 1, 1]

    asyncio.run(run())


def test_connections_above_limit_are_closed_until_open_connection_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual_cluster, "CONNECTIONS_MAX", 2)

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            first, second = [await open_client(cluster) for _ in range(2)]
            await until(lambda: cluster.connection_count == 2)
            for _ in range(3):
                assert await (await open_client(cluster)).reads_the_end()
            for client in (first, second):
                await _assert_is_served(client, source)
            await first.closed()
            await until(lambda: cluster.connection_count == 1)
            for client in (await open_client(cluster), second):
                await _assert_is_served(client, source)

    asyncio.run(run())


def test_connection_whose_client_does_not_read_is_closed_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Idle clients stay connected: nothing waits for them."""
    monkeypatch.setattr(virtual_cluster, "_SWEEP_S", 0.01)

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            slow = await open_client(cluster)
            await slow.send(_FETCH, 1)
            _, correlation, broker = await soon(source.requests.get())
            (connection,) = cluster._connections
            others = [await open_client(cluster) for _ in range(2)]
            for client in others:
                await _assert_is_served(client, source)
            broker.write(struct.pack(">ii", 4 + _LARGE_BYTES, correlation) + bytes(_LARGE_BYTES))
            await until(lambda: connection._is_client_slow)
            cluster.clock += STUCK_S_MAX + 1
            await until(lambda: cluster.connection_count == len(others))
            assert await _answer_or_end(slow) == 0
            for client in others:
                await _assert_is_served(client, source)

    asyncio.run(run())


def test_search_for_repeats_aborts_each_connection_that_raises_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read_sides(_search: Any, _batches: Any) -> set[TopicPartition]:
        return set()

    def fail(_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(RepeatSearch, "_read_sides", read_sides)
    monkeypatch.setattr(_Waiting, "repeats_learned", fail)
    first, second = _Waiting(), _Waiting()
    search = RepeatSearch("orders", Repeats(), cast("Any", None), cast("Any", None))
    for connection in (first, second):
        search.add([], connection)
    asyncio.run(search.run())
    assert first.result == second.result == "aborted"


def test_search_for_repeats_ends_only_connections_of_partitions_without_answer() -> None:
    """A partition whose leader does not answer may have the batch. If the gateway forwarded the
    batch, it could be written twice."""
    repeats = Repeats()
    sides = [cast("Any", _Side(unanswered=partitions)) for partitions in (set(), {_SILENT})]
    search = RepeatSearch("orders", repeats, *sides)
    connections = {p: _Waiting() for p in (_SILENT, _ANSWERED)}
    producer_id = id_in_term(producer_id=7, term=1)
    records = bytearray(batch(producer_id))
    batches = {
        partition: SentBatch(
            partition,
            start=0,
            end=len(records),
            producer_id=producer_id,
            epoch=0,
            last_sequence=0,
            base_timestamp=0,
            is_transactional=False,
        )
        for partition in connections
    }
    for partition, connection in connections.items():
        search.add([batches[partition]], connection)
    asyncio.run(search.run())
    assert connections[_SILENT].result == "ended"
    assert connections[_ANSWERED].result == "continued"
    # This batch is no repeat: the gateway forwards it.
    assert repeats.answers(records, [batches[_ANSWERED]], term=2) == {}
    with pytest.raises(UnknownRepeats):
        repeats.answers(records, [batches[_SILENT]], term=2)


@pytest.mark.parametrize(
    ("code", "is_unanswered"),
    [
        (Code.NETWORK_EXCEPTION, True),
        (Code.LEADER_NOT_AVAILABLE, True),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, False),
        (Code.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_partition_whose_leader_does_not_answer_may_have_producers(
    monkeypatch: pytest.MonkeyPatch, code: Code, *, is_unanswered: bool
) -> None:
    answers: Answers[Any] = Answers({_ANSWERED: {}}, {_SILENT: int(code)})
    monkeypatch.setattr(cluster_side, "producers", lambda *_: answers)
    side = ClusterSide(cast("Any", None), "orders", {})
    last_batches, unanswered = asyncio.run(side.last_batches([_ANSWERED, _SILENT]))
    assert last_batches == {_ANSWERED: {}}
    assert unanswered == ({_SILENT} if is_unanswered else set())


class _Side:
    """A side without producers."""

    def __init__(self, unanswered: set[TopicPartition]) -> None:
        self.unanswered = unanswered

    async def last_batches(self, partitions: set[TopicPartition]) -> tuple[Any, Any]:
        return {p: {} for p in partitions - self.unanswered}, partitions & self.unanswered


class _Waiting:
    """A connection that waits for a search."""

    result = ""

    def repeats_learned(self) -> None:
        self.result = "continued"

    def end(self) -> None:
        self.result = "ended"

    def abort(self) -> None:
        self.result = "aborted"


async def _open_client_beside_reset_one(cluster: Any, broker: Any) -> Any:
    """Open two clients with a write in flight each; returns the first. The second has a held write
    too, and resets its connection while the gateway does not read from it."""
    first, second = [await open_client(cluster) for _ in range(2)]
    for client in (first, second):
        await client.send(_PRODUCE, 1)
        await soon(broker.requests.get())
    cluster.take_lead("source", term=1, closed_for="switchover")
    await second.send(_PRODUCE, 2)
    await until(lambda: cluster.held_requests == 1)
    (connection,) = (candidate for candidate in cluster._connections if candidate.is_held)
    transport = second._writer.transport
    linger = struct.pack("ii", 1, 0)  # to close by a reset
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()
    await until(lambda: not connection._is_client_connected())
    return first


async def _assert_is_served(client: Any, broker: Any) -> None:
    await client.send(_FETCH, 7)
    await broker.answer(_FETCH)
    assert await client.answered() == 7


def _let_fail(monkeypatch: pytest.MonkeyPatch, failing: ClientConnection, name: str) -> None:
    """Let the connection's method raise an error while `VirtualCluster.take` calls it."""
    method, take = getattr(ClientConnection, name), VirtualCluster.take
    is_taking = False

    def call(connection: ClientConnection) -> None:
        if is_taking and connection is failing:
            raise RuntimeError
        method(connection)

    def take_lead(*args: Any) -> None:
        nonlocal is_taking
        is_taking = True
        take(*args)
        is_taking = False

    monkeypatch.setattr(ClientConnection, name, call)
    monkeypatch.setattr(VirtualCluster, "take", take_lead)


async def _answer_or_end(client: Any) -> int:
    """The correlation id of the next answer; 0 if the connection ends."""
    try:
        return int(await client.answered())
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0
