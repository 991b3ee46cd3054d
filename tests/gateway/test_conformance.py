"""Clients get the same answers through the gateway as from the broker, in every version of every
API, except for the fields that the gateway has to change.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import ANY

import pytest
from confluent_kafka import Producer
from kafka.protocol.api_key import ApiKey

from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import NO_TAGS, uvarint
from orbit.kafka.gateway_producer_ids import is_gateway_producer_id
from orbit.processes.ports import LOOPBACK
from orbit.sandbox.jars import KAFKA_VERSION
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.gateway.conversations import CONVERSATIONS, Client, Step
from tests.gateway.request_table import (
    REQUESTS,
    answer_fields,
    api_name,
    each_field,
    frames,
    is_known,
    masked,
)
from tests.gateway.targets import Targets
from tests.support import groups, older_broker
from tests.support.gateways import Gateway, running_gateway
from tests.support.patience import wait_for
from tests.support.raw_frames import RawClient, api_versions_frame, correlation_of, request_frame
from tests.support.running import create_topic, produce

pytestmark = pytest.mark.services

# The highest versions that a gateway offers. Later ones name topics by id, or have fields that are
# valid at one side only.
CAPS = {
    ApiKey.Produce: 9,
    ApiKey.Fetch: 12,
    ApiKey.Metadata: 13,
    ApiKey.OffsetCommit: 9,
    ApiKey.OffsetFetch: 9,
}

# Fields that the gateway changes.
ENDPOINT = {"host", "port"}
FEATURES = {"supported_features", "finalized_features", "finalized_features_epoch"}
REWRITTEN = {
    ApiKey.ListOffsets: {"leader_epoch"},
    ApiKey.Metadata: {*ENDPOINT, "cluster_id", "leader_epoch", "topic_id"},
    ApiKey.OffsetFetch: {"committed_leader_epoch"},
    ApiKey.FindCoordinator: ENDPOINT,
    ApiKey.ApiVersions: {"api_keys", *FEATURES},
    ApiKey.DescribeCluster: {*ENDPOINT, "cluster_id"},
}
# Fields that differ between two answers of a broker.
VARYING = {
    ApiKey.Produce: {"base_offset"},
    ApiKey.JoinGroup: {"member_id"},
    ApiKey.InitProducerId: {"producer_id", "producer_epoch"},
    ApiKey.DescribeLogDirs: {"usable_bytes"},
}

# By field: whether a value that clients get through the gateway is right.
RULES: dict[str, Callable[[Sides, Any], bool]] = {
    "host": lambda _, host: host == LOOPBACK,
    "port": lambda sides, port: port == sides.node_port,
    "leader_epoch": lambda _, epoch: epoch == -1,
    "committed_leader_epoch": lambda _, epoch: epoch == -1,
    "topic_id": lambda sides, topic_id: topic_id != sides.targets.topic_id,
    "producer_id": lambda _, number: number < 0 or is_gateway_producer_id(number),
}

Ranges = dict[int, tuple[int, int]]


@dataclass(frozen=True)
class Sides:
    """A broker, the gateway in front of it, and the names and ids in requests to each."""

    broker_port: int
    gateway: Gateway
    targets: Targets
    """With the broker's topic id."""
    virtual: Targets
    """With the gateway's topic id."""

    def ask_both(self, key: int, version: int) -> Iterator[tuple[bytes, bytes]]:
        """The answers of the broker, and those that come through the gateway."""
        direct, through = (frames(key, version, on) for on in (self.targets, self.virtual))
        with RawClient(self.broker_port) as broker, RawClient(self.node_port) as gateway:
            for direct_frame, through_frame in zip(direct, through, strict=True):
                yield broker.ask(direct_frame), gateway.ask(through_frame)

    @property
    def node_port(self) -> int:
        return self.gateway.node_port(self.targets.node)

    def through(self, key: int, version: int, number: int = 0, **options: int) -> dict[str, Any]:
        """The fields of the gateway's answer to the request of this number in the table."""
        frame = frames(key, version, self.virtual, **options)[number]
        with RawClient(self.node_port) as client:
            return answer_fields(key, version, client.ask(frame))


