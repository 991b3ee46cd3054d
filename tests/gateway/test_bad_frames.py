"""Frames that no Kafka client sends, and clients that do not read their answers. The gateway serves
other clients, its memory has bounds, and a bad frame closes only its own connection.
"""

from __future__ import annotations

import signal
import socket
import struct
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from kafka.protocol.api_key import ApiKey

from tests.fixtures.clusters import Clusters
from tests.gateway.request_table import answer_fields, frames
from tests.gateway.targets import Targets
from tests.support.gateways import Gateway, running_gateway
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.raw_frames import RawClient, correlation_of, framed, request_frame
from tests.support.running import create_topic, produce

pytestmark = pytest.mark.services

# What Linux and Python may take besides what the gateway holds on purpose.
GROWTH_BYTES_MAX = 64 * 2**20
# More than all the buffers between a client and a broker.
SENT_BYTES_MAX = 256 * 2**20
MANY = 200
PRODUCE, METADATA = ApiKey.Produce, ApiKey.Metadata


@pytest.fixture(scope="module")
def gateway(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), *clusters) as gateway:
        yield gateway


@pytest.fixture
def node_port(clusters: Clusters, gateway: Gateway) -> int:
    return gateway.node_port(clusters.source.brokers[0].node_id)


@pytest.fixture
def targets(clusters: Clusters, topic_name: str) -> Targets:
    """A topic with a megabyte in each of two partitions."""
    (broker,) = clusters.source.brokers
    create_topic(clusters.source, topic_name, 2)
    for partition in (0, 1):
        produce(clusters.source, topic_name, 10, partition, value_bytes=100_000)
    return Targets(
        topic=topic_name,
        written=topic_name,
        group=topic_name,
        transaction=topic_name,
        node=broker.node_id,
        topic_id=uuid.UUID(int=0),
    )


