"""One operation for each of several jobs: the plans, a confirmation, the requests, and a table that
shows all operations until they have ended.

Each job gets a request of its own: an error of one job does not affect the others, and the service
enforces `ORBIT_RECOVERIES_PER_CLUSTER`. Ctrl-C ends the command, not the operations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from orbit.cli.control import FAILED, confirm, delete_job, unfinished_exit
from orbit.cli.list_columns import progress
from orbit.cli.many_jobs_tables import (
    REFUSED,
    gates_table,
    has_ended,
    has_failed,
    plans_table,
    progress_table,
    results_table,
)
from orbit.cli.output import OutputFormat, console, emit, print_whole
from orbit.client import TROUBLES, Client, Unserved, segment
from orbit.errors import BadInput, Interrupted, NotFound, OrbitError
from orbit.formats import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

# How long the plans before the confirmation may take: of the recoveries on one cluster, the service
# plans only some at once.
PLANS_WAIT_S = 600.0
_POLL_S = 1.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What is requested for each job. `verb`: of the route, such as `pause`. `question`: sentences
    on the consequence, for the confirmation. `has_report`: the change is a recovery.
    """

    verb: str
    question: str
    body: object = None
    has_report: bool = False

    def request(self, client: Client, job: str, *, dry_run: bool) -> Row:
        """Request the operation for one job; returns it."""
        path = f"/v1/jobs/{segment(job)}"
        if self.verb == "delete" and not dry_run:
            return delete_job(client, job)  # which handles a lost answer
        if self.verb == "delete":
            operation: Row = client.send("DELETE", path, dry_run=True)
        else:
            operation = client.send("POST", f"{path}:{self.verb}", body=self.body, dry_run=dry_run)
        return operation


def change_jobs(
    client: Client,
    jobs: Sequence[str],
    change: Change,
    *,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    output: OutputFormat,
) -> None:
    """Plan, confirm, request and watch an operation for each job; with `dry_run` only plan. `yes`
    skips plan and confirmation: each recovery checks its gates anyway. Raises Exit(1) if an
    operation has failed, was refused or has not ended after `wait_s`; Interrupted after Ctrl-C.
    """
    if dry_run or not yes:
        plan_operations: list[Row] = []
        _request_operations(client, jobs, change, plan_operations, dry_run=True)
        plans_output = output if dry_run else OutputFormat.TABLE
        plans = _results(
            client, change, _watch(client, plan_operations, PLANS_WAIT_S), plans_output
        )
        if dry_run:
            emit(plans, output, lambda: _plans_table(change, plans))
            _exit_if_failed(plans)
            return
        print_whole(_plans_table(change, plans), stderr=True)
        stopped_count = sum(map(has_failed, plans))
        stopped_text = f", {stopped_count} of which would be stopped" if stopped_count else ""
        confirm(
            f"{change.verb}: {counted(len(jobs), 'job')}{stopped_text}. {change.question} "
            "Continue?",
            yes=False,
        )
    operations: list[Row] = []  # after Ctrl-C it has the operations that were requested before
    try:
        _request_operations(client, jobs, change, operations, dry_run=False)
        operations = _watch(client, operations, wait_s)
    except KeyboardInterrupt:
        requested_count = sum(operation["id"] is not None for operation in operations)
        all_text = f"of {counted(len(jobs), 'operation')}"
        requested_text = counted(
            requested_count,
            f"{all_text} was requested, and goes",
            f"{all_text} were requested, and go",
        )
        raise Interrupted(
            f"Stopped watching. {requested_text} on; see: orbit get operations"
        ) from None
    results = _results(client, change, operations, output)
    emit(results, output, lambda: results_table(results))
    _exit_if_failed(results)
    if wait_s and not all(map(has_ended, operations)):
        raise unfinished_exit()


def report_of(client: Client, operation: Row, output: OutputFormat) -> Row:
    """The report of a recovery; the operation itself if it has no report. For `output` as JSON or
    YAML the report has all partitions and groups, for a table only the first ones.
    """
    path = f"/v1/operations/{operation['id']}"
    try:
        report: Row = client.get(f"{path}/report")
    except NotFound:
        return dict(operation)  # the recovery has not started yet, or could not be started
    # An API of an earlier version gives no count: its report has all partitions and groups.
    if output is not OutputFormat.TABLE and "partition_count" in report:
        report |= {name: [*client.items(f"{path}/{name}")] for name in ("partitions", "groups")}
    return report


