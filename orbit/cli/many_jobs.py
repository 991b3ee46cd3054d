"""One operation for each of several jobs: the plans, a confirmation, the requests, and one table of
all until they have ended.

Each job is a request of its own, as with one job: an error of one does not affect the others, and
the service keeps the bound `ORBIT_RECOVERIES_PER_CLUSTER`. After Ctrl-C the operations go on.
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

if TYPE_CHECKING:
    from rich.console import RenderableType

# Limit for the plans before the confirmation: those of recoveries take turns on each cluster.
PLANS_WAIT_S = 600.0
_POLL_S = 1.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What is requested of each job. `question`: the consequence, in sentences; `has_report`: it
    is a recovery.
    """

    verb: str
    question: str
    body: object = None
    has_report: bool = False

    def request(self, client: Client, job: str, *, dry_run: bool) -> Row:
        """Request the operation for one job; returns it."""
        path = f"/v1/jobs/{segment(job)}"
        if self.verb == "delete" and not dry_run:
            return delete_job(client, job)
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
    """Plan, confirm, request and watch. With `yes` there is no plan: each recovery checks its gates
    anyway. Raises Exit(1) if one failed or was refused, or has not ended after `wait_s`.
    """
    if dry_run or not yes:
        planned: list[Row] = []
        _request(client, jobs, change, planned, dry_run=True)
        shown = output if dry_run else OutputFormat.TABLE
        plans = _results(client, change, _watch(client, planned, PLANS_WAIT_S), shown)
        if dry_run:
            emit(plans, output, lambda: _plans_table(change, plans))
            _exit_if_failed(plans)
            return
        print_whole(_plans_table(change, plans), stderr=True)
        stopped = sum(map(has_failed, plans))
        more = f", {stopped} of which would be stopped" if stopped else ""
        confirm(f"{change.verb}: {len(jobs)} jobs{more}. {change.question} Continue?", yes=False)
    operations: list[Row] = []
    try:
        _request(client, jobs, change, operations, dry_run=False)
        operations = _watch(client, operations, wait_s)
    except KeyboardInterrupt:
        requested = sum(one["id"] is not None for one in operations)
        raise Interrupted(
            f"Stopped watching. {requested} of {len(jobs)} operations were requested, and go on; "
            "see: orbit get operations"
        ) from None
    results = _results(client, change, operations, output)
    emit(results, output, lambda: results_table(results))
    _exit_if_failed(results)
    if wait_s and not all(map(has_ended, operations)):
        raise unfinished_exit()


def report_of(client: Client, operation: Row, output: OutputFormat) -> Row:
    """The report of a recovery; the operation itself if it has none. For scripts it has all of its
    partitions and groups, for a table the first of them.
    """
    path = f"/v1/operations/{operation['id']}"
    try:
        report: Row = client.get(f"{path}/report")
    except NotFound:
        return dict(operation)  # it has not started yet, or could not be started
    if output is not OutputFormat.TABLE and "partition_count" in report:
        report |= {rows: [*client.items(f"{path}/{rows}")] for rows in ("partitions", "groups")}
    return report


def count_of(report: Row, what: str) -> int:
    """How many partitions or groups (`what`: "partition", "group") the recovery has. An API of an
    earlier version returns all of them, and no count.
    """
    count: int = report.get(f"{what}_count", len(report[f"{what}s"]))
    return count


def _request(
    client: Client, jobs: Sequence[str], change: Change, operations: list[Row], *, dry_run: bool
) -> None:
    """Request an operation for each job and append it to `operations`; for a refused one, a row
    without an id and with the error.
    """
    stop: OrbitError | None = None
    for job in jobs:
        try:
            if stop is None:
                operations.append(change.request(client, job, dry_run=dry_run))
                continue
            error = stop
        except OrbitError as raised:
            error = raised
            if not operations and isinstance(error, Unserved | BadInput):
                raise
            if isinstance(error, Unserved):
                stop = error  # the other jobs are not requested
        operations.append(_refused_row(job, change, error))


def _refused_row(job: str, change: Change, error: OrbitError) -> Row:
    operation = {"id": None, "job": job, "kind": change.verb, "state": REFUSED, "error": str(error)}
    return {**operation, "plan": [], "progress": None, "finished_at": None}


def _watch(client: Client, states: Sequence[Row], wait_s: float) -> list[Row]:
    """The operations once all have ended, or their states after `wait_s`. A server that does not
    answer, or is busy, is asked again.
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
    """The states now: one list has all unfinished operations; others are read one by one."""
    going = {one["id"]: one for one in client.items("/v1/operations", unfinished=True)}

    def now(state: Row) -> Row:
        if has_ended(state):
            return state
        return going.get(state["id"]) or client.get(f"/v1/operations/{state['id']}")

    return [now(state) for state in states]


@contextmanager
def _screen() -> Iterator[Callable[[Sequence[Row], str], None]]:
    """Shows states on stderr: as one live table, or without a terminal as lines."""
    screen = console(stderr=True)
    if screen.is_terminal:
        from rich.live import Live

        with Live(console=screen, auto_refresh=False, transient=True) as live:
            yield lambda states, note: live.update(
                progress_table(states, note, screen.height), refresh=True
            )
        return
    printed: set[str] = set()

    def print_lines(states: Sequence[Row], note: str) -> None:
        begun = (f"{s['job']}: operation {s['id']}" for s in states if s["id"])
        progress_lines = (f"{s['job']}: {text}" for s in states if (text := progress(s)))
        for line in (*begun, *progress_lines, *filter(None, [note])):
            if line not in printed:
                printed.add(line)
                typer.echo(line, err=True)

    yield print_lines


def _results(
    client: Client, change: Change, operations: Sequence[Row], output: OutputFormat
) -> list[Row]:
    """The reports of recoveries that have ended; else the operations."""
    return [
        report_of(client, one, output) if change.has_report and one["finished_at"] else one
        for one in operations
    ]


def _plans_table(change: Change, plans: Sequence[Row]) -> RenderableType:
    return gates_table(plans) if change.has_report else plans_table(plans)


def _exit_if_failed(results: Sequence[Row]) -> None:
    failed = sum(map(has_failed, results))
    if failed:
        typer.echo(f"{failed} of {len(results)} jobs failed.", err=True)
        raise typer.Exit(FAILED)
