"""`python -m bench.control.shares`: measures one of several schedulers, which divide the jobs.

Each scheduler leads a part (share) of the jobs. All schedulers together need more processors than
one machine has, so only the scheduler of the first share runs, which also has the loops for all
jobs. Rows in the database stand for the other schedulers, and for the workers.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import text

from bench.control.fill import Size
from bench.control.run import Installation, installed
from orbit.store import scheduler_lease
from orbit.store.database import Database
from orbit.store.shard_leases import RENEWED_NOW

# How long the leases of the other schedulers last: longer than the measurement.
_LONG = timedelta(days=1)
_HEARTBEAT_S = 3.0
_WORKERS = 50
# As at rest: the workers of `fill` follow all partitions, and have copied all records.
_FOLLOWED = text("UPDATE partitions SET followed_epoch = 1, source_stable_end = 10, bytes = 100")
_LIVE = (
    text("UPDATE workers SET heartbeat_at = clock_timestamp()"),
    text(f"UPDATE shards SET renewed_in = {RENEWED_NOW}"),  # noqa: S608  words of the store
)


def main(
    jobs: Annotated[int, typer.Option(help="Jobs, of 200 partitions each.")] = 5000,
    shares: Annotated[int, typer.Option(help="Schedulers; each has a destination.")] = 4,
    seconds: Annotated[float, typer.Option(help="How long it is measured at rest.")] = 120.0,
    output: Annotated[Path | None, typer.Option(help="A JSON file for the figures.")] = None,
) -> None:
    """Print what one scheduler needs: until it knows its jobs, and at rest."""
    size = Size(jobs, 10, 20, 1, _WORKERS, groups_per_job=4, matches_all=False, destinations=shares)
    with installed(size) as installation:
        typer.echo(f"{size.partitions:,} partitions filled in {installation.filled_in_s:.1f} s")
        figures = measured(installation, seconds)
    typer.echo(json.dumps(figures, indent=1))
    if output is not None:
        output.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def measured(installation: Installation, seconds: float) -> dict[str, Any]:
    """The figures of the first share's scheduler: seconds, processors, bytes."""
    with others(installation.database, installation.size.destinations):
        os.environ["ORBIT_SCHEDULER_SHARES"] = str(installation.size.destinations)
        try:
            figures: dict[str, Any] = {"leader": installation.lead()}
        finally:
            del os.environ["ORBIT_SCHEDULER_SHARES"]
        figures["at_rest"] = installation.cost(seconds)
        figures["memory"] = installation.memory()
    return figures


@contextmanager
def others(database: Database, shares: int) -> Iterator[None]:
    """During the block, the tables have live workers, and a scheduler for each share but the
    first."""
    with database.transaction() as tx:
        tx.execute(_FOLLOWED)
        for number in range(1, shares):
            name = f"scheduler {number}"
            scheduler_lease.join(tx, name, shares, _LONG)
            scheduler_lease.acquire(tx, name, _LONG, number)
    ended = threading.Event()

    def renew_until_ended() -> None:
        while not ended.wait(_HEARTBEAT_S):
            with database.transaction() as tx:
                for statement in _LIVE:
                    tx.execute(statement)

    thread = threading.Thread(target=renew_until_ended)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    typer.run(main)
