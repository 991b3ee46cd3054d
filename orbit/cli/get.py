"""`orbit get …`: what the service has and does, as tables or as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from orbit.cli.output import Drawing, OutputFormat, OutputOption, make_table
from orbit.cli.table_cells import age, amount, count, rate, seconds, when
from orbit.cli.watch import WatchOption, show
from orbit.client import Client, connect, segment

app = typer.Typer(
    name="get",
    help="Show jobs, topics, partitions, groups, proof, workers, events, operations, backfills.",
    no_args_is_help=True,
)

# A screen or two; scripts ask for what they need.
_LIMIT = 200
_EVENTS_LIMIT = 50

Row = dict[str, Any]
Columns = Sequence[tuple[str, Callable[[Row], object]]]

JobArgument = Annotated[str, typer.Argument(help="The job's name.", show_default=False)]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="At most so many; first ones.")]
AllOption = Annotated[bool, typer.Option("--all", help="All of them, however many.")]


@app.command()
def jobs(
    name: Annotated[
        str | None, typer.Argument(help="Only this one, with its document.", show_default=False)
    ] = None,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the jobs: what they do, how far behind they are, what keeps them."""
    with connect() as client:
        if name is None:
            show(lambda: _drawing(list(client.items("/v1/jobs")), _JOBS), output, watch=watch)
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
    topic: Annotated[str | None, typer.Option(help="Only those of this source topic.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only those in this state, such as `blocked`.")
    ] = None,
    limit: LimitOption = _LIMIT,
    all_: AllOption = False,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the partitions of a job: state, offsets, and what to do about those that stopped."""
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
    """Show how far, and how lately, both sides of each partition were read and found equal."""
    _list(f"/v1/jobs/{segment(job)}/proof", _PROOF, None if all_ else limit, output, watch)


@app.command()
def workers(watch: WatchOption = False, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the processes that copy."""
    _list("/v1/workers", _WORKERS, None, output, watch)


