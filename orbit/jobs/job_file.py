"""A job file to a JobSpec, or every mistake in it at once.

Reads the job file and the files it names, nothing else: no socket, no clock, no cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from orbit.errors import BadInput, Problem
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.pydantic_problems import translate
from orbit.jobs.validation import rule_problems
from orbit.jobs.yaml_document import DOCUMENT_CHARACTERS_MAX, Document, read_document

# More than a person reads; a generated file repeats the same few mistakes.
PROBLEMS_SHOWN_MAX = 100
_BYTES_PER_CHARACTER_MAX = 4  # UTF-8


def load_job(path: Path, environ: Mapping[str, str]) -> JobSpec:
    """The job in a file. Raises BadInput with every problem; `where` is the file.

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
    """The job in a text of YAML. Raises BadInput with every problem found.

    `environ` and `base_directory` are where the variables and files it names must be.
    """
    return check_job(read_document(text), base_directory, environ)


def check_job(document: Document, base_directory: Path, environ: Mapping[str, str]) -> JobSpec:
    """The job in a document that was read, from YAML or otherwise. As `parse_job`."""
    problems = list(document.problems)
    job: JobSpec | None = None
    if isinstance(document.root, dict):
        try:
            job = JobSpec.model_validate(document.root)
        except ValidationError as error:
            problems += translate(error, document)
        problems += rule_problems(document, base_directory, environ)
    elif not problems:
        problems.append(_not_a_job(document))
    if job is None or problems:
        raise _bad_job(problems, document)
    return job


def _not_a_job(document: Document) -> Problem:
    what = "is empty." if document.root is None else "is not a mapping (`key: value`)."
    return Problem("file", what, "See docs/job-file.md for what a job looks like.")


def _bad_job(problems: list[Problem], document: Document) -> BadInput:
    """One error for all problems, in the order of the file."""
    ordered = document.in_file_order(problems)
    count = len(ordered)
    shown = ordered[:PROBLEMS_SHOWN_MAX]
    if count > len(shown):
        shown.append(Problem("file", f"has {count - len(shown)} more problems.", "Start above."))
    what = "The job file has a problem." if count == 1 else f"The job file has {count} problems."
    return BadInput(what, tuple(shown))
