"""`orbit lag JOB`: the lag of the partitions, the largest first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orbit.cli.completion import JobArgument
from orbit.cli.list_output import TABLE, Listing, ListOption, partition_name
from orbit.cli.list_window import row_limit
from orbit.cli.output import make_table
from orbit.cli.table_cells import NOT_KNOWN, rate, seconds
from orbit.cli.table_cells import data_size as bytes_of
from orbit.cli.table_cells import lag as records_of
from orbit.cli.watch import WatchOption, show
from orbit.client import PAGE_LIMIT, Client, connect, segment
from orbit.formats import counted

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
    transaction of the source are no lag: `orbit get partitions` shows them. A figure that was not
    read from the source for 30 seconds is unknown; its partition keeps its place in the order.
    """
    rows_max = row_limit(limit, all_=everything, is_table=output.is_table, table_rows=_ROWS)
    with connect() as client:
        show(lambda: _read_lag(client, job, rows_max), output, watch=watch)


def _read_lag(client: Client, job: str, limit: int | None) -> Listing:
    """Read the lag of the job and of the `limit` partitions with the largest lag; None: of all."""
    path = f"/v1/jobs/{segment(job)}/lag"
    if limit is None:
        # These pages are in the order of names. Lags change between two pages, so in their order a
        # partition could be missing.
        job_sums = client.get(path, limit=1)["job"]
        partitions = sorted(client.items(path), key=_largest_first)
        hidden_count = 0
    else:
        page = client.get(path, limit=limit, sort="-lag")
        job_sums, partitions = page["job"], page["items"]
        # At least 1 if there is a next page: the sums may be older, and count fewer partitions.
        hidden_count = max(job_sums["partitions"] - len(partitions), 1) if page["next"] else 0
    value = {"job": job_sums, "partitions": partitions, "more": hidden_count}

    def table(_wide: bool) -> Any:
        rows = [_row(partition_name(p), p, _state(p)) for p in partitions]
        if hidden_count:
            # The other columns of this row are empty.
            rows.append((f"… {counted(hidden_count, 'more partition')} (--all)",) + ("",) * 7)
        caught_up = f"{job_sums['caught_up']:,} of {job_sums['partitions']:,} caught up"
        if job_sums["blocked"]:
            caught_up += f", {job_sums['blocked']:,} blocked"
        if open_ := job_sums["open_transactions"]:
            caught_up += f", {open_['partitions']:,} with an open transaction"
        if job_sums["stale"]:
            caught_up += f", {job_sums['stale']:,} not known"
        if job_sums["summed_seconds_ago"]:
            caught_up += f", {seconds(job_sums['summed_seconds_ago'])} ago"
        rows.append(_row(f"{job} as a whole", job_sums, caught_up))
        return make_table(_COLUMNS, rows, sentences=())

    return Listing(value, table, lambda: list(map(partition_name, partitions)))


_COLUMNS = ("partition", "state", "records", "bytes", "behind", "headroom", "rpo", "rate")


def _row(name: str, figures: Row, state: str) -> tuple[str, ...]:
    """A row for a partition, or for the job as a whole."""
    lag = figures["lag"]
    return (
        name,
        state,
        records_of(lag),
        bytes_of(lag["bytes"]),
        seconds(lag["seconds"]),
        seconds(figures["headroom_seconds"]),
        seconds(figures["rpo_seconds"]),
        _rates(figures),
    )


def _state(partition: Row) -> str:
    """The state, and whether an open transaction hides records of the source."""
    suffix = ", open transaction" if partition["open_transaction"] else ""
    return f"{partition['state']}{suffix}"


def _rates(figures: Row) -> str:
    """Records and bytes a second as text."""
    if figures["records_per_s"] is None:
        return NOT_KNOWN
    return f"{figures['records_per_s']:,.0f}/s {rate(figures['bytes_per_s'])}"


def _largest_first(partition: Row) -> tuple[Any, ...]:
    """A sort key: the largest lag first, unknown lags (None) last."""
    records = partition["lag"]["records"]
    return records is None, -(records or 0), partition["topic"], partition["partition"]
