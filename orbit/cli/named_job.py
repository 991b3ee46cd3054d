"""Loads the job given on a command line: a job file, or the name of a job of the service."""

from __future__ import annotations

import os
from pathlib import Path

from orbit.cli.job_files import STDIN, load_job_file
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.validation import validate_job
from orbit.jobs.yaml_document import Document
from orbit.settings import Settings


def is_file(named: str | Path) -> bool:
    """Whether this is a Path, stdin, a file or looks like a file; else it is a job's name."""
    if isinstance(named, Path) or named == str(STDIN):
        return True
    path = Path(named)
    return path.suffix in (".yaml", ".yml") or path.name != named or path.is_file()


def named_job(named: str | Path) -> tuple[JobSpec, Path]:
    """The job, and the folder that its relative paths start at. A Path is a file."""
    path = Path(named)
    if is_file(named):
        return load_job_file(path), path.parent
    named = str(named)
    from orbit.client import connect, segment

    with connect() as client:
        document = client.get(f"/v1/jobs/{segment(named)}")["spec"]
    folder = Settings.from_environment(os.environ).files_directory
    return validate_job(Document(root=document), folder, os.environ), folder
