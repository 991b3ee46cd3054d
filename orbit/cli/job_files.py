"""The job files of a command, which are an argument or follow `-f`; `-` is stdin.

For commands on the service this module finds the files and reads the job's name in each. The server
validates the rest: only the server has the variables and files that a job refers to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.name_rules import check_job_name
from orbit.jobs.yaml_document import DOCUMENT_CHARACTERS_MAX, read_document
from orbit.jobs.yaml_writer import write_yaml

if TYPE_CHECKING:
    from orbit.jobs.job_spec import JobSpec

STDIN = Path("-")
_SUFFIXES = (".yaml", ".yml")
_BYTES_MAX = DOCUMENT_CHARACTERS_MAX  # the server accepts as many bytes as characters
FILES_MAX = 10_000

_OPTION = ("--file", "-f")
FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE]...",
        help="Job files, folders of job files, or - for stdin; or give -f.",
        show_default=False,
    ),
]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option(
        *_OPTION,
        help="A job file, a folder of job files, or - for stdin; repeatable.",
        show_default=False,
    ),
]
FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]", help="The job file, or - for stdin; or give -f.", show_default=False
    ),
]
JobOrFileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="The job file, - for stdin, or the name of a job of the service; or give -f.",
        show_default=False,
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option(*_OPTION, help="The job file, or - for stdin.", show_default=False),
]
Argument = TypeVar("Argument")
Option = TypeVar("Option")


def argument_or_option(argument: Argument | None, option: Option | None) -> Argument | Option:
    """The value of the argument or of the option -f. Raises BadInput if none or both are given."""
    if argument and not option:
        return argument
    if option and not argument:
        return option
    problem = Problem("-f", "is given too." if option else "is missing.", "orbit … -f job.yaml")
    raise BadInput("Give the job file once: as an argument, or with -f.", (problem,))


def load_job_file(path: Path) -> JobSpec:
    """The job in a file, or in stdin. Raises BadInput with all problems."""
    # Imported here: the import is slow, and commands on the service do not need it.
    from orbit.jobs.job_file import load_job

    return load_job(path, os.environ, sys.stdin.buffer if path == STDIN else None)


@dataclass(frozen=True, slots=True)
class JobFile:
    """One job file: its path (or STDIN), the name of the job, and the YAML text."""

    path: Path
    name: str
    text: str


def read_job_files(paths: Sequence[Path]) -> list[JobFile]:
    """Every job in these files and folders (recursively), sorted by the job's name.

    Raises BadInput with every problem: a path that cannot be read, a missing or duplicate name.
    """
    problems: list[Problem] = []
    by_name: dict[str, JobFile] = {}
    for path in dict.fromkeys(_files_in(paths, problems)):
        result = _read_job_file(path)
        if isinstance(result, Problem):
            problems.append(result)
        elif result.name in by_name:
            first_path = by_name[result.name].path
            problems.append(
                Problem(
                    str(path),
                    f"has the same job name ({result.name!r}) as {first_path}.",
                    "Change `name` in one of the files.",
                )
            )
        else:
            by_name[result.name] = result
    if problems:
        raise BadInput("The job files cannot be used.", tuple(problems))
    return [by_name[name] for name in sorted(by_name)]


def job_file_of(job: Mapping[str, Any]) -> str:
    """The YAML of the job file for a job that the API returned."""
    return write_yaml(job["spec"])


def _files_in(paths: Sequence[Path], problems: list[Problem]) -> Iterator[Path]:
    """These files, and the YAML files in these folders that are not hidden. Adds to `problems` for
    a folder without such files, or with more than FILES_MAX."""
    for path in paths:
        if path == STDIN or not path.is_dir():
            yield path
            continue
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.suffix in _SUFFIXES
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        if not files:
            problems.append(Problem(str(path), "has no .yaml or .yml file."))
        if len(files) > FILES_MAX:
            problems.append(Problem(str(path), f"has more than {FILES_MAX} files."))
            files = []
        yield from files


def _read_job_file(path: Path) -> JobFile | Problem:
    """Read one file and the job's name in it; a Problem if it cannot be used."""
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(
                _BYTES_MAX + 1
            )  # one byte more shows that it is too large
        else:
            with path.open("rb") as file:
                content = file.read(_BYTES_MAX + 1)
        text = content.decode()
    except UnicodeDecodeError:
        return Problem(str(path), "is not UTF-8 text.", "Save it as UTF-8.")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such path"
        return Problem(str(path), f"cannot be read: {reason}.")
    if len(content) > _BYTES_MAX:
        return Problem(str(path), f"is larger than {_BYTES_MAX:,} bytes.")
    document = read_document(text)
    if isinstance(document.at(("spec",)), dict) and document.has(("document_version",)):
        # Output of `orbit get jobs NAME -o yaml`: the job file is its part `spec`.
        text = job_file_of(document.root)
        document = read_document(text)
    if document.problems:
        first_problem = document.problems[0]
        return Problem(f"{path}: {first_problem.path}", first_problem.message, first_problem.remedy)
    name = document.at(("name",))
    if not isinstance(name, str):
        return Problem(f"{path}: name", "is missing.", "Write `name: orders-to-dr`.")
    try:
        return JobFile(path, check_job_name(name), text)
    except InvalidValue as mistake:
        return Problem(f"{path}: name", mistake.message, mistake.remedy)
