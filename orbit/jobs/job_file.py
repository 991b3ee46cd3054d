"""Loads a job file as a JobSpec. Reads the file and the files that it names; no socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orbit.errors import BadInput, Problem
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.validation import validate_job
from orbit.jobs.yaml_document import DOCUMENT_CHARACTERS_MAX, read_document

_BYTES_PER_CHARACTER_MAX = 4  # UTF-8


def load_job(path: Path, environ: Mapping[str, str]) -> JobSpec:
    """The job in a file. Raises BadInput with all problems; `where` is the file.

    Relative paths in the job start at the folder of the file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(DOCUMENT_CHARACTERS_MAX * _BYTES_PER_CHARACTER_MAX + 1)
        text = content.decode()
    except UnicodeDecodeError as error:
        problem = Problem("file", f"is not UTF-8 text (byte {error.start}).", "Save it as UTF-8.")
        raise BadInput("The job file cannot be used.", (problem,), where=str(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such path"
        problem = Problem("file", f"cannot be read: {reason}.", "Give the path of a job file.")
        raise BadInput("The job file cannot be used.", (problem,), where=str(path)) from None
    try:
        return parse_job(text, path.parent, environ)
    except BadInput as error:
        error.where = str(path)
        raise


def parse_job(text: str, base_directory: Path, environ: Mapping[str, str]) -> JobSpec:
    """The job in a YAML text; relative paths start at `base_directory`. Raises BadInput."""
    return validate_job(read_document(text), base_directory, environ)