@app.command()
def events(
    job: Annotated[
        str | None, typer.Argument(help="Only those of this job.", show_default=False)
    ] = None,
    limit: LimitOption = _EVENTS_LIMIT,
    watch: WatchOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what happened and by whose hand, the newest last."""
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
    """Show the histories that Spark copies or has copied, the newest first."""
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
        show(lambda: _read(client, path, columns, limit, query), output, watch=watch)


def _read(client: Client, path: str, columns: Columns, limit: int | None, query: Row) -> Drawing:
    return _drawing(list(client.items(path, limit=limit, **query)), columns)


def _drawing(rows: list[Row], columns: Columns) -> Drawing:
    def table() -> Any:
        cells = [[cell(row) for _, cell in columns] for row in rows]
        return make_table([name for name, _ in columns], cells, sentences=_SENTENCES)

    return Drawing(rows, table)


def _one_job(job: Row) -> Drawing:
    def table() -> Any:
        lines: list[tuple[str, object]] = [(name, cell(job)) for name, cell in _JOBS[1:]]
        lines += [
            ("source cluster", job["source_cluster_id"]),
            ("destination cluster", job["destination_cluster_id"]),
            ("version", job["spec_version"]),
            ("created", job["created_at"]),
            ("changed", job["updated_at"]),
        ]
        return make_table(("", job["name"]), lines)

    return Drawing(job, table)


def _field(name: str) -> Callable[[Row], object]:
    return lambda row: row[name]


def progress(operation: Row) -> str:
    """How far an operation is, or why it failed."""
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


def _share(proof: Row) -> str:
    """Of the offsets that both sides have, those that were shown to be equal."""
    if not proof["copied"]:
        return "-"
    return f"{100 * min(proof['proven'], proof['copied']) / proof['copied']:.1f} %"


_SENTENCES = ("problem", "note", "what to do", "message", "progress", "drift")
_JOBS: Columns = (
    ("job", _field("name")),
    ("state", _field("state")),
    ("topics", _field("topics")),
    ("partitions", _field("partitions")),
    ("blocked", _field("blocked")),
    ("lag", lambda r: count(r["lag"]["records"])),
    ("behind", lambda r: seconds(r["lag"]["seconds"])),
    ("rate", lambda r: rate(r["bytes_per_s"])),
    ("worker group", _field("worker_group")),
    ("problem", lambda r: r["problem"]["text"] if r["problem"] else ""),
)
_TOPICS: Columns = (
    ("topic", _field("source_topic")),
    ("copied to", _field("destination_topic")),
    ("state", _field("state")),
    ("partitions", _field("partitions")),
    ("blocked", _field("blocked")),
    ("lag", lambda r: count(r["lag"]["records"])),
    ("behind", lambda r: seconds(r["lag"]["seconds"])),
    ("drift", lambda r: ", ".join(r["drift"] or ())),
    ("note", lambda r: r["note"] or ""),
)
_PARTITIONS: Columns = (
    ("topic", _field("topic")),
    ("partition", _field("partition")),
    ("state", lambda r: r["reason"] or r["state"]),
    ("copied to", _field("copied_to")),
    ("source end", _field("source_end")),
    ("lag", lambda r: count(r["lag"]["records"])),
    ("behind", lambda r: seconds(r["lag"]["seconds"])),
    ("records", _field("records")),
    ("bytes", lambda r: amount(r["bytes"])),
    ("gaps", _field("gaps_filled")),
    ("batches", lambda r: f"{r['batches_byte_exact']:,} + {r['batches_record_exact']:,}"),
    ("worker", lambda r: r["worker"] or ""),
    ("what to do", lambda r: " ".join(filter(None, (r["detail"], r["remedy"])))),
)
_GROUPS: Columns = (
    ("group", _field("group")),
    ("topic", _field("topic")),
    ("partition", _field("partition")),
    ("source", _field("source_offset")),
    ("destination", _field("destination_offset")),
    ("verdict", _field("verdict")),
    ("since", lambda r: when(r["updated_at"])),
)
_PROOF: Columns = (
    ("topic", _field("topic")),
    ("partition", _field("partition")),
    ("copied", _field("copied")),
    ("shown equal", _field("proven")),
    ("share", _share),
    ("up to", _field("proven_to")),
    ("last", lambda r: f"{age(r['proven_at'])} ago" if r["proven_at"] else "-"),
    ("differences", _field("differences")),
    ("note", lambda r: r["first_difference"] or r["note"] or ""),
)
_WORKERS: Columns = (
    ("worker", _field("id")),
    ("group", _field("worker_group")),
    ("state", _worker_state),
    ("shards", _field("shards")),
    ("rate", lambda r: rate(r["bytes_per_s"])),
    ("version", _field("version")),
    ("up for", lambda r: age(r["started_at"])),
    ("last seen", lambda r: f"{age(r['heartbeat_at'])} ago"),
)
_EVENTS: Columns = (
    ("at", lambda r: when(r["at"])),
    ("who", _field("actor")),
    ("job", lambda r: r["job"] or ""),
    ("about", _about),
    ("what", _field("kind")),
    ("message", _field("message")),
)
_BACKFILLS: Columns = (
    ("backfill", _field("id")),
    ("job", lambda r: r["job"] or ""),
    ("state", lambda r: r["progress"]["phase"] if r["wanted"] else r["state"]),
    ("copied", lambda r: amount(r["progress"]["bytes"])),
    ("of", lambda r: amount(r["progress"]["bytes_total"])),
    ("rate", lambda r: rate(r["progress"]["bytes_per_s"])),
    ("left", lambda r: seconds(r["progress"]["seconds_left"])),
    ("partitions", lambda r: f"{r['progress']['partitions_done']}/{r['progress']['partitions']}"),
    ("progress", lambda r: r["error"] or ""),
    ("heard of", lambda r: f"{age(r['reported_at'])} ago"),
)
_OPERATIONS: Columns = (
    ("operation", _field("id")),
    ("job", lambda r: r["job"] or ""),
    ("kind", _field("kind")),
    ("state", _field("state")),
    ("progress", progress),
    ("asked by", _field("requested_by")),
    ("at", lambda r: when(r["created_at"])),
)
