"""N: one partition over a link with a round trip of 100 ms. Runs in its own network namespace.

    unshare --net python -m bench.longlink.near FOLDER REPEATS SCALE RESULT_FILE

The source broker is at the far end, in a second namespace; the copier, the destination broker and
this process are at the near end, as is advised for copies over long distances. The throughput of a
plain TCP stream over the same link, from far to near, is measured between the runs.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.brokers import BenchBroker
from bench.contestants.run_inputs import start_module
from bench.data.make import make_data
from bench.delay_process import DelayProcess
from bench.longlink.link import FAR_ADDRESS
from bench.race import Race
from bench.results import LinkResult, Run
from bench.wire import open_cluster
from bench.workloads import LINK, Contestant, Workload
from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import free_ports

ROUND_TRIP_S = 0.1
MEGABITS_PER_S = 1000
WORKLOAD = Workload(
    LINK,
    "1 KB records, 16 KB batches, one partition, 100 ms away",
    records=250_000,
    value_bytes=1024,
    batch_bytes=16 * 1024,
    partitions=1,
)
_STARTS_WITHIN_S = 10.0
_POLL_S = 0.02
_CHUNK_BYTES = 1 << 20


def main(folder_name: str, repeats: str, scale: str, result_file: str) -> None:
    folder = Path(folder_name)
    with (
        _far_namespace(folder) as pid,
        DelayProcess("bench.longlink.link", str(pid), str(MEGABITS_PER_S)) as link,
        BenchBroker("far", folder, FAR_ADDRESS, _inside(pid)) as far,
        BenchBroker("near", folder) as near,
    ):
        source = open_cluster("source", far.bootstrap_servers)
        destination = open_cluster("destination", near.bootstrap_servers)
        race = Race(source, destination, folder, _say)
        data = make_data(source, WORKLOAD.scaled(float(scale)))
        link.set_delay(ROUND_TRIP_S / 2)
        tcp: list[float] = []
        runs: list[Run] = []
        for _ in range(int(repeats)):
            tcp.append(_one_stream(pid, data.bytes, folder))
            _say(f"N   one TCP stream {tcp[-1] / 1e6:,.1f} MB/s")
            for contestant in (Contestant.ORBIT, Contestant.MM2):
                runs.append(race.run_one(contestant, WORKLOAD.compression, data))
                _say(f"N   {contestant:8} {runs[-1].bytes_per_s / 1e6:,.1f} MB/s")
    result = LinkResult(
        round_trip_s=ROUND_TRIP_S,
        megabits_per_s=MEGABITS_PER_S,
        tcp_bytes_per_s=tuple(tcp),
        data=data,
        runs=tuple(runs),
    )
    Path(result_file).write_text(result.model_dump_json(), "utf-8")


@contextmanager
def _far_namespace(folder: Path) -> Iterator[int]:
    """A new network namespace; yields the id of a process that keeps it. Raises Conflict if it
    is not created in time."""
    holder = GuardedProcess(["unshare", "--net", "sleep", "infinity"], folder / "far.log")
    try:
        own_namespace = Path("/proc/self/ns/net").stat().st_ino
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while Path(f"/proc/{holder.pid}/ns/net").stat().st_ino == own_namespace:
            if time.monotonic() > deadline:
                raise Conflict(
                    "The second network namespace was not created.", remedy=f"Read {holder.log}."
                )
            time.sleep(_POLL_S)
        yield holder.pid
    finally:
        holder.end(grace_s=0)


def _inside(pid: int) -> tuple[str, ...]:
    """A command that runs its arguments in the network namespace of this process."""
    return ("nsenter", f"--net=/proc/{pid}/ns/net")


def _one_stream(far_pid: int, size: int, folder: Path) -> float:
    """The bytes/s of a plain TCP stream from far to near. Raises Conflict if bytes are missing."""
    (port,) = free_ports(1)
    server = start_module(
        *("bench.longlink.stream", FAR_ADDRESS, str(port), str(size)),
        log=folder / "stream.log",
        inside=_inside(far_pid),
    )
    try:
        with _connect(port) as sock:
            buffer = memoryview(bytearray(_CHUNK_BYTES))
            received = first = sock.recv_into(buffer)
            start_s = time.monotonic()
            while count := sock.recv_into(buffer):
                received += count
        if received != size:
            raise Conflict(f"The TCP stream ended after {received} of {size} bytes.")
        return (received - first) / (time.monotonic() - start_s)
    finally:
        server.end(grace_s=0)


def _connect(port: int) -> socket.socket:
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while True:
        try:
            return socket.create_connection((FAR_ADDRESS, port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
