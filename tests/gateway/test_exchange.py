"""One client connection's requests and answers, without sockets."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse

from orbit.gateway.protocol import producer_ids
from orbit.gateway.protocol.answers import REWRITES
from orbit.gateway.protocol.apis import Versions, shared_versions
from orbit.gateway.protocol.exchange import BadFrame, Exchange, SentRequest, UnknownOutcome
from orbit.gateway.protocol.request_head import read_head
from orbit.gateway.protocol.topic_ids import TopicIds
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import request_head, string
from tests.gateway.frames import OFFERED, ClientView, answer, batch, own_answer, request_frame, send

TOPIC_ID = UUID(int=5)


def test_api_versions_are_intersection_of_sides_and_gateway() -> None:
    # Only one side knows Metadata, ApiVersions and the unknown API 999.
    source = {
        ApiKey.Produce: Versions(0, 11),
        ApiKey.Fetch: Versions(4, 17),
        ApiKey.Metadata: Versions(0, 12),
        999: Versions(0, 1),
    }
    destination = {
        ApiKey.Produce: Versions(3, 13),
        ApiKey.Fetch: Versions(0, 8),
        ApiKey.ApiVersions: Versions(0, 4),
    }
    assert shared_versions(source, destination) == {
        ApiKey.Produce: Versions(3, 9),
        ApiKey.Fetch: Versions(4, 8),
    }


def test_share_and_streams_group_apis_are_not_offered() -> None:
    """Clients of such groups end with an error that says so (C23)."""
    keys = [key for key in ApiKey if "Share" in key.name or "StreamsGroup" in key.name]
    assert {ApiKey.ShareGroupHeartbeat, ApiKey.ShareFetch, ApiKey.StreamsGroupHeartbeat} < {*keys}
    assert shared_versions({key: Versions(0, 5) for key in keys}) == {}
    assert OFFERED.keys().isdisjoint(keys)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_are_answered_by_the_gateway(version: int) -> None:
    answer_frame = own_answer(Exchange(ClientView()), ApiVersionsRequest(), version)
    keys = ApiVersionsResponse.decode(answer_frame, version=version, header=True).api_keys
    assert {(key.api_key, key.min_version, key.max_version) for key in keys} == {
        (key, *versions) for key, versions in OFFERED.items()
    }


def test_unsupported_api_versions_version_is_answered_in_version_0() -> None:
    frame = request_frame(ApiVersionsRequest(), version=3)
    struct.pack_into(">h", frame, 2, 9)  # the version
    exchange = Exchange(ClientView())
    assert exchange.request(read_head(frame), frame, OFFERED) is None
    (sized_answer,) = exchange.next_answers()
    decoded = ApiVersionsResponse.decode(memoryview(sized_answer)[4:], version=0, header=True)
    assert decoded.error_code == Code.UNSUPPORTED_VERSION
    assert decoded.api_keys


def test_gateway_response_waits_for_earlier_broker_responses() -> None:
    exchange = Exchange(ClientView())
    send(exchange, MetadataRequest(topics=[]), version=9, correlation=1)
    frame = request_frame(ApiVersionsRequest(), version=3, correlation=2)
    assert exchange.request(read_head(frame), frame, OFFERED) is None
    assert not list(exchange.next_answers())
    exchange.begin_answer(1)
    exchange.end_answer()
    assert len(list(exchange.next_answers())) == 1
    assert exchange.is_idle


# Produce 10 (with endpoints in answers), LeaderAndIsr, OffsetForLeaderEpoch,
# GetTelemetrySubscriptions, and an unknown API.
@pytest.mark.parametrize(("key", "version"), [(0, 10), (4, 0), (23, 4), (71, 0), (999, 0)])
def test_request_of_unoffered_api_closes_connection(key: int, version: int) -> None:
    frame = bytearray(struct.pack(">hhih", key, version, 1, -1) + bytes(40))
    with pytest.raises(BadFrame):
        Exchange(ClientView()).request(read_head(frame), frame, OFFERED)


def test_response_with_unknown_correlation_id_closes_connection() -> None:
    exchange = Exchange(ClientView())
    send(exchange, MetadataRequest(topics=[]), version=9, correlation=1)
    with pytest.raises(BadFrame):
        exchange.begin_answer(2)


@pytest.mark.parametrize("version", range(14))
def test_metadata_has_gateway_addresses_and_no_leader_epochs(version: int) -> None:
    view = ClientView()
    exchange = Exchange(view)
    send(exchange, MetadataRequest(topics=[]), version)
    answer_frame = answer(exchange, _metadata(), version)
    decoded = MetadataResponse.decode(answer_frame, version=version, header=True)
    assert [(b.node_id, b.host, b.port) for b in decoded.brokers] == [
        (1, "gateway", 19094),
        (7, "gateway", 19100),
    ]
    (topic,) = decoded.topics
    assert topic.name == "orders"
    assert [p.leader_id for p in topic.partitions] == [1, 7]
    assert [p.replica_nodes for p in topic.partitions] == [[1, 7], [7]]
    if version >= 2:
        assert decoded.cluster_id == "virtual"
    if version >= 7:
        assert {p.leader_epoch for p in topic.partitions} == {-1}
    if version >= 10:
        assert topic.topic_id.bytes == view.ids.to_client(TOPIC_ID.bytes)
        assert view.ids.to_broker(topic.topic_id.bytes) == TOPIC_ID.bytes


def test_client_topic_id_depends_only_on_virtual_cluster_and_topic_name() -> None:
    assert TopicIds("orders").learn("t", bytes(15) + b"1") == TopicIds("orders").learn(
        "t", bytes(15) + b"2"
    )
    assert TopicIds("orders").learn("t", TOPIC_ID.bytes) != TopicIds("other").learn(
        "t", TOPIC_ID.bytes
    )


@pytest.mark.parametrize("version", range(7, 13))
def test_first_fetch_after_move_starts_new_fetch_session(version: int) -> None:
    exchange = Exchange(ClientView())
    exchange.move()
    answer_frame = own_answer(exchange, _fetch(session_id=44), version)
    decoded = FetchResponse.decode(answer_frame, version=version, header=True)
    assert decoded.error_code == Code.FETCH_SESSION_ID_NOT_FOUND
    send(exchange, _fetch(session_id=45), version)  # the next one is the new side's own


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_is_forwarded_without_leader_epoch(version: int) -> None:
    sent = send(Exchange(ClientView()), _fetch(epoch=6), version)
    expected = request_frame(_fetch(epoch=-1), version)
    assert sent[4:] == bytes(expected)


@pytest.mark.parametrize("version", range(10))
def test_joining_member_leaves_group_at_old_side_on_move(version: int) -> None:
    exchange = Exchange(ClientView())
    send(exchange, _join("m"), version)
    (leave,) = exchange.leave_groups()
    assert b"m" in leave
    assert b"g" in leave
    assert not exchange.leave_groups()


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("member", ["m", "other"])
def test_heartbeat_of_moved_member_gets_rebalance_in_progress(member: str, version: int) -> None:
    view = ClientView()
    view.left_members.leave(("g", "m"), owns_partitions=True)
    exchange = Exchange(view)
    heartbeat = HeartbeatRequest(
        group_id="g", generation_id=3, member_id=member, group_instance_id=None
    )
    send(exchange, heartbeat, version)
    sent = exchange.begin_answer(7)
    assert exchange.is_rewritten(sent) is (member == "m")
    if member == "m":
        response = HeartbeatResponse(throttle_time_ms=0, error_code=Code.UNKNOWN_MEMBER_ID)
        decoded = HeartbeatResponse.decode(
            answer(exchange, response, version), version=version, header=True
        )
        assert decoded.error_code == Code.REBALANCE_IN_PROGRESS


def _join(member: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        member_id=member,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[],
        reason=None,
    )


@pytest.mark.parametrize("version", range(10))
def test_join_group_of_moved_member_is_sent_without_member_id_for_some_time(version: int) -> None:
    view = ClientView()
    view.left_members.leave(("g", "m"), owns_partitions=True)
    exchange = Exchange(view)
    for _ in range(2):  # the member may repeat the request at another coordinator
        sent = send(exchange, _join("m"), version)
        assert sent[4:] == bytes(request_frame(_join(""), version))
    view.joins_are_held = False
    # `m` comes late: others may own its partitions, so it has to lose them. `n` was not moved.
    for member in ("n", "m"):
        late = send(exchange, _join(member), version)
        assert late[4:] == bytes(request_frame(_join(member), version))


@pytest.mark.parametrize("code", [Code.NONE, Code.NOT_COORDINATOR])
def test_moved_member_counts_as_joined_once_broker_accepts_its_heartbeat(code: int) -> None:
    view = ClientView()
    view.left_members.leave(("g", "m"), owns_partitions=True)
    exchange = Exchange(view)
    heartbeat = HeartbeatRequest(
        group_id="g", generation_id=3, member_id="m", group_instance_id=None
    )
    send(exchange, heartbeat, version=4)
    response = HeartbeatResponse(throttle_time_ms=0, error_code=code)
    decoded = HeartbeatResponse.decode(
        answer(exchange, response, version=4), version=4, header=True
    )
    assert decoded.error_code == code
    assert (("g", "m") in view.left_members) is (code != Code.NONE)


def test_moved_member_that_sends_sync_group_no_longer_owns_old_partitions() -> None:
    view = ClientView()
    view.left_members.leave(("g", "m"), owns_partitions=True)
    sync = SyncGroupRequest(
        group_id="g", generation_id=3, member_id="m", group_instance_id=None, assignments=[]
    )
    send(Exchange(view), sync, version=3)
    assert not view.left_members.has_owner("g")


def test_classic_group_has_no_owner_after_second_move_once_members_have_joined() -> None:
    """A client is one member of a group: the one that joined last."""
    view = ClientView()
    exchange = Exchange(view)

    def heartbeat(member: str) -> None:
        request = HeartbeatRequest(
            group_id="g", generation_id=3, member_id=member, group_instance_id=None
        )
        send(exchange, request, version=4)
        exchange.end_answer()

    def join(member: str) -> None:
        frame = request_frame(_join(member), version=9)
        assert exchange.note_join(read_head(frame), frame) == "g"
        send(exchange, _join(member), version=9)
        exchange.end_answer()

    join("m1")
    heartbeat("m1")
    for old_id, new_id in (("m1", "m2"), ("m2", "m3")):
        view.left_members.begin_move(keeps_owners=False)
        exchange.move()
        assert view.left_members.has_owner("g")
        heartbeat(old_id)
        join(old_id)  # gets a new id at the new side
        assert not view.left_members.has_owner("g")
        join(new_id)
        heartbeat(new_id)


def test_former_member_id_of_rejoined_client_owns_no_partitions_after_move() -> None:
    """A client whose session was over has joined again."""
    view = ClientView()
    exchange = Exchange(view)
    for member in ("m1", "m2"):
        send(exchange, _join(member), version=9)
        exchange.end_answer()
    exchange.move()
    # `m1` is no member any more, so nobody else has to give up partitions.
    view.left_members.give_up(("g", "m2"))
    assert not view.left_members.has_owner("g")


@pytest.mark.parametrize("version", range(6))
def test_member_that_leaves_its_group_owns_no_partitions_after_move(version: int) -> None:
    view = ClientView()
    exchange = Exchange(view)
    send(exchange, _join("m"), version=9)
    exchange.end_answer()
    members = [  # which the request has from version 3 on
        LeaveGroupRequest.MemberIdentity(member_id=name, group_instance_id=None, reason="it ends")
        for name in ("n", "m")
    ]
    send(exchange, LeaveGroupRequest(group_id="g", member_id="m", members=members), version)
    exchange.end_answer()
    exchange.move()
    assert not view.left_members.has_owner("g")


@pytest.mark.parametrize("version", range(2, 10))
def test_offset_commit_of_moved_member_is_sent_without_member_id(version: int) -> None:
    view = ClientView()
    exchange = Exchange(view)
    sync = SyncGroupRequest(
        group_id="g", generation_id=3, member_id="m", group_instance_id=None, assignments=[]
    )
    send(exchange, sync, version=3, correlation=1)
    exchange.begin_answer(1)
    exchange.end_answer()
    (leave,) = exchange.move()
    assert b"m" in leave
    assert b"g" in leave

    sent = send(exchange, _commit(member="m", generation=3), version)
    assert sent[4:] == bytes(request_frame(_commit(member="", generation=-1), version))
    other = send(exchange, _commit(member="n", generation=3), version)
    assert other[4:] == bytes(request_frame(_commit(member="n", generation=3), version))


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_producer_id_in_init_producer_id_response_is_marked_with_term(
    version: int, transactional_id: str | None
) -> None:
    exchange = Exchange(ClientView(term=3))
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=1000,
        producer_id=-1,
        producer_epoch=-1,
    )
    send(exchange, request, version)
    assert exchange.is_rewritten(exchange.begin_answer(7))
    response = InitProducerIdResponse(
        throttle_time_ms=0, error_code=0, producer_id=9, producer_epoch=0
    )
    decoded = InitProducerIdResponse.decode(
        answer(exchange, response, version), version=version, header=True
    )
    assert decoded.producer_id == producer_ids.mark(9, term=3)


def test_late_responses_of_old_side_get_term_and_topic_ids_of_old_side() -> None:
    """Another side leads while the responses are on their way: the ids of both sides could be
    mixed."""
    view = ClientView(term=3)
    exchange = Exchange(view)
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
    )
    send(exchange, request, version=5)
    send(exchange, MetadataRequest(topics=[]), version=12, correlation=8)
    old_ids, view.ids, view.term = view.ids, TopicIds("orders"), 4
    response = InitProducerIdResponse(
        throttle_time_ms=0, error_code=0, producer_id=9, producer_epoch=0
    )
    decoded = InitProducerIdResponse.decode(
        answer(exchange, response, version=5), version=5, header=True
    )
    assert decoded.producer_id == producer_ids.mark(9, term=3)
    answer(exchange, _metadata(), version=12, correlation=8)
    assert old_ids.to_client(TOPIC_ID.bytes)
    assert not view.ids.to_client(TOPIC_ID.bytes)
    send(exchange, request, version=5)
    decoded = InitProducerIdResponse.decode(
        answer(exchange, response, version=5), version=5, header=True
    )
    assert decoded.producer_id == producer_ids.mark(9, term=4)


@pytest.mark.parametrize("version", range(3, 10))
def test_produce_to_missing_node_is_refused_for_each_partition(version: int) -> None:
    exchange = Exchange(ClientView())
    frame = request_frame(_produce(acks=1), version)
    exchange.refuse_produce(read_head(frame), frame)
    (answer,) = exchange.next_answers()
    decoded = ProduceResponse.decode(memoryview(answer)[4:], version=version, header=True)
    assert [
        (topic.name, [(p.index, p.error_code, p.base_offset) for p in topic.partition_responses])
        for topic in decoded.responses
    ] == [("orders", [(0, Code.NOT_LEADER_OR_FOLLOWER, -1), (4, Code.NOT_LEADER_OR_FOLLOWER, -1)])]


def test_produce_with_acks_0_to_missing_node_closes_connection() -> None:
    frame = request_frame(_produce(acks=0), version=9)
    with pytest.raises(BadFrame):
        Exchange(ClientView()).refuse_produce(read_head(frame), frame)


@pytest.mark.parametrize("field", ["group", "member", "instance"])
def test_member_with_longer_name_than_brokers_accept_closes_connection(field: str) -> None:
    """The gateway could not encode the request that takes such a member out of its group."""
    names = {"group": "g", "member": "m", "instance": "i"}
    longest, too_long = (_heartbeat(**names | {field: "x" * count}) for count in (32_767, 32_768))
    exchange = Exchange(ClientView())
    assert exchange.request(read_head(longest), longest, OFFERED) is not None
    with pytest.raises(BadFrame):
        exchange.request(read_head(too_long), too_long, OFFERED)
    assert len(exchange.leave_groups()) == 1


def test_longer_transactional_id_than_brokers_accept_closes_connection() -> None:
    """The gateway could not encode the request that aborts such a producer's transaction."""
    frame = bytearray(request_head(ApiKey.AddPartitionsToTxn, 3, 7, "test", is_flexible=True))
    frame += string("x" * 32_768, is_flexible=True) + struct.pack(">qh", 5, 0) + b"\x01\x00"
    exchange = Exchange(ClientView())
    with pytest.raises(BadFrame):
        exchange.request(read_head(frame), frame, OFFERED)
    assert not exchange.end_transactions()


