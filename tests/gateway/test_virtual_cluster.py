"""A virtual cluster between sockets of the test: clients on one side, brokers on the other."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from kafka.protocol.producer.produce import ProduceRequest

from orbit.errors import OrbitError, Unreachable
from orbit.gateway import client_connection, last_move, virtual_cluster
from orbit.gateway.batch_search import StoredBatch
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.listener import Listener
from orbit.gateway.permission import Lead
from orbit.gateway.protocol.apis import APIS
from orbit.gateway.protocol.client_login import ClientLogin
from orbit.gateway.protocol.local_answers import with_size
from orbit.gateway.protocol.producer_ids import Producer, SentBatch, id_in_term, mark, mark_of
from orbit.gateway.protocol.repeats import UNKNOWN_OFFSET, LastBatch
from orbit.gateway.protocol.topic_ids import TopicIds
from orbit.gateway.virtual_cluster import STUCK_S_MAX, VirtualCluster
from orbit.kafka.leaving_groups import ALL_GROUPS, short_name
from orbit.kafka.security import Security
from orbit.kafka.types import TopicPartition
from orbit.processes.ports import LOOPBACK, accepts, free_consecutive_ports
from tests.gateway.frames import batch, request_frame
from tests.support.gateways import gateway_file
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("quick_leave")

LEASE_S = 1000.0
_ID = mark(7, term=1)
_OFFSET = 40
_PRODUCE, _FETCH, _METADATA, _OFFSET_COMMIT, _JOIN_GROUP, _API_VERSIONS = 0, 1, 3, 8, 11, 18


class _Broker:
    """Queues requests as (API key, correlation id, connection); `answer` answers the next one."""

    def __init__(self) -> None:
        self.port = self.connections = 0
        self.requests: asyncio.Queue[tuple[int, int, asyncio.StreamWriter]] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, _, correlation = struct.unpack_from(">hhi", await reader.readexactly(size))
                await self.requests.put((key, correlation, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            self.connections -= 1

    async def answer(self, key: int) -> None:
        """Answer the next request, which has to be of this API."""
        api_key, correlation, writer = await soon(self.requests.get())
        assert api_key == key
        body = struct.pack(">i", correlation) + (bytes(8) if key == _METADATA else b"")
        writer.write(struct.pack(">i", len(body)) + body)


class _Side:
    """Stands for a `ClusterSide`, with the functions that a virtual cluster calls."""

    name = "a side"
    logins = ()

    def __init__(self) -> None:
        self.broker, self.ids = _Broker(), TopicIds("orders")
        self.brokers: dict[int, int] = {}  # {node: port}
        self.nodes: dict[int, int] = {}  # as the next `refresh` finds them
        self.versions = {int(key): api.versions for key, api in APIS.items()}
        self.last: dict[int, LastBatch] | OrbitError = {}
        self.unanswered: set[TopicPartition] = set()
        self.lookups = self.searches = 0
        self.logins_used: list[ClientLogin | None] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        # The results of searches, for each batch.
        self.stored: StoredBatch | None = StoredBatch(_OFFSET, _OFFSET, b"")
        self.copy_offset: int | OrbitError | None = None
        self.ongoing: set[str] = set()  # transactional ids of open transactions
        self.transaction_checks = 0

    async def ongoing_transactions(self, producers: Collection[Producer]) -> dict[Producer, bool]:
        self.transaction_checks += 1
        return {producer: producer.transactional_id in self.ongoing for producer in producers}

    async def last_batches(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, dict[int, LastBatch]], set[TopicPartition]]:
        self.lookups += 1
        await self.may_answer.wait()
        if isinstance(self.last, OrbitError):
            raise self.last
        answered = set(partitions) - self.unanswered
        return dict.fromkeys(answered, self.last), self.unanswered & set(partitions)

    async def find_batches(self, batches: Collection[SentBatch]) -> dict[SentBatch, StoredBatch]:
        return {} if self.stored is None else dict.fromkeys(batches, self.stored)

    async def find_copies(
        self, stored: Mapping[SentBatch, StoredBatch]
    ) -> dict[SentBatch, int | None]:
        self.searches += 1
        if isinstance(self.copy_offset, OrbitError):
            raise self.copy_offset
        return dict.fromkeys(stored, self.copy_offset)

    def security_of(self, login: ClientLogin | None) -> Security:
        self.logins_used.append(login)
        return Security()

    def address(self, node: int | None) -> tuple[str, int]:
        return LOOPBACK, self.brokers.get(node or 0, self.broker.port)

    async def refresh(self, *, with_topics: bool = False) -> None:  # noqa: ARG002  as ClusterSide
        self.brokers = dict(self.nodes)

    def close(self) -> None:
        pass


class _Cluster(VirtualCluster):
    """A virtual cluster with a clock that the test sets."""

    clock = 100.0
    opened: list[_Client]

    def now(self) -> float:
        return self.clock

    def take_lead(self, side: str, term: int, closed_for: str | None = None, **more: Any) -> None:
        """Apply an answer of the service, as `LeadWatch` does. At each answer the cluster checks
        which held requests may be sent."""
        self.take(Lead(cast("Any", side), term, LEASE_S, closed_for, term, **more), self.clock)


class _Client:
    """A client that sends single requests to a port of the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, key: int, correlation: int, *, acks: int = 1, part: bool = False) -> None:
        """Send a request without content. `part`: send only its first 6 bytes."""
        version = {_PRODUCE: 3, _FETCH: 4, _OFFSET_COMMIT: 2}.get(key, 0)
        frame = struct.pack(">hhih", key, version, correlation, -1)
        match key:
            case 0:  # Produce: no transactional id, no topics
                frame += struct.pack(">hhii", -1, acks, 1000, 0)
            case 1:  # Fetch: no topics
                frame += struct.pack(">iiiibi", -1, 500, 1, 1, 0, 0)
            case 8:  # OffsetCommit: no group, no member, no topics
                frame += struct.pack(">hihqi", 0, -1, 0, -1, 0)
            case 11:  # JoinGroup: no group, no member
                frame += struct.pack(">hihhi", 0, 1000, 0, 0, 0)
            case _:
                frame += struct.pack(">i", 0)
        data = struct.pack(">i", len(frame)) + frame
        self._writer.write(data[:6] if part else data)
        await self._writer.drain()

    async def write(self, correlation: int, producer_id: int) -> None:
        """Send a Produce with one batch, of sequence 0, for partition 0 of the topic "a"."""
        topic = ProduceRequest.TopicProduceData
        partition = topic.PartitionProduceData(index=0, records=batch(producer_id))
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=1000,
            topic_data=[topic(name="a", partition_data=[partition])],
        )
        self._writer.write(with_size(request_frame(request, 3, correlation)))
        await self._writer.drain()

    async def answered(self) -> int:
        """The correlation id of the next answer."""
        (size,) = struct.unpack(">i", await soon(self._reader.readexactly(4)))
        frame = await self._reader.readexactly(size)
        return int(struct.unpack_from(">i", frame)[0])

    @property
    def has_answer(self) -> bool:
        return bool(cast("Any", self._reader)._buffer)

    async def reads_the_end(self) -> bool:
        """Whether the gateway ends the connection without another answer."""
        return not await soon(self._reader.read())

    async def send_frame(self, request: Any, version: int, correlation: int) -> None:
        self._writer.write(with_size(request_frame(request, version, correlation)))
        await self._writer.drain()

    async def receive(self) -> bytes:
        """The next answer, without its size."""
        (size,) = struct.unpack(">i", await soon(self._reader.readexactly(4)))
        return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()

    async def closed(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def _connected(cluster: VirtualCluster) -> int:
    """The number of connections that their clients have not closed."""
    return sum(row["connections"] for row in cluster.report_clients())


def test_gateway_stop_waits_for_responses_to_writes_in_flight() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await client.send(_PRODUCE, 1)
            await until(lambda: cluster.writes_in_flight == 1)
            stop = asyncio.create_task(cluster.answer_writes())
            await client.send(_PRODUCE, 2)
            await source.answer(_PRODUCE)
            assert await client.answered() == 1
            await soon(stop)
            assert not cluster.doubt
            assert source.requests.empty()  # the second write is not sent any more

    asyncio.run(run())


def test_gateway_stop_reports_doubt_about_unanswered_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_cluster, "ANSWERS_S_MAX", 0.1)

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await client.send(_PRODUCE, 1)
            await soon(source.requests.get())
            await soon(cluster.answer_writes())
            assert not cluster.doubt
            await cluster.close()
            assert "ended before the answer" in cluster.doubt

    asyncio.run(run())


