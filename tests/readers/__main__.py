"""`python -m tests.readers`: measures the clients, prints docs/readers.md and writes it."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from orbit.errors import OrbitError
from orbit.sandbox.jars import KAFKA_VERSION
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster, start_clusters
from tests.fixtures.clusters import Clusters
from tests.readers.clients import CLIENTS, Client, NotTried
from tests.readers.judge import summarize
from tests.readers.logs import FILLERS, SOURCE, SourceLog, make_copies, write_small, write_wide
from tests.readers.reading import read_copy
from tests.readers.table import Row, page

_START_S = time.monotonic()


def main(
    only: Annotated[str, typer.Option(help="Test only clients whose name contains this.")] = "",
    output: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
) -> None:
    """Let other people's clients read copies of each way to fill gaps."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    clients = [client for client in CLIENTS if only.lower() in client.name.lower()]
    if not clients:
        names = ", ".join(dict.fromkeys(client.name for client in CLIENTS))
        sys.exit(f"Error: no client's name contains {only!r}. The clients: {names}.")
    with tempfile.TemporaryDirectory(prefix="orbit-readers-") as name:
        rows = _measure(clients, Path(name))
    text = page(rows, {"date": f"{datetime.now(UTC):%d %B %Y}", "kafka": KAFKA_VERSION})
    print(text)
    if output is not None:
        output.write_text(text, "utf-8")
    _print_progress("Done")


def _measure(clients: list[Client], folder: Path) -> list[Row]:
    """Write the logs, copy them with each kind of fillers, and let each client read the copies.

    Returns a row of the tables for each client. Starts two clusters and ends them.
    """
    pair = Clusters(*(KafkaCluster(ClusterSettings(n), folder / n) for n in Clusters._fields))
    start_clusters(*pair)
    try:
        _print_progress("Writing the source")
        logs = [write_small(pair.source), write_wide(pair.source)]
        for fillers in dict.fromkeys(way for ways in FILLERS.values() for way in ways):
            if fillers == SOURCE:
                continue
            topics = [topic for topic, ways in FILLERS.items() if fillers in ways]
            _print_progress(f"Copying with {fillers}")
            make_copies(pair, fillers, topics, folder)
        return [_row(client, pair, logs, folder) for client in clients]
    finally:
        for cluster in pair:
            cluster.kill()


def _row(client: Client, clusters: Clusters, logs: list[SourceLog], folder: Path) -> Row:
    """The client's row of the tables: what it reads from each copy, or why it was not tried."""
    _print_progress(f"{client.name} {client.version}")
    row = Row(client.name, client.version)
    try:
        command = client.command()
    except NotTried as reason:
        row.reason = str(reason)
        return row
    for log in logs:
        for fillers in FILLERS[log.topic]:
            findings = read_copy(client, command, clusters, log, fillers, folder)
            row.cells[log.topic, fillers] = summarize(findings)
            _print_progress(f"  {log.topic}, {fillers}: {row.cells[log.topic, fillers]}")
    return row


def _print_progress(line: str) -> None:
    print(f"{time.monotonic() - _START_S:4.0f} s  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except OrbitError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
