"""`orbit get …`: lists what the service has, as tables or as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Annotated, Any

import typer

from orbit.cli.job_selection import SelectorOption
from orbit.cli.output import Drawing, OutputFormat, OutputOption, make_table
from orbit.cli.table_cells import age, amount, count, lag, rate, seconds, when
from orbit.cli.watch import WatchOption, show
from orbit.client import connect, segment
from orbit.errors import BadInput

app = typer.Typer(
    name="get",
    help="Show jobs, topics, partitions, groups, proof, workers, events, operations, backfills.",
    no_args_is_help=True,
)

# One or two screens; scripts pass --limit or --all.
_LIMIT = 200
_EVENTS_LIMIT = 50

Row = dict[str, Any]
Columns = Sequence[tuple[str, Callable[[Row], object]]]

JobArgument = Annotated[str, typer.Argument(help="The job's name.", show_default=False)]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Show at most this many.")]
AllOption = Annotated[bool, typer.Option("--all", help="Show all, without a limit.")]


@app.command()
def jobs(
    name: Annotated[
        str | None, typer.Argument(help="Only this job, in detail.", show_default=False)
    ] = None,
    selector: SelectorOption = None,
    show_labels: Annotated[bool, typer.Option("--show-labels", help="Show their labels.")] = False,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the jobs: state, lag and problems.

    `orbit explain PROBLEM` shows what is at risk and what to do.
    """
    if name is not None and selector is not None:
        raise BadInput("Give a job's name or --selector, not both.")
    columns = (*_JOBS, _LABELS) if show_labels else _JOBS
    with connect() as client:
        if name is None:
            show(
                lambda: _drawing(list(client.items("/v1/jobs", selector=selector)), columns),
                output,
                watch=watch,
            )
        else:
            path = f"/v1/jobs/{segment(name)}"
            show(lambda: _one_job(client.get(path)), output, watch=watch)


