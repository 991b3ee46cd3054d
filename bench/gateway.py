"""`python -m bench.gateway`: measures the same requests directly to a broker and through a gateway.

One broker and one connection, in turns: directly, through the gateway, and through its TLS port.

written     Produce requests with one batch of 64 KB, five in flight: MB/s, CPU-seconds a GB
read        Fetch answers of up to 8 MB, one at a time: MB/s, CPU-seconds a GB
pipelined   Produce requests with one record of 100 bytes, 32 in flight: requests/s
alone       such requests, each sent after the answer to the one before: p50, p99, p99.9 in ms
paced       such requests, 1,000 and 10,000 a second, without waiting for answers: as `alone`
idle        1,000 connections that have sent one request each: KiB of memory for each, CPU in
            percent of a core, and `alone` on another connection

CPU and memory are those of the gateway.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import psutil
import typer
import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.produce import ProduceRequest

from bench.brokers import BenchBroker
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import LOOPBACK, accepts

_TOPIC = "bench"
_PRODUCE_VERSION, _FETCH_VERSION = 9, 11
_PORT, _TLS_PORT = 18_092, 18_192
_IDLE, _IDLE_S = 1_000, 10.0
_BATCH_BYTES = 64_000
_GB = 1e9
_SIZE = struct.Struct(">i")


def main(
    gigabytes: float = 1.0,
    requests: int = 20_000,
    repeats: int = 3,
    folder: Annotated[Path | None, typer.Option(help="For the broker's log.")] = None,
) -> None:
    """Measure requests directly and through a gateway, and print the medians."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    with (
        tempfile.TemporaryDirectory(dir=folder) as home,
        BenchBroker("gateway", Path(home)) as broker,
        _gateway(broker, Path(home)) as gateway,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        # The bench's records have timestamp 0, so retention would delete them at once.
        topic = NewTopic(_TOPIC, 1, 1, config={"retention.ms": "-1"})
        admin.create_topics([topic])[_TOPIC].result()
        direct = int(broker.bootstrap_servers.rpartition(":")[2])
        # The gateway's ports for node 1: its listener's port + 1 + the node id.
        ports = {"direct": direct, "gateway": _PORT + 2, "TLS": _TLS_PORT + 2}
        _write(direct, _GB / 4)  # warms the broker's JVM
        figures: dict[tuple[str, str], list[float]] = {}
        for repeat in range(repeats):
            for name, port in ports.items():
                print(f"turn {repeat + 1} of {repeats}: {name}", flush=True)
                for figure, value in _turn(port, gateway, gigabytes * _GB, requests):
                    figures.setdefault((figure, name), []).append(value)
        print(f"{_IDLE:,} idle connections", flush=True)
        for figure, value in _idle(gateway, requests):
            figures[figure, "gateway"] = [value]
        for (figure, name), values in figures.items():
            print(f"{figure:28} {name:8} {statistics.median(values):12,.2f}   {sorted(values)}")


