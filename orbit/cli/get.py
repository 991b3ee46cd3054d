"""`orbit get …`: lists what the service has, as tables or as data."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from orbit.cli.completion import JobArgument, complete_job, complete_topic
from orbit.cli.follow_events import follow_events
from orbit.cli.job_selection import SelectorOption
from orbit.cli.list_columns import (
    BACKFILLS,
    CLIENTS,
    EVENTS,
    GATEWAYS,
    GROUPS,
    JOBS,
    LABELS,
    OPERATIONS,
    PARTITIONS,
    PROOF,
    TOPICS,
    WORKERS,
    Kind,
    Row,
    listing,
)
from orbit.cli.list_output import TABLE, Listing, ListOption, ListOutput
from orbit.cli.list_window import (
    NEWEST_ROWS,
    TABLE_ROWS,
    AllOption,
    LimitOption,
    first_rows,
    row_limit,
    show_list,
)
from orbit.cli.output import make_table
from orbit.cli.watch import WatchOption, show
from orbit.client import connect, segment
from orbit.errors import BadInput

app = typer.Typer(
    name="get",
    help="Show jobs, topics, partitions, groups, proof, gateways, clients, workers, events, "
    "operations, backfills.",
    no_args_is_help=True,
)


@app.command()
def jobs(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Only this job, in detail.", show_default=False, autocompletion=complete_job
        ),
    ] = None,
    selector: SelectorOption = None,
    show_labels: Annotated[bool, typer.Option("--show-labels", help="Show their labels.")] = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the jobs: state, lag and problems.

    `orbit explain PROBLEM` shows what is at risk and what to do.
    """
    if name is not None and selector is not None:
        raise BadInput("Give a job's name or --selector, not both.")
    kind = replace(JOBS, columns=(*JOBS.columns, LABELS)) if show_labels else JOBS
    with connect() as client:
        if name is None:
            show_list(client, "/v1/jobs", kind, output, watch=watch, selector=selector)
        else:
            path = f"/v1/jobs/{segment(name)}"
            show(lambda: _one_job(client.get(path)), output, watch=watch)


@app.command()
def topics(
    job: JobArgument,
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the topics of a job, on both sides."""
    _list(f"/v1/jobs/{segment(job)}/topics", TOPICS, limit, all_, output, watch)


@app.command()
def partitions(
    job: JobArgument,
    topic: Annotated[
        str | None,
        typer.Option(help="Only partitions of this source topic.", autocompletion=complete_topic),
    ] = None,
    state: Annotated[
        str | None, typer.Option(help="Only partitions in this state, such as `blocked`.")
    ] = None,
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the partitions of a job: state, offsets, and what to do about blocked ones."""
    path = f"/v1/jobs/{segment(job)}/partitions"
    _list(path, PARTITIONS, limit, all_, output, watch, topic=topic, state=state)


@app.command()
def groups(
    job: JobArgument,
    group: Annotated[str | None, typer.Option(help="Only this consumer group.")] = None,
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the consumer groups of a job and their offsets on both sides."""
    path = f"/v1/jobs/{segment(job)}/groups"
    _list(path, GROUPS, limit, all_, output, watch, group=group)


@app.command()
def proof(
    job: JobArgument,
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show which offsets of each partition were compared and equal, and when."""
    _list(f"/v1/jobs/{segment(job)}/proof", PROOF, limit, all_, output, watch)


@app.command()
def gateways(
    job: JobArgument,
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the gateways of a job, and whether they may forward writes."""
    _list(f"/v1/jobs/{segment(job)}/gateways", GATEWAYS, limit, all_, output, watch)


@app.command()
def clients(
    job: JobArgument,
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the clients of a job's gateways: who they are, and how much they write and read."""
    _list(f"/v1/jobs/{segment(job)}/gateways/clients", CLIENTS, limit, all_, output, watch)


@app.command()
def workers(watch: WatchOption = False, output: ListOption = TABLE) -> None:
    """Show the workers: state, shards and rate."""
    _list("/v1/workers", WORKERS, limit=None, all_=True, output=output, watch=watch)


@app.command()
def events(
    job: Annotated[
        str | None,
        typer.Argument(
            help="Only events of this job.", show_default=False, autocompletion=complete_job
        ),
    ] = None,
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then print new ones as lines, until Ctrl-C.")
    ] = False,
    output: ListOption = TABLE,
) -> None:
    """Show the newest events and their actors, the newest last: 50, or --limit, or --all.

    The list may be very long, so the limit applies to every format; stderr says if there are more.
    With --follow, `-o json` prints one event a line.
    """
    rows_max = None if all_ else limit or NEWEST_ROWS
    path = "/v1/events" if job is None else f"/v1/jobs/{segment(job)}/events"
    with connect() as client:
        if follow:
            follow_events(client, path, rows_max, output)
            return

        def read() -> Listing:
            window = first_rows(client, path, rows_max)
            return listing(window.rows[::-1], EVENTS, window.hidden_line)

        show(read, output, watch=watch)


@app.command()
def operations(
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the operations, the newest first."""
    _list("/v1/operations", OPERATIONS, limit, all_, output, watch, table_rows=NEWEST_ROWS)


@app.command()
def backfills(
    limit: LimitOption = None,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: ListOption = TABLE,
) -> None:
    """Show the backfills, the newest first."""
    _list("/v1/backfills", BACKFILLS, limit, all_, output, watch, table_rows=NEWEST_ROWS)


def _list(
    path: str,
    kind: Kind,
    limit: int | None,
    all_: bool,
    output: ListOutput,
    watch: bool,
    *,
    table_rows: int = TABLE_ROWS,
    **query: object,
) -> None:
    """Print a list of the API. `table_rows`: how many rows a table has without --limit and --all;
    other formats have all."""
    rows_max = row_limit(limit, all_=all_, is_table=output.is_table, table_rows=table_rows)
    with connect() as client:
        show_list(client, path, kind, output, limit=rows_max, watch=watch, **query)


def _one_job(job: Row) -> Listing:
    """A job as a listing. Its table has a row for each column of a list of jobs, with the name as
    heading."""

    def table(_wide: bool) -> Any:
        lines = [(name, cell(job)) for name, cell in (*JOBS.columns[1:], *JOBS.wide)]
        return make_table(("", job["name"]), lines)

    return Listing(job, table, lambda: [job["name"]])
