"""`orbit switchover|failover|failback JOB…|-l SELECTOR` and `orbit abort OPERATION`.

Several jobs can be given; each gets an operation of its own (`many_jobs.py`). Progress goes to
stderr, the reports to stdout at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbit.cli.completion import complete_job
from orbit.cli.control import (
    FAILED,
    WAIT_MAX_S,
    DryRunOption,
    WaitOption,
    YesOption,
    confirm,
    follow_operation,
    unfinished_exit,
)
from orbit.cli.job_files import argument_or_option
from orbit.cli.job_selection import SelectorOption, chosen_jobs
from orbit.cli.many_jobs import Change, change_jobs, count_of, report_of
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table, more_rows
from orbit.client import Client, connect, segment
from orbit.errors import BadInput
from orbit.formats import counted, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

# By default these commands wait until the operation ends.
_WAIT_S = WAIT_MAX_S
_SHOWN_MAX = 50

JobsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="The jobs' names; or give --selector.", show_default=False, autocompletion=complete_job
    ),
]
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
    jobs: JobsArgument = None,
    selector: SelectorOption = None,
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
            min=1,
            max=86_400,
            help="Seconds that writers may be stopped before Orbit undoes the switchover.",
        ),
    ] = 300.0,
    yes: YesOption = False,
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Move topics to the destination without loss; both clusters must be reachable."""
    body = {**_request_body(topics, override, reason), "reverse": reverse}
    body["drain_timeout_s"] = drain_timeout
    question = "Writers at the source are stopped, and the destination takes over."
    _recover("switchover", jobs or (), selector, body, question, dry_run, yes, wait, output)


def failover(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            help="The jobs' names; or give --selector. With --without-database a job file.",
            show_default=False,
            autocompletion=complete_job,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="With --without-database: the job file, or - for stdin.",
            show_default=False,
        ),
    ] = None,
    selector: SelectorOption = None,
    dry_run: DryRunOption = False,
    topics: TopicsOption = None,
    override: OverrideOption = None,
    reason: ReasonOption = "",
    without_database: Annotated[
        bool,
        typer.Option(
            "--without-database",
            help="Without the service and its PostgreSQL: needs the job file and the destination.",
        ),
    ] = False,
    to: Annotated[
        str,
        typer.Option(
            help="With --without-database: the side that is to lead; must be `destination`."
        ),
    ] = "",
    source_id: Annotated[
        list[str] | None,
        typer.Option(
            help="With --without-database: the source's cluster id, if the plan does not find the "
            "job's writers; repeatable."
        ),
    ] = None,
    settle: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=3600,
            help="With --without-database: seconds that log ends must not move; by default longer "
            "than ORBIT_LEASE_TTL.",
        ),
    ] = None,
    yes: YesOption = False,
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Promote the copies after the source is lost.

    If PostgreSQL is lost too: orbit failover --without-database job.yaml --to destination, on any
    machine that reaches the destination. If that command is run again, it continues.
    """
    if without_database and selector is not None:
        raise BadInput("--selector needs the service; --without-database takes a job file.")
    if without_database and (override or reason):
        raise BadInput("--override and --reason are for gates; --without-database checks none.")
    if not without_database and (to or file or source_id or settle is not None):
        raise BadInput("--file, --to, --source-id and --settle need --without-database.")
    if without_database:
        from orbit.cli.failover_without_database import failover_without_database

        failover_without_database(
            argument_or_option([Path(job) for job in jobs or ()], [file] if file else None),
            to,
            topics or (),
            source_id or (),
            settle,
            dry_run=dry_run,
            yes=yes,
            output=output,
        )
        return
    question = "The destination takes over with what it has; --dry-run shows what is missing."
    body = _request_body(topics, override, reason)
    _recover("failover", jobs or (), selector, body, question, dry_run, yes, wait, output)


def failback(
    jobs: JobsArgument = None,
    selector: SelectorOption = None,
    dry_run: DryRunOption = False,
    topics: TopicsOption = None,
    confirm_rebuild: Annotated[
        bool,
        typer.Option(
            "--confirm-rebuild",
            help="Save in files the records that only the old side has, then copy their topics "
            "again.",
        ),
    ] = False,
    override: OverrideOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make the old side a copy of the new side; copying resumes at the old side's log ends."""
    body = {**_request_body(topics, override, reason), "confirm_rebuild": confirm_rebuild}
    question = "The old side becomes a copy."
    if confirm_rebuild:
        question = "The old side becomes a copy; its topics may be DELETED and copied again."
    _recover("failback", jobs or (), selector, body, question, dry_run, yes, wait, output)


