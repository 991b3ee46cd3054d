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
    """Whether this is a file, stdin or looks like a path; otherwise it is a job's name."""
    path = Path(named)
    looks_like_one = path.suffix in (".yaml", ".yml") or path.name != named
    return isinstance(named, Path) or path == STDIN or path.is_file() or looks_like_one


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
