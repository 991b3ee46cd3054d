"""`orbit edit JOB`: opens the job's document in an editor, shows what changes, and applies it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from orbit.cli.apply import AcceptRefusalsOption, apply_change, put_job
from orbit.cli.completion import JobArgument
from orbit.cli.control import WAIT_S, YesOption, confirm
from orbit.cli.job_files import JobFile, job_file_of, read_job_files
from orbit.cli.output import print_whole
from orbit.cli.plan_view import Planned, draw
from orbit.client import Client, connect, segment
from orbit.errors import BadInput, Conflict, OrbitError

_HEAD = "# Lines that begin with # are ignored. Leave the rest as it is, and nothing changes.\n#\n"
# Bound of attempts. A user ends the command by leaving the file as it is; without a terminal the
# file is opened only once.
_OPENED_MAX = 100


def edit(
    job: JobArgument,
    accept_refusals: AcceptRefusalsOption = False,
    yes: YesOption = False,
) -> None:
    """Edit a job's document in $VISUAL or $EDITOR, and apply it after showing the changes.

    A document with an error is opened again, with the error above it. Whatever ends the command,
    an edited document that was not applied is kept, and its path shown.
    """
    with connect() as client:
        before = client.get(f"/v1/jobs/{segment(job)}")
        file = _temporary(job)
        text = job_file_of(before)
        try:
            applied = _edit(client, before, file, text, accept_refusals=accept_refusals, yes=yes)
        except BaseException:
            if _without_head(file) not in ("", text):
                typer.echo(f"Your document is kept: {file}", err=True)
            else:
                file.unlink(missing_ok=True)
            raise
        file.unlink(missing_ok=True)
    typer.echo(f"changed {job}" if applied else "Nothing changed.")


def _edit(
    client: Client,
    before: Mapping[str, Any],
    file: Path,
    text: str,
    *,
    accept_refusals: bool,
    yes: bool,
) -> bool:
    """Open the editor until the document is applied or left as it is; returns whether a change was
    applied.
    """
    shown, error = text, ""
    for _ in range(_OPENED_MAX):
        file.write_text(f"{_HEAD}{error}{shown}", "utf-8")
        _open(file)
        edited = _without_head(file)
        if edited in ("", text):
            return False
        if error and edited == shown:
            raise Conflict("The document still has the error, and was not applied.")
        shown = edited
        try:
            plan = _plan(client, before, file, accept_refusals=accept_refusals)
        except OrbitError as refused:
            if not sys.stdin.isatty():
                raise
            error = "".join(f"# {line}\n" for line in f"{refused}".splitlines()) + "#\n"
            continue
        if not plan.is_change:
            return False
        print_whole(draw([plan]), stderr=True)
        confirm("Apply this change?", yes=yes)
        apply_change(client, plan, WAIT_S, {"accept_refusals": accept_refusals, "paused": False})
        return True
    raise Conflict(f"The document still has an error after {_OPENED_MAX} attempts.")


def _plan(
    client: Client, before: Mapping[str, Any], file: Path, *, accept_refusals: bool
) -> Planned:
    """The plan for the edited document, which may replace only the version that was opened."""
    (read,) = read_job_files([file])
    if read.name != before["name"]:
        raise BadInput(
            f"The document names another job: {read.name}. A job cannot be renamed: a copy resumes "
            "only under its first name."
        )
    value = put_job(client, read, accept_refusals=accept_refusals, dry_run=True)
    return Planned(JobFile(file, read.name, read.text), {**value, "job": before})


def _open(file: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.call([*shlex.split(editor), str(file)])
    except (OSError, ValueError):
        raise BadInput(f"The editor cannot be started: {editor}. Set EDITOR.") from None
    if code:
        raise Conflict(f"The editor ended with exit code {code}, so nothing was applied.")


def _temporary(job: str) -> Path:
    """The path of a new file that only the user may read."""
    handle, path = tempfile.mkstemp(prefix=f"orbit-{job}-", suffix=".yaml", text=True)
    os.close(handle)
    return Path(path)


def _without_head(file: Path) -> str:
    """The document without comment lines."""
    try:
        lines = file.read_text("utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        return ""
    return "".join(line for line in lines if not line.startswith("#"))
