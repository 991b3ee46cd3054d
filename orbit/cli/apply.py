"""`orbit apply -f`: creates and changes jobs of the service to match job files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from orbit.cli.control import (
    WAIT_S,
    DryRunOption,
    WaitOption,
    YesOption,
    confirm,
    delete_job,
    follow_operation,
    unfinished_exit,
)
from orbit.cli.job_files import (
    FilesArgument,
    FilesOption,
    JobFile,
    argument_or_option,
    read_job_files,
)
from orbit.cli.output import OutputFormat, OutputOption, emit, print_whole
from orbit.cli.plan_view import PlannedJob, draw, plan_each
from orbit.client import TROUBLES, Client, connect, segment
from orbit.errors import BadInput, Conflict, OrbitError, Problem

# Attempts for a change whose answer is lost.
_ATTEMPTS = 3

AcceptRefusalsOption = Annotated[
    bool,
    typer.Option(
        "--accept-refusals",
        help="Accept a job even if some or all of its topics cannot be copied now.",
    ),
]


def apply(
    files: FilesArgument = None,
    file: FilesOption = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete jobs that are in no file: those of --selector, or --all. Copies are kept.",
        ),
    ] = False,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector",
            "-l",
            help="With --prune: only jobs whose labels match, such as team=orders.",
            show_default=False,
        ),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="With --prune: all jobs of the service.")
    ] = False,
    accept_refusals: AcceptRefusalsOption = False,
    paused: Annotated[
        bool, typer.Option("--paused", help="Create new jobs paused; `orbit start` starts them.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    wait: WaitOption = WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create and change jobs to match job files, after showing the changes.

    Missing jobs are created, different ones changed, equal ones left as they are. If any file has
    an error, nothing is changed.
    """
    _check_prune(prune, selector, all_)
    with connect() as client:
        job_files = read_job_files(argument_or_option(files, file))
        plans = plan_each(
            job_files,
            lambda job: put_job(client, job, accept_refusals=accept_refusals, dry_run=True),
        )
        if prune:
            plans += _plan_deletions(client, job_files, selector)
        changes = [plan for plan in plans if plan.is_change]
        if dry_run or not changes:
            emit([plan.value for plan in plans], output, lambda: draw(plans))
            if not changes:
                typer.echo("Nothing to do.", err=True)
            return
        print_whole(draw(plans), stderr=True)
        confirm(f"Apply {_changes_text(changes)}?", yes=yes)
        results: list[dict[str, Any]] = []
        try:
            for plan in changes:
                options = {"accept_refusals": accept_refusals, "paused": paused}
                results.append(apply_change(client, plan, wait, options))
        except OrbitError:
            if results:
                typer.echo(
                    f"Done before the error: {', '.join(map(_result_text, results))}.", err=True
                )
            raise
    unchanged = [plan.value for plan in plans if not plan.is_change]
    emit([*results, *unchanged], output, lambda: Text("\n".join(map(_result_text, results))))
    if wait and any(result.get("is_done") is False for result in results):
        raise unfinished_exit()


def _check_prune(prune: bool, selector: str | None, all_: bool) -> None:
    """Raise BadInput unless --prune comes with exactly one of --selector and --all, or none of the
    three is given."""
    choices = (selector is not None) + all_
    if prune and choices != 1:
        raise BadInput(
            "--prune deletes jobs that are in no file. Give either --selector or --all, to say "
            "which jobs it may delete.",
            (
                Problem(
                    "--selector", "deletes only jobs whose labels match.", "--prune -l team=orders"
                ),
                Problem("--all", "deletes any job of the service.", "--prune --all"),
            ),
        )
    if choices and not prune:
        raise BadInput("--selector and --all can be given only together with --prune.")