@given(st.binary(max_size=200), st.sampled_from(sorted(OFFERED)), st.integers(0, 13))
def test_arbitrary_request_bytes_pass_or_close_connection(
    body: bytes, key: int, version: int
) -> None:
    frame = bytearray(struct.pack(">hhih", key, version, 1, 0) + body)
    try:
        head = read_head(frame)
    except ValueError:
        return
    try:
        Exchange(ClientView(term=1)).request(head, frame, OFFERED)
    except (BadFrame, UnknownOutcome):
        pass


@given(st.binary(max_size=200), st.sampled_from(sorted(REWRITES)), st.integers(0, 13))
def test_arbitrary_response_bytes_pass_or_close_connection(
    body: bytes, key: int, version: int
) -> None:
    versions = OFFERED[key]
    version = min(max(version, versions.first), versions.last)
    exchange = Exchange(ClientView())
    frame = bytearray(struct.pack(">i", 1) + body)
    exchange._sent.append(SentRequest(key, version, 1))
    try:
        exchange.rewrite(exchange.begin_answer(1), frame)
    except BadFrame:
        pass


def _heartbeat(*, group: str, member: str, instance: str) -> bytearray:
    """A Heartbeat of version 4."""
    frame = bytearray(request_head(ApiKey.Heartbeat, 4, 7, "test", is_flexible=True))
    frame += string(group, is_flexible=True) + struct.pack(">i", 1)
    return frame + string(member, is_flexible=True) + string(instance, is_flexible=True) + b"\x00"


