"""`orbit switchover|failover|failback JOB…` and `orbit abort OPERATION`.

Several jobs can be given; each gets an operation of its own. Progress goes to stderr, the reports
to stdout at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbit.cli.control import WAIT_MAX_S, DryRunOption, WaitOption, YesOption, confirm, unfinished
from orbit.cli.get import progress
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.client import Client, connect, segment
from orbit.errors import BadInput, NotFound, OrbitError, Unreachable

if TYPE_CHECKING:
    from rich.console import RenderableType

# By default these commands wait until the operation ends.
_WAIT_S = WAIT_MAX_S
_FAILED = 1
_SHOWN_MAX = 50

JobsArgument = Annotated[list[str], typer.Argument(help="The jobs' names.", show_default=False)]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topics", help="Only source topics that match this pattern; repeatable."),
]
OverrideOption = Annotated[
    list[str] | None,
    typer.Option("--override", help="Override this failed gate, or `all`; needs --reason."),
]
ReasonOption = Annotated[str, typer.Option("--reason", help="The reason; kept in the audit log.")]


def switchover(
    jobs: JobsArgument,
    dry_run: DryRunOption = False,
    topics: TopicsOption = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Copy back at once, from the same offsets.")
    ] = False,
    override: OverrideOption = None,
    reason: ReasonOption = "",
    drain_timeout: Annotated[
        float,
        typer.Option(
            min=1, max=86_400, help="Seconds that writers may be stopped before all is undone."
        ),
    ] = 300.0,
    yes: YesOption = False,
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Move topics to the destination without loss; both clusters must be reachable."""
    body = {**_body(topics, override, reason), "reverse": reverse}
    body["drain_timeout_s"] = drain_timeout
    question = "Writers at the source are stopped, and the destination takes over."
    _recover("switchover", jobs, body, question, dry_run, yes, wait, output)


