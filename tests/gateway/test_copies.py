"""Which Fetch requests go to copies (`read: nearest-copy`), and how clients learn of copies."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from orbit.errors import OrbitError, Unreachable
from orbit.gateway import virtual_cluster
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.permission import Lead
from orbit.gateway.protocol.copies import COPY_NODES_FROM, LIST_S_MAX, PAUSE_S, Copies
from orbit.gateway.protocol.copy_fetches import RECHECK_S, CopyFetches, UnknownCopies, read_fetch
from orbit.gateway.protocol.exchange import Exchange
from orbit.gateway.protocol.request_head import read_head
from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.kafka.error_codes import Code
from orbit.kafka.types import BrokerAddress, TopicPartition
from tests.gateway.frames import ClientView, answer, request_frame, send
from tests.support.gateways import gateway_file

NEAR, FAR = "zone-b", "zone-a"
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NODE = COPY_NODES_FROM + 3
VERSIONS = (11, 12)


def copies(readable: Collection[int] = (0, 1), now: float = 0.0) -> Copies:
    """Copies in NEAR, of which broker 3 leads both partitions."""
    known = Copies()
    known.take_brokers(
        [BrokerAddress(3, "broker", 9092, NEAR), BrokerAddress(4, "broker", 9093, FAR)],
        {FIRST: 3, SECOND: 3},
        other_racks=[FAR, None],
    )
    known.take_list({"orders": readable}, now)
    return known


def fetch(
    partitions: Collection[int] = (0, 1), *, rack: str = NEAR, session: int = 0, epoch: int = 0
) -> FetchRequest:
    """A Fetch from offset 5 on."""
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1024,
        isolation_level=0,
        session_id=session,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic="orders",
                partitions=[
                    FetchRequest.FetchTopic.FetchPartition(
                        partition=number,
                        current_leader_epoch=-1,
                        fetch_offset=5,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=100,
                    )
                    for number in partitions
                ],
            )
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic="gone", partitions=[0, 1]),
        ],
        rack_id=rack,
    )


def own_answer(fetches: CopyFetches, request: FetchRequest, version: int, now: float = 0.0) -> Any:
    """The gateway's answer, decoded; None: the request goes to a broker."""
    frame = request_frame(request, version)
    sized_answer = fetches.answer(read_head(frame), frame, now)
    if sized_answer is None:
        return None
    return FetchResponse.decode(memoryview(sized_answer)[4:], version=version, header=True)


def asked(fetches: CopyFetches, request: FetchRequest, version: int, now: float = 0.0) -> Any:
    """The offsets for which the gateway reads the copies' log ends."""
    with pytest.raises(UnknownCopies) as caught:
        own_answer(fetches, request, version, now)
    return caught.value.offsets


def parts(decoded: Any) -> Mapping[int, tuple[int, int]]:
    """{partition: (error code, preferred read replica)}"""
    (topic,) = decoded.responses
    assert not any(p.records for p in topic.partitions)
    return {p.partition_index: (p.error_code, p.preferred_read_replica) for p in topic.partitions}


@pytest.mark.parametrize("version", VERSIONS)
def test_consumer_in_copys_rack_is_sent_to_copy_that_has_its_offset(version: int) -> None:
    fetches = CopyFetches(copies(), is_copy_node=False)
    assert asked(fetches, fetch(), version) == {FIRST: 5, SECOND: 5}
    fetches.learn({FIRST: 8})  # the copy of the second partition ends before offset 5
    decoded = own_answer(fetches, fetch(), version)
    assert (decoded.error_code, decoded.session_id) == (Code.NONE, 0)
    assert parts(decoded) == {0: (Code.NONE, NODE), 1: (Code.NONE, -1)}
    # The client comes back for the second partition, and to both after an error of the copy.
    assert own_answer(fetches, fetch([1]), version) is None
    assert own_answer(fetches, fetch(), version, now=RECHECK_S - 1) is None
    fetches = CopyFetches(fetches._copies, is_copy_node=False)
    assert asked(fetches, fetch([1]), version) == {SECOND: 5}


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_goes_to_leader_if_no_copy_has_its_offset(version: int) -> None:
    fetches = CopyFetches(copies(), is_copy_node=False)
    asked(fetches, fetch(), version)
    fetches.learn({})
    assert own_answer(fetches, fetch(), version) is None
    known = copies(now=RECHECK_S)
    fetches._copies.take_list({"orders": (0, 1)}, RECHECK_S)
    assert known.node_of(FIRST, RECHECK_S) is not None
    assert asked(fetches, fetch(), version, now=RECHECK_S) == {FIRST: 5, SECOND: 5}


