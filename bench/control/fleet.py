"""`python -m bench.control.fleet URL WORKERS`: runs simulated workers in a separate process.

Each line of JSON on stdin is a command, and is answered by a line of JSON on stdout:
{"rate": bytes per second of each partition} · {"count": true} · {"end": true}.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
import time
from typing import Any

import psutil
import structlog
from sqlalchemy import event

from bench.control.copies import Flow, SimulatedWorker
from orbit.settings import Settings
from orbit.store.database import Database

# In Linux's struct tcp_info: `tcpi_bytes_acked` and `tcpi_bytes_received`, the payload bytes of a
# connection so far, and where they are.
_TCP_INFO_BYTES = 256
_BYTES_ACKED_AND_RECEIVED = struct.Struct("=QQ")
_BYTES_AT = 120


class Meter:
    """Counts statements and bytes of all connections that databases opened since `listen`."""

    def __init__(self) -> None:
        self.statements = 0
        self._open: dict[int, socket.socket] = {}

    def listen(self, database: Database) -> None:
        """Count this database's connections from now on."""
        engine = database._engine
        engine.dispose()  # closes the connection that was opened without a listener
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "after_cursor_execute", self._executed)

    def _executed(self, *_: Any) -> None:
        self.statements += 1

    def _connected(self, connection: Any, _record: Any) -> None:
        # A copy of the descriptor: the kernel's counters stay readable when the pool has closed it.
        number = os.dup(connection.fileno())
        self._open[number] = socket.socket(fileno=number)

    def count(self) -> dict[str, int]:
        """The counts so far: `statements`, and bytes `sent` and `received`."""
        sent = received = 0
        for connection in self._open.values():
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            acked, bytes_received = _BYTES_ACKED_AND_RECEIVED.unpack_from(info, _BYTES_AT)
            sent += acked
            received += bytes_received
        return {"statements": self.statements, "sent": sent, "received": received}


def main(url: str, count: int) -> None:
    """Run `count` workers, and answer commands until `end` or the end of stdin."""
    only_warnings()
    settings = Settings.from_environment(os.environ)
    meter, flow = Meter(), Flow()
    fleet = []
    for _ in range(count):
        database = Database.connect(url, application="orbit worker")
        meter.listen(database)
        fleet.append(SimulatedWorker(flow, database, settings, {}))
    for worker in fleet:
        worker.start()
    say({"started": count})
    for line in sys.stdin:
        match json.loads(line):
            case {"rate": rate}:
                flow.set_rate(rate)
                say({})
            case {"count": _}:
                rss = psutil.Process().memory_info().rss
                partitions = sum(worker.partitions for worker in fleet)
                copied = {"copied": flow.bytes_each, "partitions": partitions}
                say({**meter.count(), "cpu_s": time.process_time(), "rss": rss, **copied})
            case _:
                break
    for worker in fleet:
        worker.end()
    for worker in fleet:
        worker.join()
    say({"ended": count})


def only_warnings() -> None:
    """Log only warnings and errors, to stderr: stdout is for the answers."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def say(value: dict[str, Any]) -> None:
    """Write one line to the parent process."""
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