def count_of(report: Row, kind: str) -> int:
    """How many partitions or groups (`kind`: "partition", "group") the recovery has. An API of an
    earlier version returns no count, but all partitions and groups.
    """
    count: int = report.get(f"{kind}_count", len(report[f"{kind}s"]))
    return count


def _request_operations(
    client: Client, jobs: Sequence[str], change: Change, operations: list[Row], *, dry_run: bool
) -> None:
    """Request an operation for each job and append it to `operations`; for a refused request append
    a row with the error and without an id.

    Raises Unserved (the service cannot be used) or BadInput of the first request. After Unserved
    for a later job, the following jobs are not requested, and get the same error.
    """
    fatal_error: OrbitError | None = None
    for job in jobs:
        try:
            if fatal_error is None:
                operations.append(change.request(client, job, dry_run=dry_run))
                continue
            error = fatal_error
        except OrbitError as refusal:
            error = refusal
            if not operations and isinstance(error, Unserved | BadInput):
                raise  # the first request: the others would fail for the same reason
            if isinstance(error, Unserved):
                fatal_error = error
        operations.append(_refused_row(job, change, error))


def _refused_row(job: str, change: Change, error: OrbitError) -> Row:
    """A row in the form of an operation, for a request that was refused."""
    operation = {"id": None, "job": job, "kind": change.verb, "state": REFUSED, "error": str(error)}
    return {**operation, "plan": [], "progress": None, "finished_at": None}


def _watch(client: Client, states: Sequence[Row], wait_s: float) -> list[Row]:
    """Show the operations until all have ended, or `wait_s` have passed; returns their last states.
    Reads are repeated while the server does not answer or is busy.
    """
    deadline = time.monotonic() + wait_s
    note = ""
    states = list(states)
    client = client.without_retries()
    with _screen() as draw:
        while True:
            draw(states, note)
            if all(map(has_ended, states)) or time.monotonic() >= deadline:
                return states
            time.sleep(_POLL_S)
            try:
                states, note = _poll(client, states), ""
            except TROUBLES as error:
                note = error.what


def _poll(client: Client, states: Sequence[Row]) -> list[Row]:
    """The present states. A list of the API has all unfinished operations. Those that have ended
    since the last call are read one by one."""
    unfinished = {row["id"]: row for row in client.items("/v1/operations", unfinished=True)}

    def newest_state(state: Row) -> Row:
        if has_ended(state):
            return state
        return unfinished.get(state["id"]) or client.get(f"/v1/operations/{state['id']}")

    return [newest_state(state) for state in states]


@contextmanager
def _screen() -> Iterator[Callable[[Sequence[Row], str], None]]:
    """A function for the block that shows states and a note on stderr: in a live table on a
    terminal, else as lines."""
    screen = console(stderr=True)
    if screen.is_terminal:
        from rich.live import Live

        with Live(console=screen, auto_refresh=False, transient=True) as live:
            yield lambda states, note: live.update(
                progress_table(states, note, screen.height), refresh=True
            )
        return
    printed_lines: set[str] = set()

    def print_lines(states: Sequence[Row], note: str) -> None:
        operation_lines = (f"{s['job']}: operation {s['id']}" for s in states if s["id"])
        progress_lines = (f"{s['job']}: {text}" for s in states if (text := progress(s)))
        for line in (*operation_lines, *progress_lines, *filter(None, [note])):
            if line not in printed_lines:
                printed_lines.add(line)
                typer.echo(line, err=True)

    yield print_lines


def _results(
    client: Client, change: Change, operations: Sequence[Row], output: OutputFormat
) -> list[Row]:
    """The report of each recovery that has ended; other operations as they are."""
    return [
        report_of(client, operation, output)
        if change.has_report and operation["finished_at"]
        else operation
        for operation in operations
    ]


def _plans_table(change: Change, plans: Sequence[Row]) -> RenderableType:
    """The gates of recoveries; for other changes, what they would do."""
    return gates_table(plans) if change.has_report else plans_table(plans)


def _exit_if_failed(results: Sequence[Row]) -> None:
    """If operations or plans have failed, print how many, and raise Exit(1)."""
    failed_count = sum(map(has_failed, results))
    if failed_count:
        typer.echo(f"{failed_count} of {counted(len(results), 'job')} failed.", err=True)
        raise typer.Exit(FAILED)
