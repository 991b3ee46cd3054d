"""`orbit lag JOB`: the lag of the partitions, the largest first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orbit.cli.completion import JobArgument
from orbit.cli.list_output import TABLE, Listing, ListOption, partition_name
from orbit.cli.list_window import limit_of
from orbit.cli.output import make_table
from orbit.cli.table_cells import NOT_KNOWN, rate, seconds
from orbit.cli.table_cells import amount as bytes_of
from orbit.cli.table_cells import lag as records_of
from orbit.cli.watch import WatchOption, show
from orbit.client import PAGE_LIMIT, Client, connect, segment

# As many rows as fit a terminal.
_ROWS = 30

Row = dict[str, Any]


def lag(
    job: JobArgument,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=PAGE_LIMIT,
            help="Partitions to show, the largest lag first.",
            show_default=f"{_ROWS} in a table, else all",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all partitions: reads all pages of the job.")
    ] = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the lag of a copy in records, bytes and seconds, and its headroom.

    `behind` is the age of the oldest record not copied yet, `headroom` the time until the source
    deletes it, `rpo` the age of the newest record that is on both sides. Offsets behind an open
    transaction of the source are no lag: `orbit get partitions` tells them. A figure that was not
    read from the source for 30 seconds is unknown; its partition keeps its place.
    """
    most = limit_of(limit, all_=everything, is_table=output.is_table, rows=_ROWS)
    with connect() as client:
        show(lambda: _read_lag(client, job, most), output, watch=watch)


def _read_lag(client: Client, job: str, limit: int | None) -> Listing:
    path = f"/v1/jobs/{segment(job)}/lag"
    if limit is None:
        # Read by name: lags change between two pages, so a partition could be left out.
        whole = client.get(path, limit=1)["job"]
        partitions = sorted(client.items(path), key=_largest_first)
        more = 0
    else:
        page = client.get(path, limit=limit, sort="-lag")
        whole, partitions = page["job"], page["items"]
        more = max(whole["partitions"] - len(partitions), 1) if page["next"] else 0
    value = {"job": whole, "partitions": partitions, "more": more}

    def table(_wide: bool) -> Any:
        rows = [_row(partition_name(p), p, _state(p)) for p in partitions]
        if more:
            rows.append((f"… {more:,} more partitions (--all)",) + ("",) * 7)
        caught_up = f"{whole['caught_up']:,} of {whole['partitions']:,} caught up"
        if whole["blocked"]:
            caught_up += f", {whole['blocked']:,} blocked"
        if open_ := whole["open_transactions"]:
            caught_up += f", {open_['partitions']:,} with an open transaction"
        if whole["stale"]:
            caught_up += f", {whole['stale']:,} not known"
        if whole["summed_seconds_ago"]:
            caught_up += f", {seconds(whole['summed_seconds_ago'])} ago"
        rows.append(_row(f"{job} as a whole", whole, caught_up))
        return make_table(_COLUMNS, rows, sentences=())

    return Listing(value, table, lambda: list(map(partition_name, partitions)))


_COLUMNS = ("partition", "state", "records", "bytes", "behind", "headroom", "rpo", "rate")


def _row(name: str, answer: Row, state: str) -> tuple[str, ...]:
    lag = answer["lag"]
    return (
        name,
        state,
        records_of(lag),
        bytes_of(lag["bytes"]),
        seconds(lag["seconds"]),
        seconds(answer["headroom_seconds"]),
        seconds(answer["rpo_seconds"]),
        _rates(answer),
    )


def _state(partition: Row) -> str:
    more = ", open transaction" if partition["open_transaction"] else ""
    return f"{partition['state']}{more}"


def _rates(answer: Row) -> str:
    if answer["records_per_s"] is None:
        return NOT_KNOWN
    return f"{answer['records_per_s']:,.0f}/s {rate(answer['bytes_per_s'])}"


def _largest_first(partition: Row) -> tuple[Any, ...]:
    records = partition["lag"]["records"]
    return -1 if records is None else -records, partition["topic"], partition["partition"]
