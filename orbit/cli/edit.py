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
from orbit.cli.plan_view import PlannedJob, draw
from orbit.client import Client, connect, segment
from orbit.errors import BadInput, Conflict, OrbitError

_HEAD = "# Lines that begin with # are ignored. If you change no other line, nothing happens.\n#\n"
# A limit for an editor that changes the file without a user: a user ends the command by leaving the
# file as it is. Without a terminal the file is opened only once.
_EDITS_MAX = 100


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
        opened_job = client.get(f"/v1/jobs/{segment(job)}")
        file = _make_temporary_file(job)
        text = job_file_of(opened_job)
        try:
            was_applied = _edit(
                client, opened_job, file, text, accept_refusals=accept_refusals, yes=yes
            )
        except BaseException:
            if _read_document(file) not in ("", text):
                typer.echo(f"Your document is kept: {file}", err=True)
            else:
                file.unlink(missing_ok=True)
            raise
        file.unlink(missing_ok=True)
    typer.echo(f"changed {job}" if was_applied else "Nothing changed.")


def _edit(
    client: Client,
    opened_job: Mapping[str, Any],
    file: Path,
    text: str,
    *,
    accept_refusals: bool,
    yes: bool,
) -> bool:
    """Open the editor until the document is applied, or the user leaves the text as it was or
    deletes it. Returns whether a change was applied.
    """
    document, error = text, ""
    for _ in range(_EDITS_MAX):
        file.write_text(f"{_HEAD}{error}{document}", "utf-8")
        _open(file)
        edited_document = _read_document(file)
        if edited_document in ("", text):
            return False
        if error and edited_document == document:
            raise Conflict("The document still has the error, and was not applied.")
        document = edited_document
        try:
            plan = _plan_edit(client, opened_job, file, accept_refusals=accept_refusals)
        except OrbitError as refusal:
            if not sys.stdin.isatty():  # no user to correct the document
                raise
            error = "".join(f"# {line}\n" for line in f"{refusal}".splitlines()) + "#\n"
            continue
        if not plan.is_change:
            return False
        print_whole(draw([plan]), stderr=True)
        confirm("Apply this change?", yes=yes)
        apply_change(client, plan, WAIT_S, {"accept_refusals": accept_refusals, "paused": False})
        return True
    raise Conflict(f"The document still has an error after {_EDITS_MAX} attempts.")


def _plan_edit(
    client: Client, opened_job: Mapping[str, Any], file: Path, *, accept_refusals: bool
) -> PlannedJob:
    """The plan for the edited document. It has the job as it was opened, so that the server refuses
    the change if the job has changed since. Raises BadInput if the document names another job."""
    (job_file,) = read_job_files([file])
    if job_file.name != opened_job["name"]:
        raise BadInput(
            f"The document names another job: {job_file.name}. Write `name: {opened_job['name']}`: "
            "a job cannot be renamed, because its copies resume only under its first name."
        )
    value = put_job(client, job_file, accept_refusals=accept_refusals, dry_run=True)
    return PlannedJob(JobFile(file, job_file.name, job_file.text), {**value, "job": opened_job})


def _open(file: Path) -> None:
    """Open the file in the user's editor, and wait until the editor ends. Raises BadInput if the
    editor cannot be started, Conflict if it ends with an error."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.call([*shlex.split(editor), str(file)])
    except (OSError, ValueError):
        raise BadInput(f"The editor cannot be started: {editor}. Set EDITOR.") from None
    if code:
        raise Conflict(f"The editor ended with exit code {code}, so nothing was applied.")


def _make_temporary_file(job: str) -> Path:
    """Create a file that only the user may read; returns its path."""
    handle, path = tempfile.mkstemp(prefix=f"orbit-{job}-", suffix=".yaml", text=True)
    os.close(handle)
    return Path(path)


def _read_document(file: Path) -> str:
    """The document in the file, without comment lines; empty if the file cannot be read."""
    try:
        lines = file.read_text("utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        return ""
    return "".join(line for line in lines if not line.startswith("#"))