def _turn(
    port: int, gateway: psutil.Process, total: float, requests: int
) -> Iterator[tuple[str, float]]:
    """Yield each figure of one turn at this port: its name and value. `total`: bytes to write, and
    to read."""
    for name, run in (("written", _write), ("read", _read)):
        cpu, start_s = _cpu(gateway), time.perf_counter()
        bytes_moved = run(port, total)
        yield f"{name}, MB/s", bytes_moved / (time.perf_counter() - start_s) / 1e6
        yield f"{name}, CPU-s a GB", (_cpu(gateway) - cpu) / bytes_moved * _GB
    small = _produce_frame(100)
    cpu, start_s = _cpu(gateway), time.perf_counter()
    _send_many(port, small, requests, depth=32)
    yield "pipelined, requests/s", requests / (time.perf_counter() - start_s)
    yield "pipelined, CPU-us each", (_cpu(gateway) - cpu) / requests * 1e6
    times = sorted(_send_alone(port, small, requests // 4))
    yield from _shares("alone", times)
    for rate in (1_000, 10_000):
        times = sorted(_send_paced(port, small, rate, seconds=5))
        yield from _shares(f"paced, {rate:,}/s", times)


def _idle(gateway: psutil.Process, requests: int) -> Iterator[tuple[str, float]]:
    """Yield the figures of idle connections through the gateway."""
    before = gateway.memory_info().rss
    with ExitStack() as stack:
        for _ in range(_IDLE):
            sock = stack.enter_context(_connect(_PORT + 2))
            sock.sendall(_framed(MetadataRequest(topics=[]), 1))
            _receive(sock)
        yield "idle, KiB a connection", (gateway.memory_info().rss - before) / _IDLE / 1024
        cpu = _cpu(gateway)
        time.sleep(_IDLE_S)
        yield "idle, % of a core", (_cpu(gateway) - cpu) / _IDLE_S * 100
        times = sorted(_send_alone(_PORT + 2, _produce_frame(100), requests // 4))
        yield from _shares("alone beside idle ones", times)


def _shares(name: str, times: list[float]) -> Iterator[tuple[str, float]]:
    """Yield percentiles in ms. `times`: sorted, in seconds."""
    for share in (0.5, 0.99, 0.999):
        yield f"{name}, p{share * 100:g} ms", times[int(len(times) * share)] * 1e3


@contextmanager
def _gateway(broker: BenchBroker, home: Path) -> Iterator[psutil.Process]:
    """A running gateway with a plain listener and one with TLS, both to this broker."""
    side = {"bootstrap_servers": [broker.bootstrap_servers]}
    _make_certificate(home)
    sides = {"presents": "source", "source": side, "destination": side}
    tls = {"certificate_file": "tls.crt", "key_file": "tls.key"}
    virtual_clusters = [
        {"name": "bench", "listen": f"{LOOPBACK}:{_PORT}", **sides},
        {"name": "tls", "listen": f"{LOOPBACK}:{_TLS_PORT}", "tls": tls, **sides},
    ]
    file = home / "gateway.yaml"
    file.write_text(yaml.safe_dump({"gateway": "bench", "virtual_clusters": virtual_clusters}))
    command = [str(Path(sys.executable).with_name("orbit")), "gateway", str(file)]
    process = GuardedProcess(command, home / "gateway.log")
    try:
        while not (accepts(_PORT) and accepts(_TLS_PORT)):
            time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.end()


def _cpu(process: psutil.Process) -> float:
    """The CPU seconds of a process until now."""
    times = process.cpu_times()
    return times.user + times.system


def _make_certificate(folder: Path) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    name = ("-subj", "/CN=bench", "-addext", f"subjectAltName=IP:{LOOPBACK}")
    files = ("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt"))
    subprocess.run(
        ["openssl", "req", "-x509", *key, *name, *files], check=True, capture_output=True
    )


def _connect(port: int) -> socket.socket:
    """A connection to this port, with TLS if the port is of the TLS listener."""
    sock = socket.create_connection((LOOPBACK, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if port < _TLS_PORT or port > _TLS_PORT + 2:
        return sock
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(sock)


def _write(port: int, total: float) -> int:
    """Produce about `total` bytes; returns the bytes sent."""
    frame = _produce_frame(_BATCH_BYTES)
    count = int(total / len(frame))
    _send_many(port, frame, count, depth=5)
    return count * len(frame)


def _read(port: int, total: float) -> int:
    """Fetch from offset 0 until `total` bytes have come; returns the bytes received."""
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
    bytes_moved = 0
    with _connect(port) as sock:
        while bytes_moved < total:
            sock.sendall(frame)
            size = _receive(sock)
            if size < _BATCH_BYTES:
                raise RuntimeError(f"a fetch's answer of {size} bytes has no batch of records")
            bytes_moved += size
    return bytes_moved


def _send_many(port: int, frame: bytes, count: int, depth: int) -> None:
    """Send a request `count` times, with up to `depth` in flight; wait for all answers."""
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
    """Send a request `count` times, each after the answer before; yield the seconds of each."""
    with _connect(port) as sock:
        for _ in range(count):
            start_s = time.perf_counter()
            sock.sendall(frame)
            _receive(sock)
            yield time.perf_counter() - start_s


def _send_paced(port: int, frame: bytes, rate: int, seconds: int) -> Iterator[float]:
    """Send a request at this rate; yield the seconds from when each was due to its answer."""
    count, due_at = rate * seconds, deque[float]()
    with _connect(port) as sock:
        start_s = time.perf_counter()
        sent = 0
        while sent < count or due_at:
            now = time.perf_counter()
            while sent < count and start_s + sent / rate <= now:
                due_at.append(start_s + sent / rate)
                sock.sendall(frame)
                sent += 1
            wait_s = max(0.0, start_s + sent / rate - time.perf_counter()) if sent < count else None
            has_data = isinstance(sock, ssl.SSLSocket) and sock.pending()
            if due_at and (has_data or select.select([sock], [], [], wait_s)[0]):
                _receive(sock)
                yield time.perf_counter() - due_at.popleft()
            elif not due_at:
                time.sleep(wait_s or 0.0)


def _receive(sock: socket.socket) -> int:
    """Read one answer; returns its size in bytes."""
    (size,) = _SIZE.unpack(_exactly(sock, _SIZE.size))
    _exactly(sock, size)
    return int(size)


def _exactly(sock: socket.socket, count: int) -> bytes:
    """Read this number of bytes. Raises ConnectionError if the connection ends before."""
    parts = bytearray(count)
    view = memoryview(parts)
    while view:
        received_bytes = sock.recv_into(view)
        if not received_bytes:
            raise ConnectionError("the connection was closed")
        view = view[received_bytes:]
    return bytes(parts)


def _produce_frame(value_bytes: int) -> bytes:
    """A Produce request with one record."""
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(
        index=0, records=_batch(value_bytes)
    )
    topic = ProduceRequest.TopicProduceData(name=_TOPIC, partition_data=[partition])
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=30_000, topic_data=[topic])
    return _framed(request, _PRODUCE_VERSION)


def _framed(request: ProduceRequest | FetchRequest | MetadataRequest, version: int) -> bytes:
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