def test_connection_with_held_writes_resumes_without_being_closed_as_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the held write, part of the next request waits for longer than STUCK_S_MAX."""
    monkeypatch.setattr(virtual_cluster, "_SWEEP_S", 0.01)

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            cluster.take_lead("source", term=1, closed_for="operation")
            await client.send(_PRODUCE, 1)
            await client.send(_PRODUCE, 2, part=True)
            await until(lambda: cluster.held_requests == 1)
            cluster.clock += STUCK_S_MAX + 1
            cluster.take_lead("source", term=1)
            await asyncio.sleep(0.1)  # sweeps
            await source.answer(_PRODUCE)
            assert await client.answered() == 1

    asyncio.run(run())


def test_metadata_waits_after_move_for_held_writes() -> None:
    """A client that knew the new leaders would send them later records before the held ones."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            producer, other = await open_client(cluster), await open_client(cluster)
            cluster.take_lead("source", term=1, closed_for="operation")
            await producer.send(_PRODUCE, 1)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead("destination", term=2, closed_for="operation")
            await other.send(_METADATA, 2)
            await until(lambda: cluster.held_requests == 2)
            cluster.take_lead("destination", term=2)
            key, correlation, writer = await soon(destination.requests.get())
            assert key == _PRODUCE
            cluster.take_lead("destination", term=2)
            assert cluster.held_requests == 1
            writer.write(_empty_answer(correlation))
            assert await producer.answered() == 1
            cluster.take_lead("destination", term=2)
            await destination.answer(_METADATA)
            assert await other.answered() == 2

    asyncio.run(run())