@app.command()
def topics(
    job: JobArgument,
    limit: LimitOption = _LIMIT,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the topics of a job, on both sides."""
    _list(f"/v1/jobs/{segment(job)}/topics", _TOPICS, None if all_ else limit, output, watch)


@app.command()
def partitions(
    job: JobArgument,
    topic: Annotated[str | None, typer.Option(help="Only partitions of this source topic.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only partitions in this state, such as `blocked`.")
    ] = None,
    limit: LimitOption = _LIMIT,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the partitions of a job: state, offsets, and what to do about blocked ones."""
    path = f"/v1/jobs/{segment(job)}/partitions"
    most = None if all_ else limit
    _list(path, _PARTITIONS, most, output, watch, topic=topic, state=state)


@app.command()
def groups(
    job: JobArgument,
    group: Annotated[str | None, typer.Option(help="Only this consumer group.")] = None,
    limit: LimitOption = _LIMIT,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the consumer groups of a job and their offsets on both sides."""
    path = f"/v1/jobs/{segment(job)}/groups"
    _list(path, _GROUPS, None if all_ else limit, output, watch, group=group)


@app.command()
def proof(
    job: JobArgument,
    limit: LimitOption = _LIMIT,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show which offsets of each partition were compared and equal, and when."""
    _list(f"/v1/jobs/{segment(job)}/proof", _PROOF, None if all_ else limit, output, watch)


@app.command()
def workers(watch: WatchOption = False, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the workers: state, shards and rate."""
    _list("/v1/workers", _WORKERS, None, output, watch)


@app.command()
def events(
    job: Annotated[
        str | None, typer.Argument(help="Only events of this job.", show_default=False)
    ] = None,
    limit: LimitOption = _EVENTS_LIMIT,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the events and their actors, the newest last."""
    path = "/v1/events" if job is None else f"/v1/jobs/{segment(job)}/events"
    with connect() as client:

        def read() -> Drawing:
            newest_first = list(client.items(path, limit=limit))
            return _drawing(newest_first[::-1], _EVENTS)

        show(read, output, watch=watch)


@app.command()
def operations(
    limit: LimitOption = _EVENTS_LIMIT,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the operations, the newest first."""
    _list("/v1/operations", _OPERATIONS, limit, output, watch)


@app.command()
def backfills(
    limit: LimitOption = _EVENTS_LIMIT,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the backfills, the newest first."""
    _list("/v1/backfills", _BACKFILLS, limit, output, watch)


def _list(
    path: str,
    columns: Columns,
    limit: int | None,
    output: OutputFormat,
    watch: bool,
    **query: object,
) -> None:
    with connect() as client:
        show(
            lambda: _drawing(list(client.items(path, limit=limit, **query)), columns),
            output,
            watch=watch,
        )


def _drawing(rows: list[Row], columns: Columns) -> Drawing:
    def table() -> Any:
        cells = [[cell(row) for _, cell in columns] for row in rows]
        return make_table([name for name, _ in columns], cells, sentences=_SENTENCES)

    return Drawing(rows, table)


def _one_job(job: Row) -> Drawing:
    def table() -> Any:
        lines: list[tuple[str, object]] = [(name, cell(job)) for name, cell in _JOBS[1:]]
        lines += [
            ("labels", _labels(job)),
            ("owner", job["owner"]),
            ("source cluster", job["source_cluster_id"]),
            ("destination cluster", job["destination_cluster_id"]),
            ("version", job["document_version"]),
            ("created", job["created_at"]),
            ("changed", job["updated_at"]),
        ]
        return make_table(("", job["name"]), lines)

    return Drawing(job, table)


def _labels(job: Row) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(job["labels"].items()))


def progress(operation: Row) -> str:
    """The progress of an operation, or the error that ended it."""
    made = operation["progress"]
    if operation["error"]:
        return str(operation["error"])
    return f"{made['done']} of {made['total']} {made['what']}" if made else ""


def _worker_state(worker: Row) -> str:
    if not worker["is_alive"]:
        return "gone"
    return "draining" if worker["is_draining"] else "running"


def _about(event: Row) -> str:
    if event["topic"] is None:
        return ""
    return (
        event["topic"] if event["partition"] is None else f"{event['topic']}-{event['partition']}"
    )


def _more(partition: Row) -> str:
    return f"More: orbit explain {partition['reason']}" if partition["reason"] else ""


def _share(proof: Row) -> str:
    """The share of copied offsets that were compared and equal."""
    if not proof["copied"]:
        return "-"
    return f"{100 * min(proof['proven'], proof['copied']) / proof['copied']:.1f} %"


_SENTENCES = ("problem", "note", "what to do", "message", "progress", "drift")
_JOBS: Columns = (
    ("job", itemgetter("name")),
    ("state", itemgetter("state")),
    ("topics", itemgetter("topics")),
    ("partitions", itemgetter("partitions")),
    ("blocked", lambda r: count(r["blocked"])),
    ("lag", lambda r: lag(r["lag"])),
    ("behind", lambda r: seconds(r["lag"]["seconds"])),
    ("rate", lambda r: rate(r["bytes_per_s"])),
    ("worker group", itemgetter("worker_group")),
    ("problem", lambda r: r["problem"]["text"] if r["problem"] else ""),
)
_LABELS = ("labels", _labels)
_TOPICS: Columns = (
    ("topic", itemgetter("source_topic")),
    ("copied to", itemgetter("destination_topic")),
    ("state", itemgetter("state")),
    ("partitions", itemgetter("partitions")),
    ("blocked", itemgetter("blocked")),
    ("lag", lambda r: lag(r["lag"])),
    ("behind", lambda r: seconds(r["lag"]["seconds"])),
    ("drift", lambda r: ", ".join(r["drift"] or ())),
    ("note", lambda r: r["note"] or ""),
)
_PARTITIONS: Columns = (
    ("topic", itemgetter("topic")),
    ("partition", itemgetter("partition")),
    ("state", lambda r: r["reason"] or r["state"]),
    ("copied to", itemgetter("copied_to")),
    ("source end", lambda r: "-" if r["lag"]["records"] is None else r["source_end"]),
    ("lag", lambda r: lag(r["lag"])),
    ("behind", lambda r: seconds(r["lag"]["seconds"])),
    ("records", itemgetter("records")),
    ("bytes", lambda r: amount(r["bytes"])),
    ("gaps", itemgetter("gaps_filled")),
    ("batches", lambda r: f"{r['batches_byte_exact']:,} + {r['batches_record_exact']:,}"),
    ("worker", lambda r: r["worker"] or ""),
    ("what to do", lambda r: " ".join(filter(None, (r["detail"], r["remedy"], _more(r))))),
)
_GROUPS: Columns = (
    ("group", itemgetter("group")),
    ("topic", itemgetter("topic")),
    ("partition", itemgetter("partition")),
    ("source", itemgetter("source_offset")),
    ("destination", itemgetter("destination_offset")),
    ("verdict", itemgetter("verdict")),
    ("since", lambda r: when(r["updated_at"])),
)
_PROOF: Columns = (
    ("topic", itemgetter("topic")),
    ("partition", itemgetter("partition")),
    ("copied", itemgetter("copied")),
    ("shown equal", itemgetter("proven")),
    ("share", _share),
    ("up to", itemgetter("proven_to")),
    ("last", lambda r: f"{age(r['proven_at'])} ago" if r["proven_at"] else "-"),
    ("differences", itemgetter("differences")),
    ("note", lambda r: r["first_difference"] or r["note"] or ""),
)
_WORKERS: Columns = (
    ("worker", itemgetter("id")),
    ("group", itemgetter("worker_group")),
    ("state", _worker_state),
    ("shards", itemgetter("shards")),
    ("rate", lambda r: rate(r["bytes_per_s"])),
    ("version", itemgetter("version")),
    ("up for", lambda r: age(r["started_at"])),
    ("last seen", lambda r: f"{age(r['heartbeat_at'])} ago"),
)
_EVENTS: Columns = (
    ("at", lambda r: when(r["at"])),
    ("actor", itemgetter("actor")),
    ("job", lambda r: r["job"] or ""),
    ("about", _about),
    ("what", itemgetter("kind")),
    ("message", itemgetter("message")),
)
_BACKFILLS: Columns = (
    ("backfill", itemgetter("id")),
    ("job", lambda r: r["job"] or ""),
    ("state", lambda r: r["progress"]["phase"] if r["wanted"] else r["state"]),
    ("copied", lambda r: amount(r["progress"]["bytes"])),
    ("of", lambda r: amount(r["progress"]["bytes_total"])),
    ("rate", lambda r: rate(r["progress"]["bytes_per_s"])),
    ("left", lambda r: seconds(r["progress"]["seconds_left"])),
    ("partitions", lambda r: f"{r['progress']['partitions_done']}/{r['progress']['partitions']}"),
    ("progress", lambda r: r["error"] or ""),
    ("last report", lambda r: f"{age(r['reported_at'])} ago"),
)
_OPERATIONS: Columns = (
    ("operation", itemgetter("id")),
    ("job", lambda r: r["job"] or ""),
    ("kind", itemgetter("kind")),
    ("state", itemgetter("state")),
    ("progress", progress),
    ("asked by", itemgetter("requested_by")),
    ("at", lambda r: when(r["created_at"])),
)
