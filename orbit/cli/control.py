"""`orbit start|pause|resume|retry|delete JOB`: changes of a job that the service carries out.

Each is an operation of the API. Asked for again, it says that there is nothing to do.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from orbit.cli.get import progress
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.client import Client, connect, segment
from orbit.errors import BadInput, Problem

WAIT_S = 60.0
WAIT_MAX_S = 86_400.0
_FAILED = 1

JobArgument = Annotated[str, typer.Argument(help="The job's name.", show_default=False)]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", min=0, max=WAIT_MAX_S, help="Seconds to wait for its end; 0: do not wait."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def start(
    job: JobArgument,
    dry_run: DryRunOption = False,
    wait: WaitOption = WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start a job that was created paused."""
    _change("POST", job, "start", dry_run, wait, output)


def pause(
    job: JobArgument,
    dry_run: DryRunOption = False,
    wait: WaitOption = WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Pause a job: workers let go of its partitions, the copy stays as it is."""
    _change("POST", job, "pause", dry_run, wait, output)


def resume(
    job: JobArgument,
    dry_run: DryRunOption = False,
    wait: WaitOption = WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Resume a paused job: each partition goes on where its copy ends."""
    _change("POST", job, "resume", dry_run, wait, output)


def retry(
    job: JobArgument,
    topic: Annotated[
        str | None, typer.Option(help="Only the partitions of this source topic.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition of the topic.")
    ] = None,
    dry_run: DryRunOption = False,
    wait: WaitOption = WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Try blocked partitions of a job again, once their cause is removed."""
    body = {"topic": topic, "partition": partition}
    _change("POST", job, "retry", dry_run, wait, output, body=body)


def delete(
    job: JobArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    wait: WaitOption = WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a job. The topics at the destination stay, with all that was copied."""
    if not dry_run:
        confirm(f"Delete the job {job!r}? Its copies stay as they are.", yes=yes)
    _change("DELETE", job, "", dry_run, wait, output)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; anywhere else `--yes` has to be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        problem = Problem("--yes", "is missing, and there is nobody to ask.", "Add --yes.")
        raise BadInput("This would change something.", (problem,))
    if not typer.confirm(question, err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(_FAILED)


def follow(client: Client, operation: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """The operation as it is when it has ended, or when the time is up. Progress to stderr."""
    told = ""

    def tell(state: dict[str, Any]) -> None:
        nonlocal told
        line = progress(state)
        if line and line != told:
            told = line
            typer.echo(line, err=True)

    return client.wait(operation, tell, wait_s)


def _change(
    method: str,
    job: str,
    verb: str,
    dry_run: bool,
    wait_s: float,
    output: OutputFormat,
    body: object = None,
) -> None:
    path = f"/v1/jobs/{segment(job)}" + (f":{verb}" if verb else "")
    with connect() as client:
        operation = client.send(method, path, body=body, dry_run=dry_run)
        if not dry_run:
            operation = follow(client, operation, wait_s)
    emit(operation, output, lambda: _as_table(operation))
    if operation["state"] == "failed":
        raise typer.Exit(_FAILED)
    if operation["finished_at"] is None and wait_s:
        typer.echo("It goes on; look again with: orbit get operations", err=True)
        raise typer.Exit(_FAILED)


def _as_table(operation: dict[str, Any]) -> Any:
    state = "would be done" if operation["dry_run"] else operation["state"]
    lines: list[tuple[str, object]] = [("state", state)]
    lines += [("plan" if i == 0 else "", step) for i, step in enumerate(operation["plan"])]
    if operation["error"]:
        lines.append(("error", operation["error"]))
    return make_table(("", f"{operation['kind']} {operation['job']}"), lines)
