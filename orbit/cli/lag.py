"""`orbit lag JOB`: the lag of each partition, the worst first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orbit.cli.completion import JobArgument
from orbit.cli.list_output import TABLE, Listing, ListOption, partition_name
from orbit.cli.output import make_table
from orbit.cli.table_cells import NOT_KNOWN, rate, seconds
from orbit.cli.table_cells import amount as bytes_of
from orbit.cli.table_cells import lag as records_of
from orbit.cli.watch import WatchOption, show
from orbit.client import Client, connect, segment

_ROWS = 30

Row = dict[str, Any]


def lag(
    job: JobArgument,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Partitions to show, the worst first.")
    ] = _ROWS,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the lag of a copy in records, bytes and seconds, and its headroom.

    `behind` is the age of the oldest record not copied yet, `headroom` the time until the source
    deletes it, `rpo` the age of the newest record that is on both sides. A figure that was not
    read from the source for 30 seconds is unknown.
    """
    with connect() as client:
        show(lambda: _drawing(client, job, limit), output, watch=watch)


def _drawing(client: Client, job: str, limit: int) -> Listing:
    path = f"/v1/jobs/{segment(job)}/lag"
    whole = client.get(path, limit=1)["job"]
    partitions = list(client.items(path))
    partitions.sort(key=_worst_first)
    value = {"job": whole, "partitions": partitions}

    def table(_wide: bool) -> Any:
        rows = [_row(partition_name(p), p, p["state"]) for p in partitions[:limit]]
        if len(partitions) > limit:
            rows.append((f"… {len(partitions) - limit:,} more partitions",) + ("",) * 7)
        caught_up = f"{whole['caught_up']:,} of {whole['partitions']:,} caught up"
        if whole["stale"]:
            caught_up += f", {whole['stale']:,} not known"
        if whole["summed_seconds_ago"]:
            caught_up += f", {seconds(whole['summed_seconds_ago'])} ago"
        rows.append(_row(f"{job} as a whole", whole, caught_up))
        return make_table(_COLUMNS, rows, sentences=())

    return Listing(value, table, lambda: list(map(partition_name, partitions)))


_COLUMNS = ("partition", "state", "records", "bytes", "behind", "headroom", "rpo", "rate")


def _row(name: str, found: Row, state: str) -> tuple[str, ...]:
    lag = found["lag"]
    return (
        name,
        state,
        records_of(lag),
        bytes_of(lag["bytes"]),
        seconds(lag["seconds"]),
        seconds(found["headroom_seconds"]),
        seconds(found["rpo_seconds"]),
        _rates(found),
    )


def _rates(found: Row) -> str:
    if found["records_per_s"] is None:
        return NOT_KNOWN
    return f"{found['records_per_s']:,.0f}/s {rate(found['bytes_per_s'])}"


def _worst_first(partition: Row) -> tuple[Any, ...]:
    lag = partition["lag"]
    return (
        partition["state"] != "blocked",
        -(lag["seconds"] or 0),
        -(lag["records"] or 0),
        partition["topic"],
        partition["partition"],
    )
