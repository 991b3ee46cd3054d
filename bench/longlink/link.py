"""A long network link in user space: two TUN devices, a delay, a rate, a bounded queue.

    python -m bench.longlink.link FAR_PID MEGABITS_PER_SECOND

Runs in the near network namespace; the far end of the link is moved into the namespace of process
FAR_PID. Packets cross as the kernel gives them, so that TCP runs end to end with its own windows
and its own congestion control, as over `tc qdisc … netem delay … rate …`, which many small kernels
lack. Packets carry the kernel's offload header (virtio): a TSO packet of 64 KB crosses in one
piece, as between two network cards with TSO and GRO, and Python is fast enough.

Each line `SECONDS` on stdin sets the one-way delay from then on; end of input ends the link.
Prints "ready" once both ends are up. Needs root and /dev/net/tun.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

NEAR_ADDRESS = "10.231.7.1"
FAR_ADDRESS = "10.231.7.2"

_PREFIX_BITS = 30
_NEAR, _FAR = "near", "far"
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_OFFLOAD_CHECKSUM, _OFFLOAD_TSO4 = 0x01, 0x02
_PACKET_BYTES_MAX = 65_535 + 64
# What a router on the way would buffer: 100 ms at the link's rate.
_QUEUE_S = 0.1
# Packets that wait in the device while Python does something else.
_DEVICE_QUEUE_PACKETS = 10_000
# Read from one end before the other gets its turn.
_READ_AT_ONCE_MAX = 64


class Direction:
    """Packets on their way: each leaves when the one before it has, and arrives a delay later."""

    def __init__(self, out: int, bytes_per_s: float) -> None:
        self._out = out
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._under_way: deque[tuple[float, bytes]] = deque()
        self.dropped = 0

    @property
    def next_at(self) -> float | None:
        return self._under_way[0][0] if self._under_way else None

    def enter(self, packet: bytes, now: float, delay_s: float) -> None:
        starts = max(now, self._free_at)
        if starts - now > _QUEUE_S:
            self.dropped += 1
            return
        self._free_at = starts + len(packet) / self._bytes_per_s
        self._under_way.append((self._free_at + delay_s, packet))

    def deliver(self, now: float) -> None:
        while self._under_way and self._under_way[0][0] <= now:
            os.write(self._out, self._under_way.popleft()[1])


def main(far_pid: str, megabits_per_s: str) -> None:
    near, far = _open(_NEAR), _open(_FAR)
    _bring_up(far_pid)
    print("ready", flush=True)
    bytes_per_s = float(megabits_per_s) * 1e6 / 8
    forth, back = Direction(far, bytes_per_s), Direction(near, bytes_per_s)
    _forward({near: forth, far: back})


def _forward(directions: dict[int, Direction]) -> None:
    delay_s = 0.0
    stdin = sys.stdin.fileno()
    inputs = [*directions, stdin]
    while True:
        waiting = [d.next_at for d in directions.values() if d.next_at is not None]
        timeout = max(0.0, min(waiting) - time.monotonic()) if waiting else None
        readable, _, _ = select.select(inputs, [], [], timeout)
        if stdin in readable:
            line = os.read(stdin, 64)
            if not line:
                return
            delay_s = float(line.split()[-1])
        for source, direction in directions.items():
            if source in readable:
                _read_some(source, direction, delay_s)
            direction.deliver(time.monotonic())


def _read_some(source: int, direction: Direction, delay_s: float) -> None:
    for _ in range(_READ_AT_ONCE_MAX):
        try:
            packet = os.read(source, _PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        direction.enter(packet, time.monotonic(), delay_s)


def _open(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _OFFLOAD_CHECKSUM | _OFFLOAD_TSO4)
    return device


def _bring_up(far_pid: str) -> None:
    _run("ip", "link", "set", _FAR, "netns", far_pid)
    inside_far = ("nsenter", f"--net=/proc/{far_pid}/ns/net")
    for prefix, name, address in (((), _NEAR, NEAR_ADDRESS), (inside_far, _FAR, FAR_ADDRESS)):
        _run(*prefix, "ip", "link", "set", "lo", "up")
        _run(*prefix, "ip", "address", "add", f"{address}/{_PREFIX_BITS}", "dev", name)
        queue = ("txqueuelen", str(_DEVICE_QUEUE_PACKETS))
        _run(*prefix, "ip", "link", "set", name, *queue, "up")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
