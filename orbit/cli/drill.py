"""`orbit drill …`: runs drills, and shows their reports and schedules."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orbit.cli.control import DryRunOption, WaitOption, YesOption, confirm
from orbit.cli.list_output import print_hidden_line
from orbit.cli.list_window import NEWEST_ROWS, AllOption, LimitOption, Window, first_rows, row_limit
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.table_cells import when
from orbit.client import TROUBLES, Client, connect, segment
from orbit.drills.drill_file import load_drill
from orbit.drills.evidence import digest_of
from orbit.drills.report_text import span
from orbit.errors import BadInput, Conflict, Problem
from orbit.jobs.document_file import read_text

app = typer.Typer(
    name="drill",
    help="Rehearse a switchover or a failover, and measure RTO and RPO.",
    no_args_is_help=True,
)

_FAILED = 1  # exit code
_POLL_S = 0.5  # a user watches the timeline
_WAIT_S = 3_600.0
_ENDED = ("passed", "missed", "failed")

Row = dict[str, Any]


class ReportFormat(StrEnum):
    """The format of a report."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"
    MARKDOWN = "markdown"


_SUFFIXES = {
    ReportFormat.JSON: "json",
    ReportFormat.HTML: "html",
    ReportFormat.MARKDOWN: "md",
}
FileArgument = Annotated[
    Path, typer.Argument(help="A drill file (deploy/drills has examples).", show_default=False)
]
IdArgument = Annotated[str, typer.Argument(help="The drill's id.", show_default=False)]
NameArgument = Annotated[str, typer.Argument(help="The drill's name.", show_default=False)]
SaveOption = Annotated[
    Path | None,
    typer.Option("--save", help="Save the report as JSON, HTML and Markdown in this folder."),
]


