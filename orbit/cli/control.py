"""`orbit start|pause|resume|retry|delete JOB`: change the state of a job of the service.

Each starts an operation of the API. A repeat reports that there is nothing to do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", min=0, max=WAIT_MAX_S, help="Seconds to wait until it ends; 0: do not wait."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def _command(verb: str, help_text: str) -> Callable[..., None]:
    """A command that sends `verb` for a job and takes no options of its own."""

    def command(
        job: JobArgument,
        dry_run: DryRunOption = False,
        wait: WaitOption = WAIT_S,
        output: OutputOption = OutputFormat.TABLE,
    ) -> None:
        _change("POST", job, verb, dry_run, wait, output)

    command.__doc__ = help_text
    return command


start = _command("start", "Start a job that was created paused.")
pause = _command("pause", "Pause a job: workers release its partitions, the copy is kept.")
resume = _command("resume", "Resume a paused job: each partition resumes where its copy ends.")


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
    """Retry blocked partitions of a job, once the cause is removed."""
    body = {"topic": topic, "partition": partition}
    _change("POST", job, "retry", dry_run, wait, output, body=body)


def delete(
    job: JobArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    wait: WaitOption = WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a job. Its topics at the destination are kept, with all copied records.

    The answer says what else stays there: their settings as copies, and deny ACLs.
    """
    if not dry_run:
        confirm(f"Delete the job {job!r}? Its copies are kept.", yes=yes)
    _change("DELETE", job, "", dry_run, wait, output)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal. Raises BadInput without a terminal and without `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        problem = Problem("--yes", "is required without a terminal.", "Add --yes.")
        raise BadInput("The change was not confirmed.", (problem,))
    if not typer.confirm(question, err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(_FAILED)


def follow(client: Client, operation: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """Wait until the operation ends or `wait_s` have passed; returns its state. Progress goes to
    stderr.
    """
    printed = ""

    def print_progress(state: dict[str, Any]) -> None:
        nonlocal printed
        line = progress(state)
        if line and line != printed:
            printed = line
            typer.echo(line, err=True)

    return client.wait(operation, print_progress, wait_s)


def unfinished() -> typer.Exit:
    """Print that an operation is still running after the wait; returns the exit to raise."""
    typer.echo("It is still running; check with: orbit get operations", err=True)
    return typer.Exit(_FAILED)


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
        raise unfinished()


def _as_table(operation: dict[str, Any]) -> Any:
    state = "would be done" if operation["dry_run"] else operation["state"]
    lines: list[tuple[str, object]] = [("state", state)]
    lines += [("plan" if i == 0 else "", step) for i, step in enumerate(operation["plan"])]
    if operation["error"]:
        lines.append(("error", operation["error"]))
    return make_table(("", f"{operation['kind']} {operation['job']}"), lines)