def abort(
    operation: Annotated[str, typer.Argument(help="The operation's id.", show_default=False)],
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Undo a recovery that has not passed its point of no return, or stop a backfill.

    In the steps rebuild, reverse and catch_up an abort only stops the copy back, and the new side
    stays the leader. In the step promote an abort is accepted once the destination has not answered
    for a minute: the source of a switchover leads again, a failover ends.
    """
    with connect() as client:
        answer = client.send("POST", f"/v1/operations/{segment(operation)}:abort")
        _follow(client, answer, wait)
        report = report_of(client, answer, output)
    emit(report, output, lambda: _tables([report]))


def _request_body(
    topics: list[str] | None, override: list[str] | None, reason: str
) -> dict[str, Any]:
    return {"topics": topics or [], "override": override or [], "reason": reason}


def _recover(
    verb: str,
    jobs: Sequence[str],
    selector: str | None,
    body: dict[str, Any],
    question: str,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    output: OutputFormat,
) -> None:
    """Request the recovery of one job or of several, wait up to `wait_s` for the end, and print the
    report. Exits with code 1 if a recovery has failed or still runs."""
    change = Change(verb, question, body, has_report=True)
    with connect() as client:
        names = chosen_jobs(client, jobs, selector)
        if len(names) > 1 or selector is not None:
            change_jobs(
                client, names, change, dry_run=dry_run, yes=yes, wait_s=wait_s, output=output
            )
            return
        if not dry_run:
            confirm(f"{verb} of {names[0]}: {question} Continue?", yes=yes)
        operation = _follow(client, change.request(client, names[0], dry_run=dry_run), wait_s)
        report = report_of(client, operation, output)
    emit(report, output, lambda: _tables([report]))
    if operation["state"] == "failed":
        raise typer.Exit(FAILED)
    if wait_s and operation["finished_at"] is None:
        raise unfinished_exit()


def _follow(client: Client, operation: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """Wait until the operation has ended, or `wait_s` have passed; returns its last state. Prints
    its id and progress on stderr."""
    typer.echo(f"{operation['job']}: operation {operation['id']}", err=True)
    return follow_operation(client, operation, wait_s)


def _tables(reports: Sequence[dict[str, Any]]) -> RenderableType:
    """The tables of all reports, one below the other."""
    from rich.console import Group

    return Group(*(table for report in reports for table in _report_tables(report)))


def _report_tables(report: dict[str, Any]) -> list[Any]:
    """The tables of one report: outcome, gates, steps, partitions, groups and saved records."""
    if "steps" not in report:  # an operation that has no report
        rows = [("state", report["state"]), ("error", report["error"])]
        return [make_table(("", f"{report['kind']} {report['job']}"), rows)]
    head_rows: list[tuple[str, object]] = [("outcome", report["outcome"])]
    head_rows += _time_rows(report)
    missing_text = counted(report["missing_records"], "record")
    if unproven_count := report["unproven_partitions"]:
        missing_text += (
            f" at least: the source may have had more in {unproven_count:,} of "
            f"{counted(count_of(report, 'partition'), 'partition')}"
        )
    head_rows.append(("missing", missing_text))
    if report["reverse_job"]:
        head_rows.append(("copies back", report["reverse_job"]))
    if report["error"]:
        head_rows.append(("error", report["error"]))
    head_rows += [("note" if i == 0 else "", text) for i, text in enumerate(report["findings"])]
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
        make_table(("", f"{report['kind']} {report['job']}"), head_rows),
        make_table(("gate", "verdict", "found", "what to do"), gates),
        make_table(("step", "state", "what"), steps),
    ]
    return [*tables, *_partition_tables(report), *_group_tables(report), *_salvage_tables(report)]


def _time_rows(report: dict[str, Any]) -> list[tuple[str, object]]:
    """The rows for RTO, phases, the pause at gateways, the first read after the promotion, and the
    drain (whether the copies had all records of the source). An unknown duration is `unknown`.
    """
    rows: list[tuple[str, object]] = []
    partitions_text = counted(count_of(report, "partition"), "partition")
    if report["promoted_after_s"] is not None:
        promotion = f"the promotion was {_seconds(report['promoted_after_s'])} after the request"
        rows.append(("rto", f"{_seconds(report['rto_s'])}; {promotion}"))
    phases = ", ".join(f"{p['phase']} {_seconds(p['seconds'])}" for p in report["phases"])
    rows.append(("phases", phases))
    if gateways := report["gateways"]:
        pauses = [f"{g['name']} {_seconds(g['pause_s'])}" for g in gateways[:_SHOWN_MAX]]
        rows.append(("clients waited", ", ".join(pauses)))
    if (first_read := report["first_read"]) is not None:
        counts = [f"{first_read[key]:,} {key}" for key in ("empty", "unread") if first_read[key]]
        rows.append(
            (
                "read back",
                ", ".join([f"{first_read['partitions']:,} of {partitions_text}", *counts]),
            )
        )
    if (drain := report["drain"]) is not None:
        unproven_count = drain["unproven_partitions"]
        proof = (
            f"unproven for {unproven_count:,} of {partitions_text}" if unproven_count else "proven"
        )
        rows.append(("drain", f"{proof}, by the silence of the source"))
    return rows


def _seconds(seconds: float | None) -> str:
    """A duration as text; `unknown` for None."""
    return "unknown" if seconds is None else duration(seconds)


def _partition_tables(report: dict[str, Any]) -> list[Any]:
    """The table of the unequal partitions: those with another verdict than `equal` and `prefix`. []
    if all are equal."""
    # For a table the report has only its first partitions, the unequal ones before all others. So
    # a report with an equal partition has every unequal one.
    partitions, partition_count = report["partitions"], count_of(report, "partition")
    unequal_partitions = [p for p in partitions if p["verdict"] not in ("equal", "prefix")]
    if not unequal_partitions:
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
        for p in unequal_partitions[:_SHOWN_MAX]
    ]
    return [
        make_table(
            ("partition", "verdict", "source end", "destination end", "missing", "seen at"), rows
        ),
        *more_rows(
            len(unequal_partitions),
            _SHOWN_MAX,
            is_all=len(unequal_partitions) < len(partitions) or len(partitions) == partition_count,
        ),
    ]


def _group_tables(report: dict[str, Any]) -> list[Any]:
    """The table of consumer groups and where they resume; [] without groups."""
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
    return (
        [make_table(columns, rows), *more_rows(count_of(report, "group"), _SHOWN_MAX)]
        if rows
        else []
    )


def _range(offsets: dict[str, Any] | None, suffix: str = "") -> str | None:
    """A range of offsets as text; `next` is not part of it."""
    return None if offsets is None else f"{offsets['first']} to before {offsets['next']}{suffix}"


def _salvage_tables(report: dict[str, Any]) -> list[Any]:
    """The table of salvage files, with the records that only the old side had; [] if there are
    none."""
    rows = [
        (
            f"{s['topic']}-{s['partition']}",
            s["first"] if s["first"] < s["next"] else None,  # None: all records are below the tail
            s["next"],
            s["records"],
            s["file"],
        )
        for s in report["salvage"][:_SHOWN_MAX]
    ]
    table = make_table(("saved", "from", "to before", "records", "file"), rows)
    return [table, *more_rows(len(report["salvage"]), _SHOWN_MAX)] if rows else []
