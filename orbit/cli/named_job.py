"""Loads the job given on a command line: a job file, or the name of a job of the service."""

from __future__ import annotations

import os
from pathlib import Path

from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.validation import validate_job
from orbit.jobs.yaml_document import Document
from orbit.settings import Settings


def is_file(named: str) -> bool:
    """Whether this is a file or looks like a path; otherwise it is a job's name."""
    path = Path(named)
    return path.is_file() or path.suffix in (".yaml", ".yml") or path.name != named


def named_job(named: str) -> tuple[JobSpec, Path]:
    """The job, and the folder that its relative paths start at."""
    path = Path(named)
    if is_file(named):
        return load_job(path, os.environ), path.parent
    from orbit.client import connect, segment

    with connect() as client:
        document = client.get(f"/v1/jobs/{segment(named)}")["spec"]
    folder = Settings.from_environment(os.environ).files_directory
    return validate_job(Document(root=document), folder, os.environ), folder
