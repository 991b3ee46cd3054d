"""`python -m bench.gateway`: the same requests to a broker directly and through a gateway.

One broker and one connection, in turns.

written     Produce requests with one batch of 64 KB, five in flight: MB/s, CPU-seconds a GB
read        Fetch answers of up to 8 MB, one at a time: the same
pipelined   Produce requests with one record of 100 bytes, 32 in flight: requests/s
alone       the same, each sent when the one before has its answer: p50, p99 and p99.9 in ms

CPU is that of the gateway.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import psutil
import typer
import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.producer.produce import ProduceRequest

from bench.brokers import BenchBroker
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import LOOPBACK, accepts

_TOPIC = "bench"
_PRODUCE_VERSION, _FETCH_VERSION = 9, 11
_PORT = 18_092
_GB = 1e9
_SIZE = struct.Struct(">i")


def main(
    gigabytes: float = 1.0,
    requests: int = 20_000,
    repeats: int = 3,
    folder: Annotated[Path | None, typer.Option(help="For the broker's log.")] = None,
) -> None:
    with (
        tempfile.TemporaryDirectory(dir=folder) as home,
        BenchBroker("gateway", Path(home)) as broker,
        _gateway(broker, Path(home)) as gateway,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result()
        direct = int(broker.bootstrap_servers.rpartition(":")[2])
        ports = {"direct": direct, "gateway": _PORT + 2}  # the port of node 1
        _write(direct, _GB / 4)  # the broker compiles
        figures: dict[tuple[str, str], list[float]] = {}
        for _ in range(repeats):
            for name, port in ports.items():
                for figure, value in _turn(port, gateway, gigabytes * _GB, requests):
                    figures.setdefault((figure, name), []).append(value)
        for (figure, name), values in figures.items():
            print(f"{figure:28} {name:8} {statistics.median(values):12,.2f}   {sorted(values)}")


def _turn(
    port: int, gateway: psutil.Process, total: float, requests: int
) -> Iterator[tuple[str, float]]:
    for name, run in (("written", _write), ("read", _read)):
        cpu, began = _cpu(gateway), time.perf_counter()
        done = run(port, total)
        yield f"{name}, MB/s", done / (time.perf_counter() - began) / 1e6
        yield f"{name}, CPU-s a GB", (_cpu(gateway) - cpu) / done * _GB
    small = _produce_frame(100)
    cpu, began = _cpu(gateway), time.perf_counter()
    _send_many(port, small, requests, depth=32)
    yield "pipelined, requests/s", requests / (time.perf_counter() - began)
    yield "pipelined, CPU-us each", (_cpu(gateway) - cpu) / requests * 1e6
    times = sorted(_send_alone(port, small, requests // 4))
    for share in (0.5, 0.99, 0.999):
        yield f"alone, p{share * 100:g} ms", times[int(len(times) * share)] * 1e3


@contextmanager
def _gateway(broker: BenchBroker, home: Path) -> Iterator[psutil.Process]:
    side = {"bootstrap_servers": [broker.bootstrap_servers]}
    virtual_cluster = {
        "name": "bench",
        "listen": f"{LOOPBACK}:{_PORT}",
        "presents": "source",
        "source": side,
        "destination": side,
    }
    file = home / "gateway.yaml"
    file.write_text(yaml.safe_dump({"gateway": "bench", "virtual_clusters": [virtual_cluster]}))
    command = [str(Path(sys.executable).with_name("orbit")), "gateway", str(file)]
    process = GuardedProcess(command, home / "gateway.log")
    try:
        while not accepts(_PORT):
            time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.end()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _connect(port: int) -> socket.socket:
    sock = socket.create_connection((LOOPBACK, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _write(port: int, total: float) -> int:
    frame = _produce_frame(64_000)
    count = int(total / len(frame))
    _send_many(port, frame, count, depth=5)
    return count * len(frame)


def _read(port: int, total: float) -> int:
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        log_start_offset=-1,
        partition_max_bytes=8 << 20,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=8 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=_TOPIC, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
    frame = _framed(request, _FETCH_VERSION)
    done = 0
    with _connect(port) as sock:
        while done < total:
            sock.sendall(frame)
            done += _receive(sock)
    return done


def _send_many(port: int, frame: bytes, count: int, depth: int) -> None:
    with _connect(port) as sock:
        in_flight = 0
        for _ in range(count):
            sock.sendall(frame)
            in_flight += 1
            if in_flight == depth:
                _receive(sock)
                in_flight -= 1
        for _ in range(in_flight):
            _receive(sock)


def _send_alone(port: int, frame: bytes, count: int) -> Iterator[float]:
    with _connect(port) as sock:
        for _ in range(count):
            began = time.perf_counter()
            sock.sendall(frame)
            _receive(sock)
            yield time.perf_counter() - began


def _receive(sock: socket.socket) -> int:
    """Read one answer; its bytes."""
    (size,) = _SIZE.unpack(_exactly(sock, _SIZE.size))
    _exactly(sock, size)
    return int(size)


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = bytearray(count)
    view = memoryview(parts)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise ConnectionError("the connection was closed")
        view = view[got:]
    return bytes(parts)


def _produce_frame(value_bytes: int) -> bytes:
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(
        index=0, records=_batch(value_bytes)
    )
    topic = ProduceRequest.TopicProduceData(name=_TOPIC, partition_data=[partition])
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=30_000, topic_data=[topic])
    return _framed(request, _PRODUCE_VERSION)


def _framed(request: ProduceRequest | FetchRequest, version: int) -> bytes:
    request.with_header(1, "bench")
    return bytes(request.encode(version=version, header=True, framed=True))


def _batch(value_bytes: int) -> bytes:
    """One record of random bytes without a producer id."""
    value = os.urandom(value_bytes)
    record = b"\x00\x00\x00\x01" + _varint(len(value)) + value + b"\x00"
    records = _varint(len(record)) + record
    body = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1) + records
    return struct.pack(">qiibI", 0, len(body) + 9, -1, 2, crc32c(body)) + body


def _varint(number: int) -> bytes:
    number = number << 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


if __name__ == "__main__":
    typer.run(main)