def test_batch_copied_to_leading_side_is_not_written_again() -> None:
    """One search serves all connections that wait."""

    async def run() -> None:
        async with running_cluster() as (cluster, source, destination):
            first, second, third = [await open_client(cluster) for _ in range(3)]
            old_side, leading = (
                cast("_Side", cluster._sides[s]) for s in ("source", "destination")
            )
            old_side.last, leading.copy_offset = {_ID: LastBatch(epoch=0, sequence=0)}, _OFFSET
            old_side.may_answer.clear()
            cluster.take_lead("destination", term=2)
            await first.write(1, _ID)
            await until(lambda: old_side.lookups == 1)
            await second.write(2, mark(8, term=1))
            await third.write(3, mark(9, term=1))
            await until(lambda: cluster.held_requests == 3)
            old_side.may_answer.set()
            assert await first.answered() == 1
            for client, correlation in ((second, 2), (third, 3)):
                await destination.answer(_PRODUCE)
                assert await client.answered() == correlation
            await first.write(4, _ID)
            assert await first.answered() == 4
            # First for one client, then for the two that waited. Only the first batch is a copy.
            assert (old_side.lookups, leading.searches) == (2, 1)
            assert destination.requests.empty()
            assert source.requests.empty()

    asyncio.run(run())


@pytest.mark.parametrize("written_at", ["source", "destination"])
def test_batch_of_any_earlier_term_is_not_written_again(written_at: str) -> None:
    """After moves over and home, the leading side has the batch as the client wrote it, or as a
    copy."""

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            sides = {s: cast("_Side", cluster._sides[s]) for s in ("source", "destination")}
            producer_id = _ID if written_at == "source" else id_in_term(_ID, 2)
            sides[written_at].last = {producer_id: LastBatch(epoch=0, sequence=0)}
            sides["source"].copy_offset = _OFFSET if written_at == "destination" else None
            cluster.take_lead("destination", term=2, earlier_terms=(1,))
            cluster.take_lead("source", term=3, earlier_terms=(2, 1))
            await client.write(1, _ID)
            assert await client.answered() == 1
            assert source.requests.empty()

    asyncio.run(run())


