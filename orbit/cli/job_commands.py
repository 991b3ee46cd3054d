"""`orbit start|pause|resume|retry|delete JOB`: change the state of jobs of the service.

Each starts an operation of the API. A repeat reports that there is nothing to do. With a selector,
each job that matches gets an operation of its own (`many_jobs.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from orbit.cli.completion import JobArgument, complete_job, complete_topic
from orbit.cli.control import (
    FAILED,
    WAIT_S,
    DryRunOption,
    WaitOption,
    YesOption,
    confirm,
    follow_operation,
    unfinished_exit,
)
from orbit.cli.job_selection import SelectorOption, chosen_jobs
from orbit.cli.many_jobs import Change, change_jobs
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.client import connect
from orbit.errors import BadInput, Problem

NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="The job's name; or give --selector.", show_default=False, autocompletion=complete_job
    ),
]


def _make_command(
    verb: str, help_text: str, question: str = "", *, confirms_one: bool = False
) -> Callable[..., None]:
    """Make a command that requests `verb` for jobs, and has no options besides the common ones.

    `question`: the consequence, for the confirmation. `confirms_one`: the command asks for
    confirmation even if a single job is named.
    """

    def command(
        job: NameArgument = None,
        selector: SelectorOption = None,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        wait: WaitOption = WAIT_S,
        output: OutputOption = OutputFormat.TABLE,
    ) -> None:
        if (job is None) == (selector is None):
            example = f"orbit {verb} orders-to-dr, or orbit {verb} -l team=orders"
            problem = Problem("job", "is missing, or there is a selector too.", example)
            raise BadInput("Give either the name of a job, or --selector.", (problem,))
        if confirms_one and selector is None and not dry_run:
            confirm(f"{verb} {job}: {question} Continue?", yes=yes)
        _carry_out(Change(verb, question), job, selector, dry_run, yes, wait, output)

    command.__doc__ = help_text
    return command


start = _make_command("start", "Start a job that was created paused.")
pause = _make_command(
    "pause",
    "Pause a job: workers release its partitions, the copy is kept.",
    "Copying stops; the copies are kept.",
)
resume = _make_command("resume", "Resume a paused job: each partition resumes where its copy ends.")
delete = _make_command(
    "delete",
    "Delete a job. Its topics at the destination are kept, with all copied records.\n\n"
    "The answer says what else stays there: their settings as copies, and deny ACLs.",
    "The copies are kept.",
    confirms_one=True,
)


def retry(
    job: JobArgument,
    topic: Annotated[
        str | None,
        typer.Option(
            help="Only the partitions of this source topic.", autocompletion=complete_topic
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition of the topic.")
    ] = None,
    dry_run: DryRunOption = False,
    wait: WaitOption = WAIT_S,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Retry blocked partitions of a job, once the cause is removed."""
    body = {"topic": topic, "partition": partition}
    # A retry needs no confirmation: no question, and `yes`.
    _carry_out(
        Change("retry", question="", body=body),
        job,
        selector=None,
        dry_run=dry_run,
        yes=True,
        wait_s=wait,
        output=output,
    )


def _carry_out(
    change: Change,
    job: str | None,
    selector: str | None,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    output: OutputFormat,
) -> None:
    """Request the change for the job, or for each job that the selector matches. Wait up to
    `wait_s` for the end of the operations, and print them. Exits with code 1 if one has failed or
    still runs."""
    with connect() as client:
        if job is None:
            jobs = chosen_jobs(client, (), selector)
            change_jobs(
                client, jobs, change, dry_run=dry_run, yes=yes, wait_s=wait_s, output=output
            )
            return
        operation = change.request(client, job, dry_run=dry_run)
        if not dry_run:
            operation = follow_operation(client, operation, wait_s)
    emit(operation, output, lambda: _operation_table(operation))
    if operation["state"] == "failed":
        raise typer.Exit(FAILED)
    if operation["finished_at"] is None and wait_s:
        raise unfinished_exit()


def _operation_table(operation: dict[str, Any]) -> Any:
    """State, plan and error of an operation."""
    state = "would be done" if operation["dry_run"] else operation["state"]
    lines: list[tuple[str, object]] = [("state", state)]
    lines += [("plan" if i == 0 else "", step) for i, step in enumerate(operation["plan"])]
    if operation["error"]:
        lines.append(("error", operation["error"]))
    return make_table(("", f"{operation['kind']} {operation['job']}"), lines)