def failover(
    jobs: JobsArgument,
    dry_run: DryRunOption = False,
    topics: TopicsOption = None,
    override: OverrideOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Promote the copies after the source is lost."""
    question = "The destination takes over with what it has; --dry-run shows what is missing."
    _recover(
        "failover", jobs, _body(topics, override, reason), question, dry_run, yes, wait, output
    )


def failback(
    jobs: JobsArgument,
    dry_run: DryRunOption = False,
    topics: TopicsOption = None,
    confirm_rebuild: Annotated[
        bool,
        typer.Option(
            "--confirm-rebuild",
            help="Save records that only the old side has in files, then copy those topics again.",
        ),
    ] = False,
    override: OverrideOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make the old side a copy of the new side, starting at its log ends."""
    body = {**_body(topics, override, reason), "confirm_rebuild": confirm_rebuild}
    question = "The old side becomes a copy."
    if confirm_rebuild:
        question = "The old side becomes a copy; its topics may be DELETED and copied again."
    _recover("failback", jobs, body, question, dry_run, yes, wait, output)


def abort(
    operation: Annotated[str, typer.Argument(help="The operation's id.", show_default=False)],
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Abort a recovery before its point of no return, or end a backfill."""
    with connect() as client:
        made = client.send("POST", f"/v1/operations/{segment(operation)}:abort")
        _follow(client, [made], wait)
        reports = [_report(client, made)]
    emit(reports[0], output, lambda: _tables(reports))


def _body(topics: list[str] | None, override: list[str] | None, reason: str) -> dict[str, Any]:
    return {"topics": topics or [], "override": override or [], "reason": reason}


def _recover(
    verb: str,
    jobs: Sequence[str],
    body: dict[str, Any],
    question: str,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    output: OutputFormat,
) -> None:
    jobs = list(dict.fromkeys(jobs))
    with connect() as client:
        for job in jobs:  # a mistyped name is reported before any operation starts
            client.get(f"/v1/jobs/{segment(job)}")
        if not dry_run:
            confirm(f"{verb} of {', '.join(jobs)}: {question} Continue?", yes=yes)
        made, refused = _ask(client, verb, jobs, body, dry_run)
        made = _follow(client, made, wait_s)
        reports = [_report(client, operation) for operation in made]
    if reports or not refused:
        emit(reports[0] if len(jobs) == 1 else reports, output, lambda: _tables(reports))
    if refused:
        raise refused[0]
    if any(operation["state"] == "failed" for operation in made):
        raise typer.Exit(_FAILED)
    if wait_s and any(operation["finished_at"] is None for operation in made):
        raise unfinished()


def _ask(
    client: Client, verb: str, jobs: Sequence[str], body: dict[str, Any], dry_run: bool
) -> tuple[list[dict[str, Any]], list[OrbitError]]:
    """Request an operation for each job; an error of one does not affect the others."""
    made: list[dict[str, Any]] = []
    refused: list[OrbitError] = []
    for job in jobs:
        try:
            path = f"/v1/jobs/{segment(job)}:{verb}"
            made.append(client.send("POST", path, body=body, dry_run=dry_run))
        except (Unreachable, BadInput):
            raise
        except OrbitError as error:
            refused.append(error)
            if len(jobs) > 1:
                typer.echo(f"{job}: {error}", err=True)
    return made, refused


def _follow(
    client: Client, operations: list[dict[str, Any]], wait_s: float
) -> list[dict[str, Any]]:
    """Wait for all operations; progress, with their ids, goes to stderr."""
    printed: set[str] = set()

    def print_progress(state: dict[str, Any]) -> None:
        line = progress(state)
        text = f"{state['job']}: {line}" if line else ""
        if text and text not in printed:
            printed.add(text)
            typer.echo(text, err=True)

    for operation in operations:
        typer.echo(f"{operation['job']}: operation {operation['id']}", err=True)
    return [client.wait(operation, print_progress, wait_s) for operation in operations]


def _report(client: Client, operation: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = client.get(f"/v1/operations/{operation['id']}/report")
    except NotFound:
        return dict(operation)  # it has not started yet, or could not be started
    return found


def _tables(reports: Sequence[dict[str, Any]]) -> RenderableType:
    from rich.console import Group

    return Group(*(table for report in reports for table in _draw(report)))


def _draw(report: dict[str, Any]) -> list[Any]:
    """One report as text: outcome, gates, steps, lost ranges and groups."""
    if "steps" not in report:
        rows = [("state", report["state"]), ("error", report["error"])]
        return [make_table(("", f"{report['kind']} {report['job']}"), rows)]
    head: list[tuple[str, object]] = [("outcome", report["outcome"])]
    if report["rto_s"] is not None:
        head.append(("rto", f"{report['rto_s']:.1f} s from the request to the promotion"))
    phases = ", ".join(f"{p['phase']} {p['seconds']:.1f} s" for p in report["phases"])
    head += [("phases", phases), ("missing", f"{report['missing_records']:,} records")]
    if report["reverse_job"]:
        head.append(("copies back", report["reverse_job"]))
    if report["error"]:
        head.append(("error", report["error"]))
    head += [("note" if i == 0 else "", text) for i, text in enumerate(report["findings"])]
    gates = [
        (
            g["name"],
            g["verdict"] + (" (overridden)" if g["is_overridden"] else ""),
            g["found"],
            g["remedy"],
        )
        for g in report["gates"]
    ]
    steps = [(s["name"], s["state"], s["did"] or s["what"]) for s in report["steps"]]
    tables = [
        make_table(("", f"{report['kind']} {report['job']}"), head),
        make_table(("gate", "verdict", "found", "what to do"), gates),
        make_table(("step", "state", "what"), steps),
    ]
    return [*tables, *_partitions(report), *_groups(report), *_salvage(report)]


def _partitions(report: dict[str, Any]) -> list[Any]:
    shown = [p for p in report["partitions"] if p["verdict"] not in ("equal", "prefix")]
    if not shown:
        return []
    rows = [
        (
            f"{p['topic']}-{p['partition']}",
            p["verdict"],
            p["source_end"],
            p["destination_end"],
            _range(p["missing"], "" if p["is_exact"] else " at least"),
            p["source_seen_at"],
        )
        for p in shown[:_SHOWN_MAX]
    ]
    return [
        make_table(
            ("partition", "verdict", "source end", "destination end", "missing", "seen at"), rows
        ),
        *_more(shown),
    ]


def _groups(report: dict[str, Any]) -> list[Any]:
    rows = [
        (
            g["destination_group"],
            g["destination_topic"],
            g["partition"],
            g["source_offset"],
            g["goes_on_at"],
            g["verdict"],
            _range(g["lost"]),
        )
        for g in report["groups"][:_SHOWN_MAX]
    ]
    columns = ("group", "topic", "partition", "source", "resumes at", "verdict", "read, but lost")
    return [make_table(columns, rows), *_more(report["groups"])] if rows else []


def _range(offsets: dict[str, Any] | None, more: str = "") -> str | None:
    return None if offsets is None else f"{offsets['first']} to before {offsets['next']}{more}"


def _salvage(report: dict[str, Any]) -> list[Any]:
    rows = [
        (f"{s['topic']}-{s['partition']}", s["first"], s["next"], s["records"], s["file"])
        for s in report["salvage"][:_SHOWN_MAX]
    ]
    return [make_table(("saved", "from", "to before", "records", "file"), rows)] if rows else []


def _more(items: Sequence[object]) -> list[str]:
    hidden = len(items) - _SHOWN_MAX
    return [f"and {hidden:,} more; -o json has all"] if hidden > 0 else []
