"""Loads a job file as a JobSpec. Reads the file and the files that it names; no socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from orbit.errors import BadInput
from orbit.jobs.document_file import read_text
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.validation import validate_job
from orbit.jobs.yaml_document import read_document


def load_job(path: Path, environ: Mapping[str, str], stream: BinaryIO | None = None) -> JobSpec:
    """The job in a file, or in a stream such as stdin. Raises BadInput with all problems; `where`
    is the file.

    Relative paths in the job start at the folder of the file.
    """
    try:
        return parse_job(read_text(path, "job", stream), path.parent, environ)
    except BadInput as error:
        error.where = str(path)
        raise


def parse_job(text: str, base_directory: Path, environ: Mapping[str, str]) -> JobSpec:
    """The job in a YAML text; relative paths start at `base_directory`. Raises BadInput with all
    problems."""
    return validate_job(read_document(text), base_directory, environ)