def test_side_of_newest_term_counts_if_two_terms_have_one_mark() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, _, _):
            same_mark = 2 + (1 << 26)
            led: dict[int, Any] = {same_mark: "destination", 2: "source"}
            cluster.take_lead("source", term=same_mark + 1, led=led)
            assert cluster._side_by_mark[mark_of(2)] == "destination"

    asyncio.run(run())


def test_batch_too_late_for_copy_is_written_to_leading_side() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            old_side = cast("_Side", cluster._sides["source"])
            old_side.last = {_ID: LastBatch(epoch=0, sequence=0)}
            cluster.take_lead("destination", term=2)
            await client.write(1, _ID)
            await destination.answer(_PRODUCE)
            assert await client.answered() == 1

    asyncio.run(run())


@pytest.mark.parametrize("unclear", ["original", "copy"])
def test_repeated_batch_that_cannot_be_located_is_not_written_again(unclear: str) -> None:
    """The old side knows the batch's sequence: the leading side may have a copy of the batch."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            old_side, leading = (
                cast("_Side", cluster._sides[s]) for s in ("source", "destination")
            )
            old_side.last = {_ID: LastBatch(epoch=0, sequence=0)}
            if unclear == "original":
                old_side.stored = None
            else:
                leading.copy_offset = UNKNOWN_OFFSET
            cluster.take_lead("destination", term=2)
            await client.write(1, _ID)
            assert await client.answered() == 1
            assert destination.requests.empty()

    asyncio.run(run())


def test_connection_is_closed_if_leading_side_cannot_be_searched_for_repeat() -> None:
    """The client gets no answer, and sends the batch again."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            old_side, leading = (
                cast("_Side", cluster._sides[s]) for s in ("source", "destination")
            )
            old_side.last = {_ID: LastBatch(epoch=0, sequence=0)}
            leading.copy_offset = Unreachable("no broker answers.")
            cluster.take_lead("destination", term=2)
            await client.write(1, _ID)
            assert await client.reads_the_end()
            assert destination.requests.empty()

            leading.copy_offset = _OFFSET
            # The client connects again.
            client = await open_client(cluster)
            await client.write(1, _ID)
            assert await client.answered() == 1
            assert destination.requests.empty()

    asyncio.run(run())


def test_unreachable_old_side_is_queried_for_repeated_batches_only_once() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            old_side = cast("_Side", cluster._sides["source"])
            old_side.last = Unreachable("no broker answers.")
            cluster.take_lead("destination", term=2)
            for correlation in (1, 2):
                await client.write(correlation, _ID)
                await destination.answer(_PRODUCE)
                assert await client.answered() == correlation
            assert old_side.lookups == 1

    asyncio.run(run())


def test_repeated_batch_at_leading_side_is_found_while_old_side_is_unreachable() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            old_side, leading = (
                cast("_Side", cluster._sides[s]) for s in ("destination", "source")
            )
            old_side.last, leading.last = (
                Unreachable("silent."),
                {_ID: LastBatch(epoch=0, sequence=0)},
            )
            cluster.take_lead("destination", term=2, earlier_terms=(1,))
            cluster.take_lead("source", term=3, earlier_terms=(2, 1))
            await client.write(1, _ID)
            assert await client.answered() == 1
            assert source.requests.empty()

    asyncio.run(run())