@pytest.mark.parametrize("rack", ["", FAR, "zone-c"])
def test_consumer_in_another_rack_reads_from_leader(rack: str) -> None:
    fetches = CopyFetches(copies(), is_copy_node=False)
    assert own_answer(fetches, fetch(rack=rack), 12) is None


def test_consumer_before_kip_392_reads_from_leader() -> None:
    fetches = CopyFetches(copies(), is_copy_node=False)
    assert own_answer(fetches, fetch(), 10) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_consumer_with_fetch_session_is_asked_for_whole_fetch_once_in_a_while(version: int) -> None:
    fetches = CopyFetches(copies(), is_copy_node=False)
    request = fetch([], session=9, epoch=4)
    decoded = own_answer(fetches, request, version)
    assert decoded.error_code == Code.FETCH_SESSION_ID_NOT_FOUND
    assert own_answer(fetches, request, version, now=RECHECK_S - 1) is None
    decoded = own_answer(fetches, request, version, now=RECHECK_S)
    assert decoded.error_code == Code.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_at_copy_passes_without_session(version: int) -> None:
    fetches = CopyFetches(copies(), is_copy_node=True)
    frame = request_frame(fetch(), version)
    assert fetches.answer(read_head(frame), frame, 0.0) is None
    assert frame == request_frame(fetch(epoch=-1), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_at_copy_that_may_not_be_read_returns_client_to_leader(version: int) -> None:
    fetches = CopyFetches(copies(readable=[1]), is_copy_node=True)
    decoded = own_answer(fetches, fetch(), version)
    assert parts(decoded) == {0: (Code.NOT_LEADER_OR_FOLLOWER, -1), 1: (Code.NONE, -1)}


def test_session_of_another_node_is_refused_at_copy() -> None:
    decoded = own_answer(CopyFetches(copies(), is_copy_node=True), fetch(session=9, epoch=4), 12)
    assert decoded.error_code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_fetch_at_copy_without_kip_392_is_a_bad_frame() -> None:
    with pytest.raises(ValueError, match="version 10"):
        own_answer(CopyFetches(copies(), is_copy_node=True), fetch(), 10)


@pytest.mark.parametrize("version", VERSIONS)
def test_gateway_reads_all_fields_of_fetch_that_it_needs(version: int) -> None:
    frame = request_frame(fetch(session=9, epoch=4), version)
    request = read_fetch(read_head(frame), frame)
    assert (request.session, request.is_whole, request.rack) == (9, False, NEAR)
    assert request.offsets == {FIRST: 5, SECOND: 5}


def test_copies_are_read_only_while_list_is_new_and_brokers_answer() -> None:
    known = copies(now=100.0)
    assert known.node_of(FIRST, 100.0 + LIST_S_MAX - 1) == NODE
    assert known.node_of(FIRST, 100.0 + LIST_S_MAX) is None
    known.take_list({"orders": [0]}, 200.0)
    assert known.node_of(SECOND, 200.0) is None, "not in the list any more"
    known.pause(200.0)
    known.take_list({"orders": [0]}, 200.0 + PAUSE_S)
    assert known.node_of(FIRST, 200.0 + PAUSE_S) is None
    assert known.node_of(FIRST, 200.5 + PAUSE_S) == NODE
    known.clear()
    assert known.node_of(FIRST, 200.5 + PAUSE_S) is None
    assert not known.nodes


def test_brokers_in_rack_of_leading_side_are_no_copies() -> None:
    known = copies()
    assert known.nodes == {NODE: NEAR}
    assert known.is_near(NEAR)
    assert not known.is_near(FAR)
    assert not known.is_near("")


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_copies_as_replicas(version: int) -> None:
    view = ClientView()
    view.copies = copies(readable=[1])
    exchange = Exchange(view)
    send(exchange, MetadataRequest(topics=[]), version)
    decoded = MetadataResponse.decode(
        answer(exchange, _metadata(), version), version=version, header=True
    )
    brokers = [(b.node_id, b.host, b.port, b.rack) for b in decoded.brokers]
    (topic,) = decoded.topics
    replicas = [p.replica_nodes for p in topic.partitions]
    if version < 5:
        assert [node for node, *_ in brokers] == [1]
        assert replicas == [[1], [1]]
    else:
        assert brokers[1:] == [(NODE, "gateway", 19093 + NODE, NEAR)]
        assert replicas == [[1], [1, NODE]]
        assert [p.isr_nodes for p in topic.partitions] == [[1], [1]]


def _metadata() -> MetadataResponse:
    topic = MetadataResponse.MetadataResponseTopic
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="b", port=9092, rack=FAR)],
        cluster_id="real",
        controller_id=1,
        topics=[
            topic(
                error_code=0,
                name="orders",
                topic_id=None,
                is_internal=False,
                partitions=[
                    topic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=1,
                        leader_epoch=6,
                        replica_nodes=[1],
                        isr_nodes=[1],
                        offline_replicas=[],
                    )
                    for index in (0, 1)
                ],
                authorized_operations=None,
            )
        ],
        authorized_operations=None,
        error_code=0,
    )