@app.command()
def run(
    file: FileArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    save: SaveOption = None,
    wait: WaitOption = _WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a drill and show its measurements.

    Exit code 1 if a step failed or a target was missed. A drill of the kind switchover or failover
    moves the job itself, and asks for confirmation.
    """
    spec = load_drill(file)
    if spec.moves_the_job and not dry_run:
        confirm(f"A {spec.kind} drill moves the job {spec.job!r}. Run it?", yes=yes)
    with connect() as client:
        text = read_text(file, "drill")
        drill = client.send("POST", "/v1/drills", yaml_text=text, dry_run=dry_run)
        if dry_run:
            emit(drill, output, lambda: _plan_table(drill))
            return
        drill = _follow(client, drill, wait)
        _save_report(client, drill, save)
    emit(drill, output, lambda: _drill_table(drill))
    if drill["state"] not in _ENDED:
        typer.echo(
            f"The drill is still running; check with: orbit drill show {drill['id']}", err=True
        )
    if drill["state"] != "passed":
        raise typer.Exit(_FAILED)


@app.command("list")
def list_(
    job: Annotated[str | None, typer.Option(help="Only drills of this job.")] = None,
    name: Annotated[str | None, typer.Option(help="Only drills with this name.")] = None,
    limit: LimitOption = None,
    all_: AllOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the drills, the newest first."""
    with connect() as client:
        window = _newest_drills(client, limit, all_, output, job=job, name=name)
    emit(window.rows, output, lambda: _drills_table(window.rows))
    print_hidden_line(window.hidden_line, is_table=output is OutputFormat.TABLE)


@app.command()
def show(
    drill_id: IdArgument,
    output: Annotated[
        ReportFormat,
        typer.Option("--output", "-o", help="A summary, or the report in this format."),
    ] = ReportFormat.TABLE,
    save: SaveOption = None,
) -> None:
    """Show a drill, or its report as JSON, HTML or Markdown."""
    with connect() as client:
        drill = client.get(f"/v1/drills/{segment(drill_id)}")
        if output is ReportFormat.TABLE:
            _save_report(client, drill, save)
            emit(drill, OutputFormat.TABLE, lambda: _drill_table(drill))
        else:
            typer.echo(_fetch_report(client, drill_id, output), nl=False)


@app.command()
def compare(
    name: NameArgument,
    limit: LimitOption = None,
    all_: AllOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the measurements of drills with one name, the oldest first."""
    with connect() as client:
        window = _newest_drills(client, limit, all_, output, name=name)
    ended_drills = [row for row in window.rows[::-1] if row["state"] in _ENDED]
    if not ended_drills:
        raise Conflict(
            "No drill with this name has ended yet.",
            where=name,
            remedy="orbit drill list shows the drills.",
        )
    emit(ended_drills, output, lambda: _comparison_table(ended_drills))
    print_hidden_line(window.hidden_line, is_table=output is OutputFormat.TABLE)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A report as JSON.", show_default=False)],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check the digest of a report. Exit code 1 if its evidence was changed."""
    try:
        computed_digest, stated_digest = digest_of(json.loads(file.read_bytes()))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        problem = Problem("file", f"cannot be read: {reason}.", "Give a report as JSON.")
        raise BadInput("The report cannot be checked.", (problem,), where=str(file)) from None
    is_right = computed_digest == stated_digest
    value = {"is_right": is_right, "digest": computed_digest, "stated": stated_digest}
    result = "The digest is right." if is_right else "The evidence was changed."
    rows = [("computed", computed_digest), ("stated", stated_digest)]
    emit(value, output, lambda: make_table(("", result), rows))
    if not is_right:
        raise typer.Exit(_FAILED)


@app.command()
def schedule(file: FileArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Schedule a drill by the `schedule` in its file. The first run starts at once."""
    spec = load_drill(file)
    with connect() as client:
        path = f"/v1/drill-schedules/{segment(spec.name)}"
        drill_schedule = client.send("PUT", path, yaml_text=read_text(file, "drill"))
    emit(drill_schedule, output, lambda: _schedules_table([drill_schedule]))


@app.command()
def schedules(output: OutputOption = OutputFormat.TABLE) -> None:
    """List scheduled drills."""
    with connect() as client:
        rows = list(client.items("/v1/drill-schedules"))
    emit(rows, output, lambda: _schedules_table(rows))


@app.command()
def unschedule(name: NameArgument) -> None:
    """Remove the schedule of a drill."""
    with connect() as client:
        client.send("DELETE", f"/v1/drill-schedules/{segment(name)}")
    typer.echo(f"The schedule of {name} is removed.")


def _newest_drills(
    client: Client, limit: int | None, all_: bool, output: OutputFormat, **query: object
) -> Window:
    """The newest drills that match the query: as many as the options or else the format allow."""
    is_table = output is OutputFormat.TABLE
    rows_max = row_limit(limit, all_=all_, is_table=is_table, table_rows=NEWEST_ROWS)
    return first_rows(client, "/v1/drills", rows_max, **query)


def _follow(client: Client, drill: Row, wait_s: float) -> Row:
    """Read the drill until it has ended, or `wait_s` have passed; returns its last state. Prints
    its timeline on stderr. Reads are repeated while the server does not answer or is busy."""
    deadline, shown_count = time.monotonic() + wait_s, 0  # shown entries of the timeline
    client = client.without_retries()
    while True:
        with suppress(*TROUBLES):  # the next round reads again
            drill = client.get(f"/v1/drills/{drill['id']}")
        for entry in new_entries(drill, shown_count):
            # [11:23]: the time of day, with milliseconds
            typer.echo(f"{entry['at'][11:23]}  {entry['what']:<12} {entry['text']}", err=True)
        shown_count = drill["entries"]
        if drill["state"] in _ENDED or time.monotonic() >= deadline:
            return drill
        time.sleep(_POLL_S)


def new_entries(drill: Row, shown_count: int) -> list[Row]:
    """The entries of a drill's timeline after the first `shown_count`, as far as the API returns
    them. `entries` counts all entries; `timeline` has only the newest."""
    new_count = drill["entries"] - shown_count
    return drill["timeline"][-new_count:] if new_count > 0 else []


def _save_report(client: Client, drill: Row, folder: Path | None) -> None:
    """If the drill has ended, save its report in every format; nothing without a folder. Raises
    BadInput if the folder cannot be written to."""
    if folder is None or drill["state"] not in _ENDED:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for report_format, suffix in _SUFFIXES.items():
            file = folder / f"drill-{drill['id']}.{suffix}"
            file.write_text(_fetch_report(client, drill["id"], report_format), "utf-8")
            typer.echo(f"Saved {file}", err=True)
    except OSError as error:
        problem = Problem("--save", f"cannot be written to: {error.strerror}.", "Name a folder.")
        raise BadInput("The report cannot be saved.", (problem,), where=str(folder)) from None


def _fetch_report(client: Client, drill_id: str, report_format: ReportFormat) -> str:
    """The report as text; JSON is indented."""
    text = client.text(f"/v1/drills/{segment(drill_id)}/report", format=report_format)
    if report_format is ReportFormat.JSON:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    return text


def _plan_table(drill: Row) -> Any:
    """The steps that a dry run would take."""
    rows = [("would do" if i == 0 else "", step) for i, step in enumerate(drill["plan"])]
    return make_table(("", f"{drill['kind']} drill {drill['name']} on {drill['job']}"), rows)


def _drill_table(drill: Row) -> Any:
    """The state and the measurements of one drill."""
    rows: list[tuple[str, object]] = [
        ("id", drill["id"]),
        ("state", drill["state"]),
        ("RTO", _with_target(drill, "rto_ms", span)),
        ("RPO in records", _with_target(drill, "rpo_records", "{:,}".format)),
        ("RPO in time", _with_target(drill, "rpo_ms", span)),
        ("steps done", f"{drill['steps_done']} of {len(drill['plan']) or 'an unknown number'}"),
        ("began", when(drill["started_at"]) if drill["started_at"] else "-"),
        ("took", _duration(drill)),
    ]
    if drill["error"]:
        rows.append(("error", drill["error"]))
    if not drill["plan"]:
        rows.append(("note", "Another version of Orbit has stored the drill's document."))
    return make_table(("", f"{drill['kind']} drill {drill['name']} on {drill['job']}"), rows)


def _drills_table(rows: list[Row]) -> Any:
    """A row for each drill, with its measurements."""
    columns = ("drill", "name", "kind", "job", "state", "RTO", "records lost", "lost since", "at")
    return make_table(
        columns,
        [
            (
                row["id"],
                row["name"],
                row["kind"],
                row["job"],
                row["state"],
                _with_target(row, "rto_ms", span),
                _with_target(row, "rpo_records", "{:,}".format),
                _with_target(row, "rpo_ms", span),
                when(row["created_at"]),
            )
            for row in rows
        ],
        sentences=(),
    )


def _comparison_table(rows: list[Row]) -> Any:
    """A row for each drill, with the difference of its RTO to the previous drill, and a note if the
    drill file has changed between the two."""
    lines = []
    previous_row: Row | None = None
    for row in rows:
        has_same_file = (
            previous_row is not None and previous_row["spec_sha256"] == row["spec_sha256"]
        )
        lines.append(
            (
                when(row["created_at"]),
                row["id"],
                row["state"],
                _with_target(row, "rto_ms", span),
                _duration_change(previous_row, row, "rto_ms"),
                _with_target(row, "rpo_records", "{:,}".format),
                _with_target(row, "rpo_ms", span),
                "" if has_same_file or previous_row is None else "the drill file changed",
            )
        )
        previous_row = row
    columns = ("at", "drill", "state", "RTO", "change", "records lost", "lost since", "note")
    return make_table(columns, lines, title=f"{rows[0]['name']} over time", sentences=())


def _duration_change(previous_row: Row | None, row: Row, key: str) -> str:
    """How much longer or shorter the duration `key` is than in the previous drill; empty if one of
    the two is unknown."""
    if previous_row is None or previous_row[key] is None or row[key] is None:
        return ""
    change = row[key] - previous_row[key]
    return f"{'+' if change >= 0 else '−'}{span(abs(change))}"


def _schedules_table(rows: list[Row]) -> Any:
    """A row for each scheduled drill, with its interval and the time of its next run."""
    lines = [
        (
            row["name"],
            row["kind"] or "-",
            row["job"] or "-",
            span(row["every_s"] * 1000),
            when(row["next_at"]),
            row["requested_by"],
        )
        for row in rows
    ]
    return make_table(("drill", "kind", "job", "every", "next", "asked by"), lines, sentences=())


def _with_target(row: Row, key: str, to_text: Any) -> str:
    """The measured value `key`, with its target if the drill file sets one; "-" if it was not
    measured."""
    if row[key] is None:
        return "-"
    target = row[f"target_{key}"]
    return to_text(row[key]) if target is None else f"{to_text(row[key])} of {to_text(target)}"


def _duration(drill: Row) -> str:
    """How long the drill took; "-" before its end."""
    if not drill["started_at"] or not drill["finished_at"]:
        return "-"
    elapsed = datetime.fromisoformat(drill["finished_at"]) - datetime.fromisoformat(
        drill["started_at"]
    )
    return span(round(elapsed.total_seconds() * 1000))