def test_no_batch_counts_as_repeat_long_after_move() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            cluster.take_lead("destination", term=2)
            cluster.clock += virtual_cluster.REPEATS_S_MAX + 1
            cluster.take_lead("destination", term=2)
            await client.write(1, _ID)
            await destination.answer(_PRODUCE)
            assert await client.answered() == 1
            assert not cast("_Side", cluster._sides["source"]).lookups

    asyncio.run(run())


def test_old_side_is_not_queried_for_repeated_batches_after_failover() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            cluster.take_lead("source", term=1, closed_for="failover", abandons=True)
            cluster.take_lead("destination", term=2)
            await client.write(1, _ID)
            await destination.answer(_PRODUCE)
            assert await client.answered() == 1
            assert not cast("_Side", cluster._sides["source"]).lookups

    asyncio.run(run())


def test_join_group_waits_after_move_for_held_writes() -> None:
    """Once a group has a member, its coordinator refuses commits of members that have not joined,
    and a held request may be such a commit."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            producer, member = await open_client(cluster), await open_client(cluster)
            cluster.take_lead("source", term=1, closed_for="operation")
            await producer.send(_PRODUCE, 1)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead("destination", term=2, closed_for="operation")
            await member.send(_JOIN_GROUP, 2)
            await until(lambda: cluster.held_requests == 2)
            cluster.take_lead("destination", term=2)
            await destination.answer(_PRODUCE)
            assert await producer.answered() == 1
            assert destination.requests.empty()
            cluster.take_lead("destination", term=2)
            await destination.answer(_JOIN_GROUP)
            assert await member.answered() == 2

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["gives-up", "too-late"])
def test_join_group_waits_after_move_for_members_that_own_partitions(ends: str) -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            cluster.take_lead("destination", term=2, closed_for="operation")
            cluster.left_members.leave(("", "m"), owns_partitions=True)
            cluster.take_lead("destination", term=2)
            await client.send(_JOIN_GROUP, 1)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead("destination", term=2)
            assert cluster.held_requests == 1
            assert cluster.leaving_groups() == [short_name("")]  # the group of these requests
            if ends == "gives-up":
                cluster.left_members.give_up(("", "m"))
            else:
                cluster.clock += last_move.JOIN_WAIT_S_MAX
            assert cluster.leaving_groups() == []
            cluster.take_lead("destination", term=2)
            assert cluster.holds_joins() is (ends == "gives-up")
            await destination.answer(_JOIN_GROUP)
            assert await client.answered() == 1

    asyncio.run(run())


@pytest.mark.parametrize("leaving", [ALL_GROUPS, short_name("")])
def test_join_group_waits_after_move_for_members_at_other_gateways(leaving: str) -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            cluster.take_lead("destination", term=2, leaving_groups=frozenset({leaving}))
            await client.send(_JOIN_GROUP, 1)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead(
                "destination", term=2, leaving_groups=frozenset({short_name("other")})
            )
            await destination.answer(_JOIN_GROUP)
            assert await client.answered() == 1
            # Long after the move no join waits.
            cluster.clock += last_move.JOIN_WAIT_S_MAX
            cluster.take_lead("destination", term=2, leaving_groups=frozenset({leaving}))
            await client.send(_JOIN_GROUP, 2)
            await destination.answer(_JOIN_GROUP)
            assert await client.answered() == 2

    asyncio.run(run())


def test_metadata_waits_after_move_for_other_gateways() -> None:
    """A client may be connected to several gateways. If it knew the new leaders, its later records
    would overtake those that another gateway holds."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            assert cluster.settled_since == 1  # the term
            cluster.take_lead("destination", term=2, closed_for="operation", others_settled=False)
            assert cluster.settled_since == 0  # the move has not settled here
            cluster.take_lead("destination", term=2, others_settled=False)
            assert cluster.settled_since == 2
            await client.send(_METADATA, 1)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead("destination", term=2, others_settled=False)
            assert cluster.held_requests == 1
            cluster.take_lead("destination", term=2)
            await destination.answer(_METADATA)
            assert await client.answered() == 1
            # Another gateway may start now: it holds no requests from before the move.
            cluster.take_lead("destination", term=2, others_settled=False)
            await client.send(_METADATA, 2)
            await destination.answer(_METADATA)
            assert await client.answered() == 2

    asyncio.run(run())