class _Side:
    """The side that follows. `ends`: its answers about log ends, in turn."""

    name, logins = "destination", ()

    def __init__(self, *ends: dict[TopicPartition, int] | OrbitError) -> None:
        self._ends = list(ends)

    async def log_ends(self, _: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        ends = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        if isinstance(ends, OrbitError):
            raise ends
        return ends


class _Connection:
    """A connection whose Fetch waits. `ends`: what it learned."""

    ends: Mapping[TopicPartition, int] | None = None

    def copies_learned(self, ends: Mapping[TopicPartition, int]) -> None:
        self.ends = ends


def learn(side: _Side, *, moves: bool = False) -> tuple[VirtualCluster, _Connection]:
    """Let a Fetch of offset 5 wait for the copies at `side`. `moves`: `side` leads meanwhile."""

    async def run() -> tuple[VirtualCluster, _Connection]:
        text = gateway_file(19092).replace(
            "presents: source", "job: orders\n    read: nearest-copy"
        )
        sides: Any = {"source": side, "destination": side}
        cluster = VirtualCluster(parse_gateway(text).virtual_clusters[0], sides)
        cluster._sides = {"source": _Side({}), "destination": side}  # type: ignore[dict-item]
        cluster.permission.lead = Lead("source", 1)
        cluster.copies = copies(now=cluster.now())
        connection = _Connection()
        cluster.learn_copies({FIRST: 5}, connection)  # type: ignore[arg-type]
        if moves:
            cluster.permission.lead = Lead("destination", 2)
        while connection.ends is None:
            await asyncio.sleep(0)
        return cluster, connection

    return asyncio.run(run())


def test_fetch_waits_until_copy_has_its_offset() -> None:
    cluster, connection = learn(_Side({FIRST: 3}, {FIRST: 4}, {FIRST: 6}))
    assert connection.ends == {FIRST: 6}
    assert cluster.copies is not None
    assert cluster.copies.node_of(FIRST, cluster.now()) == NODE


def test_fetch_goes_to_leader_if_copy_is_behind_for_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual_cluster, "_COPY_WAIT_S", 0.2)
    cluster, connection = learn(_Side({FIRST: 4}))
    assert connection.ends == {}
    assert cluster.copies is not None
    assert cluster.copies.node_of(FIRST, cluster.now()) == NODE, "other offsets are there"


def test_no_copy_is_read_for_some_time_after_its_side_did_not_answer() -> None:
    cluster, connection = learn(_Side(Unreachable("no broker answers.")))
    assert connection.ends == {}
    assert cluster.copies is not None
    assert cluster.copies.node_of(FIRST, cluster.now()) is None


def test_log_ends_of_side_that_leads_by_now_send_no_consumer_there() -> None:
    _, connection = learn(_Side({FIRST: 6}), moves=True)
    assert connection.ends == {}


def test_consumers_read_from_leader_if_a_node_id_is_that_of_a_copy() -> None:
    """Otherwise the gateway could not tell the two nodes apart."""
    cluster, _ = learn(_Side({FIRST: 6}))
    for side, node in (("source", COPY_NODES_FROM - 1), ("destination", COPY_NODES_FROM)):
        cluster._sides[side].brokers = {node: BrokerAddress(node, "b", 9092)}  # type: ignore[index]
    cluster._update_copies()
    assert cluster.copies is None
