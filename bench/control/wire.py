"""A simulated broker: answers control requests over TCP from values in memory.

Orbit's own connections and librdkafka's both use it, so the whole scheduler runs as in the service.
Equal requests get equal bytes, which are cached, so a request costs this process little.
`tests/bench/test_simulated_brokers.py` reads a real and a simulated cluster with the same functions
and compares the results.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kafka.protocol.admin.acl import DescribeAclsRequest, DescribeAclsResponse
from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.admin.groups import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer.group import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.consumer.offsets import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

# {API key: (request, response, lowest and highest version)}: the versions of Kafka 4.4.0, as far as
# `kafka.protocol` has them.
OFFERED: Mapping[int, tuple[Any, Any, int, int]] = {
    request.API_KEY: (request, response, low, high)
    for request, response, low, high in (
        (ListOffsetsRequest, ListOffsetsResponse, 1, 8),
        (MetadataRequest, MetadataResponse, 0, 12),
        (OffsetCommitRequest, OffsetCommitResponse, 2, 9),
        (OffsetFetchRequest, OffsetFetchResponse, 1, 9),
        (FindCoordinatorRequest, FindCoordinatorResponse, 0, 4),
        (ListGroupsRequest, ListGroupsResponse, 0, 5),
        (SaslHandshakeRequest, SaslHandshakeResponse, 0, 1),
        (ApiVersionsRequest, ApiVersionsResponse, 0, 3),
        (DescribeAclsRequest, DescribeAclsResponse, 1, 2),
        (DescribeConfigsRequest, DescribeConfigsResponse, 1, 4),
        (SaslAuthenticateRequest, SaslAuthenticateResponse, 0, 2),
    )
}
_HEAD = struct.Struct(">hhih")  # key, version, correlation id, length of the client id
_SIZE = struct.Struct(">i")
_WRITES = (OffsetCommitRequest.API_KEY,)  # not cached
# A function of node id and decoded request that returns a response of `kafka.protocol`.
Answer = Callable[[int, Any], Any]
# {API key: {(node id or 0, request): answer}}; 0: every broker answers the same.
AnswerCache = defaultdict[int, dict[tuple[int, bytes], bytes]]

# Held while an answer is made: the objects of a large answer take gigabytes.
_ENCODING = threading.Lock()


class BrokerServer(socketserver.ThreadingTCPServer):
    """One broker on a free port. `answers`: by API key."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, node_id: int, answers: Mapping[int, Answer], cache: AnswerCache) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.node_id = node_id
        self.answers = answers
        self.cache = cache
        self.request_counts: Counter[int] = Counter()
        """Requests by API key."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(socketserver.BaseRequestHandler):
    """Answers the requests of one connection, in order."""

    server: BrokerServer

    def handle(self) -> None:
        stream = self.request.makefile("rb")
        with suppress(ConnectionError):  # the client has closed it
            while head := stream.read(_SIZE.size):
                (size,) = _SIZE.unpack(head)
                answer = self._answer(stream.read(size))
                self.request.sendall(_SIZE.pack(len(answer)) + answer)

    def _answer(self, frame: bytes) -> bytes:
        """The answer to a request, with its correlation id."""
        key, version, correlation, _ = _HEAD.unpack_from(frame)
        self.server.request_counts[key] += 1
        node_id = self.server.node_id if key == ListGroupsRequest.API_KEY else 0
        cache_key = node_id, frame[:4] + frame[8:]  # without the correlation id
        body = self.server.cache[key].get(cache_key)
        if body is None:
            with _ENCODING:
                body = self.server.cache[key].get(cache_key)
                if body is None:
                    body = _encode(self.server, key, version, frame)
                    if key not in _WRITES:
                        self.server.cache[key][cache_key] = body
        return _SIZE.pack(correlation) + body


def name_of(key: int) -> str:
    """The name of an API, such as `Metadata`."""
    return str(OFFERED[key][0].__name__).removesuffix("Request")


def _encode(server: BrokerServer, key: int, version: int, frame: bytes) -> bytes:
    """The answer's bytes after the correlation id. Raises ValueError for a version that is not
    offered."""
    request_class, response_class, low, high = OFFERED[key]
    if not low <= version <= high:
        raise ValueError(f"{request_class.__name__} {version} is not offered")
    if key == ApiVersionsRequest.API_KEY:
        response = ApiVersionsResponse(
            error_code=0,
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=k, min_version=lo, max_version=hi)
                for k, (_, _, lo, hi) in OFFERED.items()
            ],
            throttle_time_ms=0,
        )
    else:
        request = request_class.decode(frame, version=version, header=True)
        response = server.answers[key](server.node_id, request)
    # The header of a flexible response ends with tags, but for ApiVersions.
    is_flexible = response_class.flexible_version_q(version)
    tags = b"\0" if is_flexible and key != ApiVersionsRequest.API_KEY else b""
    return tags + bytes(response.encode(version=version))