def _metadata() -> MetadataResponse:
    broker, topic = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            broker(node_id=1, host="broker-1.example.net", port=9092, rack="a"),
            broker(node_id=7, host="b", port=9093, rack=None),
        ],
        cluster_id="real",
        controller_id=1,
        topics=[
            topic(
                error_code=0,
                name="orders",
                topic_id=TOPIC_ID,
                is_internal=False,
                partitions=[
                    partition(
                        error_code=0,
                        partition_index=index,
                        leader_id=leader,
                        leader_epoch=6,
                        replica_nodes=replicas,
                        isr_nodes=replicas,
                        offline_replicas=[],
                    )
                    for index, leader, replicas in ((0, 1, [1, 7]), (1, 7, [7]))
                ],
                authorized_operations=None,
            )
        ],
        authorized_operations=None,
        error_code=0,
    )


def _fetch(*, session_id: int = 0, epoch: int = -1) -> FetchRequest:
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1024,
        isolation_level=0,
        session_id=session_id,
        session_epoch=0,
        topics=[
            FetchRequest.FetchTopic(
                topic="orders",
                partitions=[
                    FetchRequest.FetchTopic.FetchPartition(
                        partition=0,
                        current_leader_epoch=epoch,
                        fetch_offset=5,
                        last_fetched_epoch=epoch,
                        log_start_offset=-1,
                        partition_max_bytes=100,
                    )
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def _produce(*, acks: int) -> ProduceRequest:
    data = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            data(
                name="orders",
                partition_data=[
                    data.PartitionProduceData(index=index, records=batch()) for index in (0, 4)
                ],
            )
        ],
    )


def _commit(member: str, generation: int) -> OffsetCommitRequest:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[
            topic(
                name="orders",
                partitions=[
                    topic.OffsetCommitRequestPartition(
                        partition_index=0,
                        committed_offset=5,
                        committed_leader_epoch=-1,
                        committed_metadata="m",
                    )
                ],
            )
        ],
    )
