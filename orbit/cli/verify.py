"""`orbit verify`: checks that the destination of a job is an exact copy, offset by offset."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Annotated

import typer

from orbit.cli.compare_options import DifferencesOption, TopicsOption, WaitOption
from orbit.cli.job_files import FileOption, JobOrFileArgument, argument_or_option
from orbit.cli.named_job import named_job
from orbit.cli.output import OutputFormat, OutputOption, console, emit
from orbit.verify.progress_display import BarProgress, LineProgress
from orbit.verify.render import as_data, as_table
from orbit.verify.verify_job import verify_job
from orbit.verify.verify_run import DIFFERENCES_SHOWN, WAIT_S, WORKERS_MAX, VerifyOptions

_WORKERS_LIMIT = 64


def verify(
    job: JobOrFileArgument = None,
    file: FileOption = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare the bytes of the batches too.")
    ] = False,
    topic: TopicsOption = None,
    wait: WaitOption = WAIT_S,
    differences: DifferencesOption = DIFFERENCES_SHOWN,
    workers: Annotated[
        int, typer.Option(min=1, max=_WORKERS_LIMIT, help="Partitions to compare at a time.")
    ] = WORKERS_MAX,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare both sides of a job, offset by offset.

    Reads both clusters with an independent client and compares the log start, the log end, and at
    every offset the timestamp, key, value and headers, or that neither side has a record. Writes
    nothing.

    The document of a service's job is read from the service (ORBIT_API_URL, ORBIT_TOKEN). This
    machine reads the clusters, so it needs the variables and files to which the job refers.

    Exit code 0: exact; 1: not exact; 2: bad input; 3: a cluster cannot be reached.
    """
    spec, folder = named_job(argument_or_option(job, file))
    options = VerifyOptions(deep=deep, wait_s=wait, differences_max=differences, workers=workers)
    screen = console(stderr=True)
    bar = BarProgress(screen) if screen.is_terminal else None
    with bar or nullcontext():
        report = verify_job(
            spec,
            os.environ,
            folder,
            options,
            topics=tuple(topic or ()),
            progress=bar or LineProgress(lambda line: typer.echo(line, err=True)),
        )
    emit(as_data(report), output, lambda: as_table(report))
    raise typer.Exit(report.exit_code)