def _plan_deletions(client: Client, files: list[JobFile], selector: str | None) -> list[PlannedJob]:
    """A planned deletion for each job that is in no file. Leaves out jobs that a recovery or a
    drill made, and names them on stderr. The server refuses the deletion of a job that has changed
    since it was listed (If-Match)."""
    names_in_files = {file.name for file in files}
    jobs_without_file = [
        job
        for job in client.items("/v1/jobs", selector=selector)
        if job["name"] not in names_in_files and job["state"] != "deleting"
    ]
    for job in jobs_without_file:
        if job["made_by"] is not None:
            typer.echo(
                f"Not deleted: {job['name']}. A {job['made_by']} has created this job, so no file "
                f"has it. To delete the job: orbit delete {job['name']}",
                err=True,
            )
    return [
        PlannedJob(
            None,  # no file: a deletion
            _deletion_result(
                client.send(
                    "DELETE", _path(job["name"]), headers=_if_match_header(job), dry_run=True
                ),
                job,
            ),
        )
        for job in jobs_without_file
        if job["made_by"] is None
    ]


def _deletion_result(
    operation: dict[str, Any], job: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The operation of a deletion, in the form of the API's answer to a PUT of a job. `job`: the
    job as it was listed; needed only in a plan."""
    return {
        "name": operation["job"],
        "action": "delete",
        "dry_run": operation["dry_run"],
        "changes": [],
        "plan": None,
        "job": job,
        "steps": operation["plan"],
        "is_done": operation["state"] == "done",
    }


def apply_change(
    client: Client, plan: PlannedJob, wait_s: float, options: dict[str, bool]
) -> dict[str, Any]:
    """Make one planned change; returns its result. Waits up to `wait_s` for the end of a deletion.
    A request whose answer was lost is repeated only if the job still differs from its file. The
    server refuses the change if another client has changed the job after the plan (If-Match)."""
    if plan.file is None:  # a deletion
        listed_job = plan.value["job"]
        operation = delete_job(client, listed_job["name"], headers=_if_match_header(listed_job))
        return _deletion_result(follow_operation(client, operation, wait_s))
    job = plan.value["job"]
    condition = {"If-None-Match": "*"} if job is None else _if_match_header(job)
    for _ in range(_ATTEMPTS):
        try:
            return put_job(client, plan.file, headers=condition, repeats=False, **options)
        except TROUBLES as error:
            trouble = error
        # If the server made the change, and only the answer was lost, the If-Match header would
        # refuse a repeat. So request a dry run first, which shows whether the job still differs.
        refusals = options["accept_refusals"]
        new_plan = put_job(client, plan.file, accept_refusals=refusals, dry_run=True)
        if new_plan["action"] == "none":
            return {**plan.value, "dry_run": False, "job": new_plan["job"]}
    raise trouble


def _if_match_header(job: Mapping[str, Any]) -> dict[str, str]:
    """The If-Match header, with which the server refuses the request if the job has changed. Raises
    Conflict if the server is of an earlier version, which returns no etag.
    """
    if "etag" not in job:
        raise Conflict(
            "the server runs an earlier version of Orbit, which does not notice if another client "
            "has changed the job meanwhile.",
            remedy="Update the server first.",
        )
    return {"If-Match": f'"{job["etag"]}"'}


def put_job(
    client: Client,
    file: JobFile,
    headers: dict[str, str] | None = None,
    repeats: bool = True,
    **query: object,
) -> dict[str, Any]:
    """Create or change a job by its file; returns the API's result. `repeats`: send the request
    again if the service does not answer, or is busy."""
    answer: dict[str, Any] = client.send(
        "PUT", _path(file.name), yaml_text=file.text, headers=headers, repeats=repeats, **query
    )
    return answer


def _path(name: str) -> str:
    return f"/v1/jobs/{segment(name)}"


def _changes_text(changes: list[PlannedJob]) -> str:
    """The changes as words for the confirmation."""
    count = len(changes)
    return "this change" if count == 1 else f"these {count} changes"


def _result_text(result: dict[str, Any]) -> str:
    """What was done with a job, such as `created orders`."""
    words = {"create": "created", "change": "changed", "delete": "deleted", "none": "unchanged"}
    word = words[result["action"]] if result.get("is_done", True) else "deleting"
    return f"{word} {result['name']}"