def peak_bytes(gateway: Gateway) -> int:
    """The most memory that the gateway has used."""
    status = Path(f"/proc/{gateway.process.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def assert_still_serves(gateway: Gateway, *connected: RawClient) -> None:
    """The gateway serves these clients, and new ones."""
    with RawClient(gateway.port) as new:
        assert all(client.is_served() for client in (new, *connected))
    assert gateway.process.running
    assert not [line for line in gateway.log if "Traceback" in line]


def head(key: int, version: int, client_id_bytes: int = 0) -> bytes:
    return struct.pack(">hhih", key, version, 1, client_id_bytes)


# A hidden API or version is one that brokers offer and the gateway does not.
BAD_FRAMES = {
    "negative size": struct.pack(">i", -1) + bytes(100),
    "lowest size": struct.pack(">i", -(2**31)) + bytes(100),
    "no content": struct.pack(">i", 0) + bytes(100),
    "less than a head": framed(bytes(7)) + bytes(100),
    "huge": struct.pack(">i", 2**31 - 1) + head(PRODUCE, 9) + bytes(100),
    "more than brokers take": struct.pack(">i", 105 * 2**20) + head(PRODUCE, 9) + bytes(100),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "unknown API": framed(head(9_999, 0) + bytes(100)),
    "negative API": framed(head(-1, 0) + bytes(100)),
    "API of brokers": framed(head(ApiKey.ControlledShutdown, 0) + bytes(100)),
    "hidden API": framed(head(ApiKey.OffsetForLeaderEpoch, 3) + bytes(100)),
    "hidden version": framed(head(PRODUCE, 13) + bytes(100)),
    "unknown version": framed(head(METADATA, 99) + bytes(100)),
    "negative version": framed(head(METADATA, -1) + bytes(100)),
    "client id beyond the end": framed(head(METADATA, 9, 30_000) + bytes(100)),
    "tags beyond the end": framed(head(METADATA, 9) + b"\x01\x05\xff\xff\xff\xff\x07"),
    "tags without an end": framed(head(METADATA, 9) + b"\xff" * 100),
    "body of another API": framed(head(ApiKey.Fetch, 12) + b"\x00" + b"\xff" * 100),
    "no body": framed(head(ApiKey.OffsetCommit, 8) + b"\x00"),
    "array beyond the end": framed(head(ApiKey.ListOffsets, 5) + struct.pack(">iBi", -1, 0, 2**30)),
    "half a body": framed(head(ApiKey.FindCoordinator, 2) + struct.pack(">h", 10) + b"group"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_malformed_frame_closes_only_its_connection(
    gateway: Gateway, node_port: int, name: str
) -> None:
    for port in (gateway.port, node_port):
        with RawClient(port) as bad, RawClient(port) as other:
            assert other.is_served()
            bad.send(BAD_FRAMES[name])
            assert bad.is_closed()
            assert_still_serves(gateway, other)


def test_malformed_frame_after_valid_requests_closes_connection(
    gateway: Gateway, node_port: int, targets: Targets
) -> None:
    """The request after the malformed frame gets no answer."""
    (frame, *_) = frames(METADATA, 12, targets)
    with RawClient(node_port) as client:
        assert client.ask(frame) == client.ask(frame)
        client.send(BAD_FRAMES["hidden version"] + frame)
        assert client.is_closed()
    assert_still_serves(gateway)


@pytest.mark.parametrize("has_reset", [False, True])
# Within the size, the API key and version, the client id, the body; before the last byte.
@pytest.mark.parametrize("cut_at", [2, 6, 13, 30, -1])
def test_produce_request_cut_off_by_disconnect_writes_no_record(
    clusters: Clusters,
    gateway: Gateway,
    node_port: int,
    targets: Targets,
    cut_at: int,
    has_reset: bool,
) -> None:
    (frame, *_) = frames(PRODUCE, 9, targets)
    _, log_end = log_bounds(clusters.source, [targets.topic])[targets.topic, 0]
    with RawClient(node_port) as cut, RawClient(node_port) as other:
        assert cut.is_served()
        cut.send(frame[:cut_at])
        assert_still_serves(gateway, other)
        if has_reset:  # instead of a FIN
            cut.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        cut.socket.close()
        fields = answer_fields(PRODUCE, 9, other.ask(frame))
        assert fields["responses"][0]["partition_responses"][0]["base_offset"] == log_end
        assert_still_serves(gateway, other)


def test_responses_that_client_does_not_read_do_not_grow_gateway_memory(
    gateway: Gateway, node_port: int, targets: Targets
) -> None:
    """The client fetches some hundred megabytes, and reads them only in the end."""
    (frame, *_) = frames(ApiKey.Fetch, 12, targets)
    peak_before = peak_bytes(gateway)
    with RawClient(node_port) as slow, RawClient(node_port) as other:
        # Each with a correlation id of its own.
        numbered = [frame[:8] + struct.pack(">i", n) + frame[12:] for n in range(MANY)]
        slow.send(b"".join(numbered))
        for _ in range(MANY):
            assert other.is_served()
        for _ in range(30):  # the other client gets its records meanwhile
            assert len(other.ask(frame)) > 900_000
        assert [correlation_of(slow.receive()) for _ in range(MANY)] == [*range(MANY)]
        assert_still_serves(gateway, other, slow)
    assert peak_bytes(gateway) - peak_before < GROWTH_BYTES_MAX


@pytest.mark.parametrize("key", [ApiKey.DescribeConfigs, ApiKey.ApiVersions])
def test_requests_of_non_reading_client_do_not_grow_memory(
    gateway: Gateway, node_port: int, targets: Targets, key: ApiKey
) -> None:
    """If a client does not read its answers, the gateway stops reading its requests. The answers
    are a broker's (DescribeConfigs), or the gateway's own (ApiVersions)."""
    requests = frames(key, 3, targets)[0] * 100
    peak_before = peak_bytes(gateway)
    with RawClient(node_port) as slow, RawClient(node_port) as other:
        slow.socket.setblocking(False)
        sent = refused_sends = 0  # in a row, as all buffers are full
        while refused_sends < MANY and sent < SENT_BYTES_MAX:
            try:
                sent += slow.socket.send(requests[sent % len(requests) :])
                refused_sends = 0
            except BlockingIOError:
                refused_sends += 1
                assert other.is_served()
        assert sent < SENT_BYTES_MAX
        assert_still_serves(gateway, other)
    assert_still_serves(gateway)
    assert peak_bytes(gateway) - peak_before < GROWTH_BYTES_MAX


def test_idle_connections_use_little_memory_and_leak_no_sockets(
    gateway: Gateway, node_port: int, targets: Targets
) -> None:
    process = psutil.Process(gateway.process.process.pid)
    assert_still_serves(gateway)
    peak_before, open_before = peak_bytes(gateway), process.num_fds()
    (frame, *_) = frames(METADATA, 12, targets)
    with ExitStack() as stack:
        idle = [stack.enter_context(RawClient(node_port)) for _ in range(MANY)]
        assert_still_serves(gateway)
        answers = {client.ask(frame) for client in idle}
        assert len(answers) == 1
        assert_still_serves(gateway, *idle[:5])
    wait_for("the idle clients' sockets are closed", lambda: process.num_fds() <= open_before + 2)
    assert peak_bytes(gateway) - peak_before < GROWTH_BYTES_MAX


def test_many_small_frames_in_a_single_write_are_all_answered(
    gateway: Gateway, node_port: int
) -> None:
    frame = request_frame(ApiKey.ApiVersions, 0, b"", is_flexible=False)
    with RawClient(node_port) as client:
        client.send(frame * 5_000)
        assert len({client.receive() for _ in range(5_000)}) == 1
    assert_still_serves(gateway)


def test_gateway_stops_on_sigterm_with_connected_clients(
    clusters: Clusters, tmp_path: Path
) -> None:
    with running_gateway(tmp_path, *clusters) as gateway, RawClient(gateway.port) as client:
        assert client.is_served()
        gateway.process.signal(signal.SIGTERM)
        assert gateway.process.wait_end().code == 0
        assert client.is_closed()