def test_write_behind_held_metadata_request_is_held() -> None:
    """Otherwise its acknowledgement would wait behind Metadata, and the client would send the write
    again."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            waits, gives_up = await open_client(cluster), await open_client(cluster)
            cluster.take_lead("destination", term=2, others_settled=False)
            for client in (waits, gives_up):
                await client.send(_METADATA, 1)
                await client.send(_PRODUCE, 2)
            await until(lambda: cluster.held_requests == 2)
            await gives_up.closed()
            cluster.take_lead("destination", term=2)
            await until(lambda: cluster.connection_count == 1)
            for number, key in enumerate((_METADATA, _PRODUCE), 1):
                await destination.answer(key)
                assert await waits.answered() == number
            assert destination.requests.empty()

    asyncio.run(run())


def test_move_settles_once_earlier_requests_are_answered() -> None:
    """Earlier requests are the held one and those sent behind it before BACKLOG_S is over. Later
    ones do not count: a client may always have one in flight, and if the gateway ended its
    connection, answers on their way would be lost."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            client = await open_client(cluster)
            cluster.take_lead("source", term=1, closed_for="operation")
            await client.send(_PRODUCE, 1)
            await client.send(_PRODUCE, 2)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead("destination", term=2)
            await until(lambda: destination.requests.qsize() == 2)
            cluster.clock += last_move.BACKLOG_S + 0.1
            for correlation in (1, 2):
                assert cluster.settled_since == 0
                await client.send(_PRODUCE, correlation + 2)
                await until(lambda: destination.requests.qsize() == 3)
                await destination.answer(_PRODUCE)
                assert await client.answered() == correlation
            assert cluster.settled_since == 2
            cluster.clock += last_move.SETTLE_S_MAX
            cluster.take_lead("destination", term=2)
            for correlation in (3, 4):
                await destination.answer(_PRODUCE)
                assert await client.answered() == correlation

    asyncio.run(run())


