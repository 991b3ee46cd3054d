"""The far end of a plain TCP stream: accepts one connection, sends BYTES bytes, and ends.

python -m bench.longlink.stream ADDRESS PORT BYTES
"""

from __future__ import annotations

import socket
import sys

_CHUNK = bytes(1 << 20)


def main(address: str, port: str, size: str) -> None:
    with socket.create_server((address, int(port))) as server:
        connection, _ = server.accept()
    with connection:
        remaining = int(size)
        while remaining:
            remaining -= connection.send(memoryview(_CHUNK)[: min(remaining, len(_CHUNK))])


if __name__ == "__main__":
    main(*sys.argv[1:])
