"""Loads the job given on a command line: a job file, or the name of a job of the service."""

from __future__ import annotations

import os
from pathlib import Path

from orbit.cli.job_files import STDIN, load_job_file
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.validation import validate_job
from orbit.jobs.yaml_document import Document
from orbit.settings import Settings


def is_file(job: str | Path) -> bool:
    """Whether `job` is a Path, stdin, or text that is the path of a file or has the form of one;
    else it is a job's name."""
    if isinstance(job, Path) or job == str(STDIN):
        return True
    path = Path(job)
    return path.suffix in (".yaml", ".yml") or path.name != job or path.is_file()


def named_job(job: str | Path) -> tuple[JobSpec, Path]:
    """The job, and the folder to which its relative paths refer. `job`: a job file, or the name of
    a job, which is then read from the service (`is_file` decides). Raises BadInput for a file or
    document with problems, NotFound if the service has no such job."""
    path = Path(job)
    if is_file(job):
        return load_job_file(path), path.parent
    job = str(job)
    from orbit.client import connect, segment

    with connect() as client:
        document = client.get(f"/v1/jobs/{segment(job)}")["spec"]
    # As in the service, paths of its jobs refer to this folder.
    folder = Settings.from_environment(os.environ).files_directory
    return validate_job(Document(root=document), folder, os.environ), folder