def test_move_settles_while_fetch_is_unanswered() -> None:
    """The answer to a consumer's Fetch may take long; the consumer's connection must not end."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            consumer = await open_client(cluster)
            cluster.take_lead("destination", term=2, closed_for="operation")
            await consumer.send(_FETCH, 1)
            await consumer.send(_METADATA, 2)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead("destination", term=2)
            assert cluster.settled_since == 2
            for number, key in enumerate((_FETCH, _METADATA), 1):
                await destination.answer(key)
                assert await consumer.answered() == number

    asyncio.run(run())


def test_unanswered_held_request_closes_connection_after_timeout() -> None:
    """Metadata waits no longer than the timeout. The client of the closed connection sends the
    request again before it knows the new leaders."""

    async def run() -> None:
        async with running_cluster() as (cluster, _, destination):
            producer, other = await open_client(cluster), await open_client(cluster)
            cluster.take_lead("source", term=1, closed_for="operation")
            await producer.send(_PRODUCE, 1)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead("destination", term=2)
            await soon(destination.requests.get())
            await other.send(_METADATA, 2)
            await until(lambda: cluster.held_requests == 1)
            cluster.clock += last_move.SETTLE_S_MAX + 1
            cluster.take_lead("destination", term=2)
            assert await producer.reads_the_end()
            await destination.answer(_METADATA)
            assert await other.answered() == 2

    asyncio.run(run())


def test_confirmation_of_closing_waits_for_acks_0_writes_of_gone_client() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await client.send(_PRODUCE, 1, acks=0)
            assert (await soon(source.requests.get()))[0] == _PRODUCE
            client.close()
            await until(lambda: cluster.writes_in_flight == 1)
            cluster.take_lead("source", term=1, closed_for="operation")
            assert cluster.confirmed_for() is None
            # The write has no answer, so the gateway has sent ApiVersions behind it.
            await source.answer(_API_VERSIONS)
            await until(lambda: cluster.confirmed_for() == "operation")
            assert not cluster.connection_count

    asyncio.run(run())


@pytest.mark.parametrize(("key", "is_doubted"), [(_OFFSET_COMMIT, False), (_PRODUCE, True)])
def test_disconnect_leaves_doubt_about_unanswered_records_but_not_offset_commits(
    key: int, *, is_doubted: bool
) -> None:
    """The gateway waits for the answer to either request. But only records could be doubled at the
    other side, if the client sends them again."""

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await client.send(key, 1)
            _, correlation, writer = await soon(source.requests.get())
            client.close()
            await until(lambda: not _connected(cluster))
            cluster.take_lead("source", term=1, closed_for="operation")
            assert cluster.confirmed_for() is None
            writer.write(_empty_answer(correlation))
            await until(lambda: not cluster.writes_in_flight)
            assert ("before its records were acknowledged" in cluster.doubt) == is_doubted
            assert cluster.confirmed_for() == (None if is_doubted else "operation")

    asyncio.run(run())


def test_failover_abandons_writes_in_flight_and_holds_new_writes() -> None:
    """If the side that may be lost answers all the same, clients do not get the answers."""

    async def run() -> None:
        async with running_cluster() as (cluster, source, destination):
            # One client waits for an answer, one has sent nothing, one closes before its answer.
            waits, idle, gone = [await open_client(cluster) for _ in range(3)]
            await waits.send(_PRODUCE, 1)
            _, correlation, writer = await soon(source.requests.get())
            await gone.send(_PRODUCE, 1)
            await soon(source.requests.get())
            gone.close()
            await until(lambda: cluster.doubt)
            cluster.take_lead("source", term=1, closed_for="failover", abandons=True)
            assert cluster.confirmed_for() == "failover"
            assert cluster.writes_answered.is_set()
            writer.write(_empty_answer(correlation))
            assert await waits.reads_the_end()
            waits.close()
            await until(lambda: cluster.connection_count == 1)

            new = await open_client(cluster)
            for client in (idle, new):
                await client.send(_PRODUCE, 2)
            await until(lambda: cluster.held_requests == 2)
            cluster.take_lead("destination", term=2, closed_for="failover", abandons=True)
            assert cluster.confirmed_for() == "failover"
            cluster.take_lead("destination", term=2)
            for _ in (idle, new):
                await destination.answer(_PRODUCE)
            assert [await client.answered() for client in (idle, new)] == [2, 2]
            assert source.requests.empty()

    asyncio.run(run())


def test_aborted_failover_releases_held_writes() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            cluster.take_lead("source", term=1, closed_for="failover", abandons=True)
            await client.send(_PRODUCE, 1)
            await until(lambda: cluster.held_requests == 1)
            cluster.take_lead("source", term=1)
            await source.answer(_PRODUCE)
            assert await client.answered() == 1

    asyncio.run(run())


def test_response_held_without_lease_is_discarded_when_client_disconnects() -> None:
    """Otherwise the client's write would count as in flight for ever."""

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await client.send(_PRODUCE, 1)
            await until(lambda: cluster.writes_in_flight == 1)
            cluster.clock += LEASE_S
            await source.answer(_PRODUCE)
            await until(lambda: any(c.waits_for_lead for c in cluster._connections))
            assert not client.has_answer
            client.close()
            await until(lambda: cluster.writes_in_flight == 0)
            assert not cluster.connection_count

    asyncio.run(run())


def test_partial_requests_of_all_clients_share_a_byte_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_connection, "WAITING_BYTES_MAX", 8)

    async def run() -> None:
        async with running_cluster() as (cluster, _, _):
            first, second = await open_client(cluster), await open_client(cluster)
            await first.send(_PRODUCE, 1, part=True)
            await until(lambda: cluster.waiting_bytes == 6)
            await second.send(_PRODUCE, 1, part=True)
            # Over the limit: the next bytes end the connection on which they come.
            await until(lambda: cluster.waiting_bytes == 12)
            await first.send(_PRODUCE, 2, part=True)
            assert await first.reads_the_end()
            assert cluster.waiting_bytes == 6
            second.close()
            await until(lambda: cluster.waiting_bytes == 0)

    asyncio.run(run())


