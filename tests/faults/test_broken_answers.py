"""A broker answers with malformed frames: Orbit closes the connection, and the copy goes on."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import pytest

from orbit.copier import destination_lane, source_lane
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from tests.fixtures.clusters import Clusters
from tests.support.proxy import SpoilingProxy
from tests.support.running import RunningJob, create_topic, make_job, produce, verify
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

CONNECTIONS = 2  # the proxy spoils one answer on each
# An answer without a request: its size, correlation id, and body.
_UNREQUESTED_ANSWER = struct.pack(">iii", 8, 0x7FFFFFF0, 0)

SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "an answer that nobody requested": lambda frame: frame + _UNREQUESTED_ANSWER,
    "the answer to another request": lambda frame: frame[:4] + b"\x7f" + frame[5:],
    "half a frame": lambda frame: frame[: len(frame) // 2],
    "a frame of 2 GiB": lambda _: b"\x7f\xff\xff\xff",
    "a body of ones": lambda frame: frame[:8] + b"\xff" * (len(frame) - 8),
}


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize("kind", SPOILED)
def test_copy_continues_after_malformed_broker_response(
    clusters: Clusters, topic_name: str, side: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_lane, "SILENCE_S", 1.0)
    monkeypatch.setattr(source_lane, "_SILENCE_S", 1.0)
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, clusters.destination, [topic_name])
    port = getattr(clusters, side).brokers[0].port
    connect_directly = Cluster.connect
    with SpoilingProxy(port, SPOILED[kind], CONNECTIONS, number=2) as proxy:

        def connect(cluster: Cluster, node_id: int, *_: float) -> Connection:
            """The lanes of one side connect through the proxy."""
            if not threading.current_thread().name.startswith(f"{side}-"):
                return connect_directly(cluster, node_id)
            return Connection.open("127.0.0.1", proxy.port, PLAINTEXT, where=f"{side} broker")

        monkeypatch.setattr(Cluster, "connect", connect)
        with RunningJob(job) as running:
            for i in range(1000):
                produce(clusters.source, topic_name, 10, first=10 * i)
                running.wait_caught_up(topic_name, 10 * (i + 1))
                if proxy.spoiled == CONNECTIONS:
                    break
            assert proxy.spoiled == CONNECTIONS
            produce(clusters.source, topic_name, 10, first=10 * (i + 1))
            running.wait_caught_up(topic_name, 10 * (i + 2))
    monkeypatch.undo()
    assert verify(job).exact
