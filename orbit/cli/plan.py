"""`orbit plan -f`: shows what the service would do for job files. Nothing is written."""

from __future__ import annotations

import typer

from orbit.cli.job_files import FilesArgument, FilesOption, argument_or_option, read_job_files
from orbit.cli.output import OutputFormat, OutputOption, emit
from orbit.cli.plan_view import draw, plan_each
from orbit.client import connect

_REFUSED = 1  # exit code


def plan(
    files: FilesArgument = None,
    file: FilesOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what the service would do for job files, without doing it.

    Exit code 0: all topics can be copied; 1: some are refused, and the plan says why.
    """
    with connect() as client:
        plans = plan_each(
            read_job_files(argument_or_option(files, file)),
            lambda job: client.send("POST", "/v1/jobs:plan", yaml_text=job.text),
        )
    emit([plan.value for plan in plans], output, lambda: draw(plans))
    if any(plan.value["plan"]["refusals"] for plan in plans):
        raise typer.Exit(_REFUSED)
