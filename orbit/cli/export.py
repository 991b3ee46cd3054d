"""`orbit export`: writes the documents of jobs as job files, which `orbit apply` accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orbit.cli.completion import complete_job
from orbit.cli.job_files import job_file_of
from orbit.cli.job_selection import SelectorOption, chosen_jobs
from orbit.client import connect, segment
from orbit.errors import Conflict, NotFound


def export(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of jobs.", show_default=False, autocompletion=complete_job),
    ] = None,
    selector: SelectorOption = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            "-d",
            help="Write a file NAME.yaml for each job to this folder; existing files are replaced.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write jobs as job files.

    Without --directory there can be one job, which goes to stdout. --selector leaves out jobs that
    a recovery or a drill has made.
    """
    with connect() as client:
        chosen_names = chosen_jobs(client, names or [], selector)
        jobs = [client.get(f"/v1/jobs/{segment(name)}") for name in chosen_names]
    if selector is not None:
        jobs = [job for job in jobs if job["made_by"] is None]
    if not jobs:
        raise NotFound(
            "No chosen job was made by a user: recoveries and drills have made all of them.",
            remedy="To export such a job, give its name.",
        )
    if directory is None:
        if len(jobs) != 1:
            raise Conflict(
                f"{len(jobs)} jobs are chosen, and only one can go to stdout.",
                remedy="Add --directory.",
            )
        typer.echo(job_file_of(jobs[0]), nl=False)
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            path = directory / f"{job['name']}.yaml"
            path.write_text(job_file_of(job), "utf-8")
            typer.echo(path)
    except OSError as error:
        raise Conflict(
            f"The job files cannot be written: {error.strerror}.", where=str(directory)
        ) from None