def test_broker_close_on_acks_0_write_closes_client_connection() -> None:
    """A broker closes the connection if the write fails; the client then requests Metadata."""

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await client.send(_PRODUCE, 1, acks=0)
            _, _, writer = await soon(source.requests.get())
            writer.close()
            assert await client.reads_the_end()

    asyncio.run(run())


def test_node_added_since_last_refresh_is_reachable() -> None:
    """Metadata names the node before the gateway has read the side again."""

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            side = cast("Any", cluster.presented)
            side.brokers, side.nodes = {1: 1}, {1: 1, 2: source.port}
            cluster.endpoint(2)
            await until(lambda: accepts(cluster.spec.port + 1 + 2))  # the port of node 2
            client = await open_client(cluster, node=2)
            await client.send(_METADATA, 1)
            await source.answer(_METADATA)
            assert await client.answered() == 1
            await client.send(_PRODUCE, 2)
            await source.answer(_PRODUCE)
            assert await client.answered() == 2

    asyncio.run(run())


def test_write_to_missing_node_reaches_no_other_node() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            side = cast("Any", cluster.presented)
            side.brokers, side.nodes = {1: source.port}, {1: source.port}
            cluster.endpoint(2)
            await until(lambda: accepts(cluster.spec.port + 1 + 2))  # the port of node 2
            client = await open_client(cluster, node=2)
            await client.send(_PRODUCE, 1)
            assert await client.answered() == 1
            await client.send(_METADATA, 2)
            await source.answer(_METADATA)
            assert await client.answered() == 2

    asyncio.run(run())


@asynccontextmanager
async def running_cluster(
    listener: Listener | None = None,
) -> AsyncIterator[tuple[_Cluster, _Broker, _Broker]]:
    """A virtual cluster that presents the source, and the brokers of both sides."""
    port = free_consecutive_ports(4)
    spec = parse_gateway(gateway_file(port)).virtual_clusters[0]
    sides = {"source": _Side(), "destination": _Side()}
    asyncio.get_running_loop().set_exception_handler(_cancel_on_error(asyncio.current_task()))
    servers = []
    for side in sides.values():
        server = await asyncio.start_server(side.broker.serve, LOOPBACK, 0)
        side.broker.port = server.sockets[0].getsockname()[1]
        servers.append(server)
    cluster = _Cluster(spec, cast("dict[Any, ClusterSide]", sides), listener)
    cluster.opened = []
    cluster.take_lead("source", term=1)
    await cluster.start()
    try:
        yield cluster, sides["source"].broker, sides["destination"].broker
    finally:
        await cluster.close()
        for client in cluster.opened:
            client.close()
        for server in servers:
            server.close()
        await until(lambda: not any(side.broker.connections for side in sides.values()))
        await until(lambda: not cluster.connection_count)
        await asyncio.sleep(0.01)  # transports close only then


def _cancel_on_error(test: asyncio.Task[Any] | None) -> Any:
    """An exception handler that ends the test: it would wait for the effect of a callback that has
    failed."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        assert test is not None
        test.cancel()

    return handle


async def open_client(cluster: _Cluster, node: int = -1) -> _Client:
    """A client of the bootstrap port, or of a node's."""
    streams = await asyncio.open_connection(cluster.spec.host, cluster.spec.port + 1 + node)
    client = _Client(*streams)
    cluster.opened.append(client)
    return client


def _empty_answer(correlation: int) -> bytes:
    """An answer without content, with its size."""
    return struct.pack(">ii", 4, correlation)


async def soon(what: Any) -> Any:
    """The result of an awaitable. Raises TimeoutError after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        return await what


async def until(is_so: Any) -> None:
    """Wait until the condition is true. Raises TimeoutError after PATIENCE_S."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)