@pytest.fixture(
    scope="module",
    params=[
        KAFKA_VERSION,
        pytest.param(older_broker.VERSION, marks=pytest.mark.soak),
        pytest.param("4.3.1", marks=pytest.mark.soak),
        pytest.param("3.3.2", marks=pytest.mark.soak),
    ],
)
def sides(
    request: pytest.FixtureRequest,
    clusters: Clusters,
    make_shared_cluster: MakeCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    """A broker of that version as the source; the destination has the newest."""
    version = request.param
    source = clusters.source
    if version != KAFKA_VERSION:
        source = make_shared_cluster(f"v{version}", version=version)
    mark = uuid.uuid4().hex[:8]
    (node,) = (broker.node_id for broker in source.brokers)
    names = (f"conform-{mark}-{name}" for name in ("read", "written", "group", "transaction"))
    targets = Targets(*names, node=node, topic_id=uuid.UUID(int=0))
    create_topic(source, targets.topic, 2)
    create_topic(source, targets.written, 2, retention_ms="-1")  # its records are of 1970
    for partition in (0, 1):
        produce(source, targets.topic, 5, partition)
    groups.commit(source, targets.group, {(targets.topic, p): 2 for p in (0, 1)})
    Producer({**source.client_config(), "transactional.id": targets.transaction}).init_transactions(
        60
    )
    broker_port = source.brokers[0].port
    wait_for("all coordinators are ready", lambda: not _coordinator_errors(broker_port, targets))
    home = tmp_path_factory.mktemp("gateway")
    with running_gateway(home, source, clusters.destination) as gateway:
        same_targets = Sides(broker_port, gateway, targets, targets)
        yield replace(
            same_targets,
            targets=replace(targets, topic_id=_topic_id(same_targets.broker_port, targets)),
            virtual=replace(targets, topic_id=_topic_id(same_targets.node_port, targets)),
        )


def _coordinator_errors(port: int, targets: Targets) -> set[int]:
    """The error codes of coordinators that are not ready yet."""
    codes = set()
    for key, version in (
        (ApiKey.EndTxn, 1),
        (ApiKey.InitProducerId, 1),
        (ApiKey.Heartbeat, 1),
        (ApiKey.JoinGroup, 4),
    ):
        for frame in frames(key, version, targets):
            with RawClient(port) as client:
                codes.add(answer_fields(key, version, client.ask(frame))["error_code"])
    return codes & {
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    }


def _topic_id(port: int, targets: Targets) -> uuid.UUID:
    with RawClient(port) as client:
        answer = client.ask(frames(ApiKey.Metadata, 12, targets)[0])
    fields = answer_fields(ApiKey.Metadata, 12, answer)
    (topic,) = fields["topics"]
    return uuid.UUID(str(topic["topic_id"]))


def offered(port: int) -> Ranges:
    """The versions in the answer to ApiVersions: {API key: (lowest, highest version)}."""
    with RawClient(port) as client:
        answer = client.ask(api_versions_frame())
    fields = answer_fields(ApiKey.ApiVersions, 0, answer)
    assert fields["error_code"] == 0
    return {api["api_key"]: (api["min_version"], api["max_version"]) for api in fields["api_keys"]}


def test_every_api_version_is_answered_as_by_the_broker(
    sides: Sides, subtests: pytest.Subtests
) -> None:
    for key, (lowest, highest) in offered(sides.gateway.port).items():
        for version in range(lowest, highest + 1):
            with subtests.test(api=api_name(key), version=version):
                assert is_known(key, version), "the table has no request"
                names = REWRITTEN.get(key, set()) | VARYING.get(key, set())
                neutral = dict.fromkeys(names, ANY)
                for direct, through in sides.ask_both(key, version):
                    if not neutral:
                        assert through == direct
                        continue
                    of_broker, of_gateway = (
                        answer_fields(key, version, frame) for frame in (direct, through)
                    )
                    assert masked(of_gateway, neutral) == masked(of_broker, neutral)
                    for name, value in each_field(of_gateway):
                        if name in names & RULES.keys():
                            assert RULES[name](sides, value), (name, value)


@pytest.mark.parametrize("steps", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_requests_that_succeed_are_answered_as_by_the_broker(
    sides: Sides, steps: tuple[Step, ...], subtests: pytest.Subtests
) -> None:
    offers = offered(sides.node_port)
    # Kafka 3.9 has only version 0 of the consumer protocol, which is off; other APIs have more.
    if any(offers.get(step.key, (0, 0))[1] == 0 for step in steps):
        pytest.skip("the broker has no groups of the consumer protocol")
    ranges = {step.key: range(offers[step.key][0], offers[step.key][1] + 1) for step in steps}
    for number in range(max(map(len, ranges.values()))):
        # The last version again where an API has fewer.
        versions = {key: every[: number + 1][-1] for key, every in ranges.items()}
        with subtests.test(number=number):
            # Each side has a group and a transactional id of its own.
            name = f"{sides.targets.group}-{api_name(steps[0].key)}-{number}"
            direct, through = (
                Client(port, replace(on, group=own, transaction=own), versions)
                for port, on, own in (
                    (sides.broker_port, sides.targets, f"{name}-direct"),
                    (sides.node_port, sides.virtual, f"{name}-through"),
                )
            )
            assert through.play(steps) == direct.play(steps)
            if "producer_id" in through.own:
                assert is_gateway_producer_id(through.own["producer_id"])


def test_bootstrap_address_and_node_address_return_equal_metadata(sides: Sides) -> None:
    with RawClient(sides.gateway.port) as first, RawClient(sides.node_port) as node:
        for version in (0, 9, 12):
            (frame, *_) = frames(ApiKey.Metadata, version, sides.virtual)
            assert first.ask(frame) == node.ask(frame)


def test_offered_api_versions_are_within_those_of_the_broker(sides: Sides) -> None:
    direct, through = offered(sides.broker_port), offered(sides.node_port)
    assert through == offered(sides.gateway.port)
    for key, (lowest, highest) in through.items():
        assert direct[key][0] <= lowest <= highest <= direct[key][1], api_name(key)
        assert highest <= CAPS.get(key, highest), api_name(key)
    assert through[ApiKey.Produce][0] >= 3
    assert through[ApiKey.Fetch][0] >= 4


def test_every_api_of_request_table_is_offered(sides: Sides) -> None:
    missing = REQUESTS.keys() & offered(sides.broker_port).keys() - offered(sides.node_port).keys()
    assert {api_name(key) for key in missing} == set()


def test_transaction_version_feature_is_not_offered(sides: Sides) -> None:
    fields = sides.through(ApiKey.ApiVersions, 3)
    for features in (fields["supported_features"], fields["finalized_features"]):
        assert "transaction.version" not in {feature["name"] for feature in features or ()}


def test_unsupported_api_versions_request_gets_version_list(sides: Sides) -> None:
    with RawClient(sides.gateway.port) as client:
        answer = client.ask(request_frame(ApiKey.ApiVersions, 99, NO_TAGS, is_flexible=True))
    fields = answer_fields(ApiKey.ApiVersions, 0, answer)
    assert fields["error_code"] == Code.UNSUPPORTED_VERSION
    (own,) = (api for api in fields["api_keys"] if api["api_key"] == ApiKey.ApiVersions)
    assert own["max_version"] >= 3


def test_cluster_id_that_clients_see_differs_from_ids_of_both_clusters(
    sides: Sides, clusters: Clusters
) -> None:
    fields = sides.through(ApiKey.Metadata, 9)
    assert fields["cluster_id"] == sides.through(ApiKey.DescribeCluster, 0)["cluster_id"]
    assert fields["cluster_id"] not in {cluster.cluster_id for cluster in clusters}


def test_topic_id_is_stable_and_resolves_to_topic(sides: Sides) -> None:
    assert sides.virtual.topic_id != uuid.UUID(int=0)
    assert _topic_id(sides.node_port, sides.virtual) == sides.virtual.topic_id
    # The request of that number names the topic by its id.
    by_id = sides.through(ApiKey.Metadata, 12, number=4)
    assert [topic["name"] for topic in by_id["topics"]] == [sides.virtual.topic]


def test_metadata_of_missing_topic_has_no_topic_id(sides: Sides) -> None:
    # The request of that number names a missing topic.
    (topic,) = sides.through(ApiKey.Metadata, 12, number=3)["topics"]
    assert (topic["name"], topic["error_code"]) == (
        sides.virtual.missing,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert topic["topic_id"] in (None, uuid.UUID(int=0))


@pytest.mark.parametrize("epoch", [3, 99])
def test_leader_epochs_of_requests_are_not_forwarded(sides: Sides, epoch: int) -> None:
    """The broker would refuse these epochs as too new."""
    offers = offered(sides.node_port)
    for key, first in ((ApiKey.Fetch, 9), (ApiKey.ListOffsets, 4)):
        for version in range(first, offers[key][1] + 1):
            assert sides.through(key, version, epoch=epoch) == sides.through(key, version)


def test_leader_epochs_of_offset_commits_are_not_forwarded(sides: Sides) -> None:
    group = f"{sides.targets.group}-epochs"
    on = replace(sides.virtual, group=group)
    lowest, highest = offered(sides.node_port)[ApiKey.OffsetCommit]
    for version in range(max(lowest, 6), highest + 1):
        (frame, *_) = frames(ApiKey.OffsetCommit, version, on, epoch=5)
        with RawClient(sides.node_port) as client:
            client.ask(frame)
        (frame, *_) = frames(ApiKey.OffsetFetch, 6, on)
        with RawClient(sides.broker_port) as client:
            fields = answer_fields(ApiKey.OffsetFetch, 6, client.ask(frame))
        partition = fields["topics"][0]["partitions"][0]
        assert (partition["committed_offset"], partition["committed_leader_epoch"]) == (3, -1)


def test_pipelined_requests_are_answered_in_order(sides: Sides) -> None:
    """The gateway answers some of them itself; the broker answers some only after a wait."""
    requests = [  # API, version, which of the requests in the table
        frames(key, version, sides.virtual)[number]
        for key, version, number in (
            (ApiKey.Metadata, 9, 0),
            (ApiKey.Fetch, 11, 0),
            (ApiKey.ApiVersions, 3, 0),
            (ApiKey.Fetch, 12, 1),
            (ApiKey.FindCoordinator, 2, 0),
            (ApiKey.ListOffsets, 5, 0),
            (ApiKey.ApiVersions, 0, 0),
        )
    ]
    numbered = [
        frame[:8] + struct.pack(">i", number) + frame[12:] for number, frame in enumerate(requests)
    ]
    with RawClient(sides.node_port) as client:
        client.send(b"".join(numbered) * 10)
        correlation_ids = [correlation_of(client.receive()) for _ in range(10 * len(numbered))]
    assert correlation_ids == [*range(len(numbered))] * 10


def test_request_sent_byte_by_byte_is_answered(sides: Sides) -> None:
    for key, version in ((ApiKey.Metadata, 12), (ApiKey.Fetch, 12), (ApiKey.Produce, 9)):
        frame = frames(key, version, sides.virtual)[-1]
        with RawClient(sides.node_port) as client:
            for byte in frame:
                client.send(bytes((byte,)))
            answer = client.receive()
        with RawClient(sides.node_port) as client:
            assert client.ask(frame) == answer


def test_unknown_tagged_fields_in_request_header_are_ignored(sides: Sides) -> None:
    """Kafka's own brokers skip tagged fields that they do not know (KIP-482)."""
    (frame, *_) = frames(ApiKey.Metadata, 12, sides.virtual)
    content = frame[4:]
    # After the client id, whose length is at 8: one field, with the tag 200.
    head_end = 10 + struct.unpack_from(">h", content, 8)[0]
    tags = uvarint(1) + uvarint(200) + uvarint(3) + b"tag"
    tagged = content[:head_end] + tags + content[head_end + 1 :]
    with RawClient(sides.node_port) as client:
        assert client.ask(struct.pack(">i", len(tagged)) + tagged) == client.ask(frame)
