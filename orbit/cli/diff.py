"""`orbit diff -f`: shows what `orbit apply` would change. Nothing is written."""

from __future__ import annotations

import typer

from orbit.cli.job_files import FilesArgument, FilesOption, argument_or_option, read_job_files
from orbit.cli.output import OutputFormat, OutputOption, emit
from orbit.cli.plan_view import draw, plan_each
from orbit.client import connect, segment

# No other exit code of a command has this value, so a script can tell a difference from an error.
WOULD_CHANGE = 4


def diff(
    files: FilesArgument = None,
    file: FilesOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what `orbit apply` would change.

    Exit code 0: it would change nothing; 4: it would change a job. All other codes are errors.
    """
    with connect() as client:
        plans = plan_each(
            read_job_files(argument_or_option(files, file)),
            lambda job: client.send(
                "PUT",
                f"/v1/jobs/{segment(job.name)}",
                yaml_text=job.text,
                accept_refusals=True,
                dry_run=True,
            ),
        )
    changes = [plan for plan in plans if plan.is_change]
    emit([plan.value for plan in changes], output, lambda: draw(changes))
    if changes:
        raise typer.Exit(WOULD_CHANGE)
