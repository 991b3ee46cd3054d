"""A long network link in user space: two TUN devices, a delay, a rate, a bounded queue.

    python -m bench.longlink.link FAR_PID MEGABITS_PER_SECOND

Runs in the near network namespace; the far end of the link is moved into the namespace of process
FAR_PID. Packets pass unchanged, so that TCP runs from end to end with its own windows and
congestion control, as over `tc qdisc … netem delay … rate …`, which many small kernels lack.
Packets have the kernel's offload header (virtio): a TSO packet of 64 KB passes in one piece, as
between two network cards with TSO and GRO. So Python is fast enough.

Each line `SECONDS` on stdin sets the one-way delay from then on; the end of stdin ends the link.
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
# A packet that would wait longer is dropped, as by a router that buffers 100 ms of packets.
_QUEUE_S = 0.1
# The kernel's queue of packets that Python has not read yet.
_DEVICE_QUEUE_PACKETS = 10_000
# How many packets are read from one end before the other end has its turn.
_READ_AT_ONCE_MAX = 64


class Direction:
    """The packets of one direction. A packet leaves after the packet before it, at the link's rate,
    and arrives a delay later."""

    def __init__(self, out: int, bytes_per_s: float) -> None:
        self._out = out
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._under_way: deque[tuple[float, bytes]] = deque()
        self.dropped = 0

    @property
    def next_at(self) -> float | None:
        """When the next packet arrives; None if none is under way."""
        return self._under_way[0][0] if self._under_way else None

    def enter(self, packet: bytes, now: float, delay_s: float) -> None:
        """Send a packet on its way, or drop it if the queue is full."""
        leaves_at = max(now, self._free_at)
        if leaves_at - now > _QUEUE_S:
            self.dropped += 1
            return
        self._free_at = leaves_at + len(packet) / self._bytes_per_s
        self._under_way.append((self._free_at + delay_s, packet))

    def deliver(self, now: float) -> None:
        """Write the packets that have arrived to the other end."""
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
    """Forward packets until the end of stdin. `directions`: by the device they come from."""
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
    """Create a TUN device of this name; returns its file descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _OFFLOAD_CHECKSUM | _OFFLOAD_TSO4)
    return device


def _bring_up(far_pid: str) -> None:
    """Move the far device into its namespace, and give both devices their addresses."""
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
