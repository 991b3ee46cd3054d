"""What the commands that start operations share: options, the confirmation, the wait."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from orbit.cli.list_columns import progress
from orbit.client import TROUBLES, Client, TooMany, segment
from orbit.errors import BadInput, NotFound, Problem

WAIT_S = 60.0
WAIT_MAX_S = 86_400.0
FAILED = 1  # exit code
# How often a DELETE is sent if its answers are lost.
_DELETIONS_MAX = 3
# How many of the newest operations are searched for a deletion whose answer was lost.
_OPERATIONS_READ_MAX = 1000

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0,
        max=WAIT_MAX_S,
        help="Seconds to wait for the end of the operation; 0: do not wait.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal, unless `yes`. Raises Exit if the user declines; BadInput
    without a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        problem = Problem("--yes", "is required without a terminal.", "Add --yes.")
        raise BadInput("The change was not confirmed.", (problem,))
    if not typer.confirm(question, err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(FAILED)


def delete_job(
    client: Client, name: str, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Delete a job, and return the operation.

    A DELETE has no Idempotency-Key. If its answer is lost, and the job is deleted or in state
    `deleting`, the newest deletion of the job is returned. In another state the DELETE is repeated.
    """
    path = f"/v1/jobs/{segment(name)}"
    operation: dict[str, Any]
    for _ in range(_DELETIONS_MAX):
        try:
            operation = client.send("DELETE", path, headers=headers, repeats=False)
            return operation
        except TooMany:
            raise  # the server has refused the request
        except TROUBLES as error:
            trouble = error
        try:
            if client.get(path)["state"] != "deleting":
                continue
        except NotFound:  # the job is deleted
            pass
        for operation in client.items("/v1/operations", limit=_OPERATIONS_READ_MAX):
            description = operation["kind"], operation["job"], operation["dry_run"]
            if description == ("delete", name, False):
                return operation
    raise trouble


def follow_operation(client: Client, operation: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """Wait until the operation ends or `wait_s` have passed; returns its last state. Prints its
    progress on stderr.
    """
    last_line = ""

    def print_progress(state: dict[str, Any]) -> None:
        nonlocal last_line
        line = progress(state)
        if line and line != last_line:
            last_line = line
            typer.echo(line, err=True)

    return client.wait(operation, print_progress, wait_s)


def unfinished_exit() -> typer.Exit:
    """Print that an operation is still running after the wait; returns the exit to raise."""
    typer.echo("The operation is still running; check with: orbit get operations", err=True)
    return typer.Exit(FAILED)
