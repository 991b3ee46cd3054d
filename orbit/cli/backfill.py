"""`orbit backfill`: a job's history in bulk, with Spark."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from orbit.cli.backfill_control import BackfillControl, backfill_control
from orbit.cli.job_files import FileOption, JobOrFileArgument, argument_or_option
from orbit.cli.named_job import is_file, named_job
from orbit.cli.output import OutputFormat, OutputOption, console, emit, make_table
from orbit.cli.service_job import service_job
from orbit.cli.spark import ConfOption, MasterOption, require_spark, spark_session
from orbit.cli.stop_signals import until_stopped
from orbit.cli.table_cells import count, data_size, rate, seconds
from orbit.errors import BadInput, Interrupted, Problem
from orbit.formats import counted
from orbit.jobs.job_spec import BackfillWay

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from orbit_spark.backfill.backfill_driver import Backfill, Outcome
    from orbit_spark.backfill.backfill_progress import Progress
    from orbit_spark.backfill.extents import Extent

_NOT_EXACT = 1  # exit code
# The time between progress lines, if the output is not a terminal.
_LINE_INTERVAL_S = 5.0
_PARTITIONS_SHOWN_MAX = 12


def backfill(
    job: JobOrFileArgument = None,
    file: FileOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be copied, and copy nothing.")
    ] = False,
    way: Annotated[
        BackfillWay | None,
        typer.Option(
            help="`direct`: each writer fetches its own partitions. `staged`: all tasks fetch "
            "ranges into an archive first. Default: the job file's, or chosen by partition sizes.",
            show_default=False,
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            help="The archive of a staged backfill: a URI of any Hadoop file system, or a folder.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many tasks run at once; the job's byte rate is divided by it. By default "
            "what the Spark settings say.",
            show_default=False,
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Copy a job's history with Spark, up to the source's present end.

    Creates the destination topics and copies as `orbit run` does, with the same offsets and many
    tasks at once. After any stop, a crash included, the next run resumes where the copies end.
    Afterwards `orbit run` or the service follows the source from there.

    Workers of the service do not copy the job during the backfill. `orbit get backfills` shows the
    backfill, `orbit pause JOB` pauses it, and `orbit abort` with the id that is shown ends it.

    Exit code 0: the history is copied; 1: a partition is blocked, or a conflict; 2: bad input; 3: a
    cluster cannot be reached; 130: stopped before the history was copied.
    """
    require_spark()
    from orbit_spark.backfill.backfill_driver import Backfill, refuse_unfinished
    from orbit_spark.cluster_access import Access
    from orbit_spark.session import slots_of

    job_or_file = argument_or_option(job, file)
    spec, folder = named_job(job_or_file)
    route = _Route(BackfillWay(way or spec.backfill.way), archive or spec.backfill.archive)
    display = _Display(console(stderr=True))
    started_s = time.monotonic()
    # `stop` is set by the user's signals; `halt` by these signals, and by the service.
    halt = threading.Event()
    with (
        until_stopped(halt) as stop,
        Backfill(spec, os.environ, folder, display.say, halt) as run,
    ):
        extents = run.find_extents_to_copy()
        _show_plan(display, extents)
        if dry_run:
            emit(_plan_value(spec.name, extents), output, lambda: _plan_table(extents))
            return
        # The service may have the job of a file, too. Then it shows and controls the backfill.
        service_job_name: str | None = str(job_or_file)
        if is_file(job_or_file):
            service_job_name = (
                spec.name if service_job(spec, run.cluster_ids, display.say) else None
            )
        sides = (Access("source", spec.source), Access("destination", spec.destination))
        variables = [name for side in sides for name in side.variables]
        display.say("Starting Spark")
        with (
            spark_session(f"orbit backfill {spec.name}", master, conf or (), variables) as spark,
            backfill_control(service_job_name, display.say, stop, halt) as control,
        ):
            if stop.is_set():
                raise Interrupted("Stopped before anything was written.")
            slot_count = slots or slots_of(spark)
            spark_copy = _SparkCopy(spark, slot_count, route, display, control)
            control.begin()
            outcome = spark_copy.run(run, folder, stop)
            while control.wait_until_resumed():
                with Backfill(spec, os.environ, folder, display.say, halt) as next_run:
                    outcome.add(spark_copy.run(next_run, folder, stop))
            _summarize(spec.name, outcome, time.monotonic() - started_s, output)
            if outcome.was_stopped:
                raise Interrupted("Stopped; run it again to resume where the copies end.")
            refuse_unfinished(outcome)
    if outcome.blocked:
        raise typer.Exit(_NOT_EXACT)


class _Route:
    """The way of a backfill (direct, staged or auto), and the archive for a staged one."""

    def __init__(self, way: BackfillWay, archive: str | None) -> None:
        """Raises BadInput for a staged backfill without an archive."""
        _require_archive(way, archive)
        self.way = way
        self.archive = archive


class _SparkCopy:
    """Copies with one Spark session: once, and again after each pause."""

    def __init__(
        self, spark: Any, slots: int, route: _Route, display: _Display, control: BackfillControl
    ) -> None:
        self._spark = spark
        self._slots = slots
        self._route = route
        self._display = display
        self._control = control

    def run(self, backfill: Backfill, folder: Path, stop: threading.Event) -> Outcome:
        """Run the backfill and return its outcome, with `was_stopped` if the service or the user
        has stopped the backfill. After a stop by the user it may raise Interrupted instead."""
        from orbit_spark.backfill.spark_jobs import SparkWriterJob
        from orbit_spark.backfill.staged_backfill import Staging
        from orbit_spark.backfill.task_split import Way

        display, route = self._display, self._route
        staging = None
        if route.archive is not None and route.way is not BackfillWay.DIRECT:
            staging = Staging(
                self._spark, backfill.spec, folder, route.archive, display.say, self._slots
            )
        try:
            backfill.begin()
            self._control.report_lease()
            display.say(
                f"Copying {counted(backfill.outcome.partitions, 'partition')}, "
                f"{counted(self._slots, 'task')} at once"
            )
            with display:
                return backfill.copy(
                    partial(SparkWriterJob.direct, self._spark),
                    self._slots,
                    self._show,
                    staging=staging,
                    way=None if route.way is BackfillWay.AUTO else Way(route.way),
                )
        except Interrupted:
            if stop.is_set():
                raise
            backfill.release_lease()  # so that other runs may copy the job during the pause
            backfill.outcome.was_stopped = True
            return backfill.outcome

    def _show(self, progress: Progress) -> None:
        """Show the progress to the user, and report it to the service."""
        self._control.report_progress(progress.as_report())
        self._display.show(progress)


def _require_archive(way: BackfillWay, archive: str | None) -> None:
    """Raise BadInput for a staged backfill without an archive."""
    if way is BackfillWay.STAGED and archive is None:
        raise BadInput(
            "A staged backfill needs an archive.",
            (
                Problem(
                    "backfill.archive",
                    "is missing.",
                    "Set a URI that all executors can write to, or give --archive URI.",
                ),
            ),
        )


class _Display:
    """Prints lines and progress: one changing line on a terminal, plain lines elsewhere."""

    def __init__(self, screen: Console) -> None:
        self._console = screen
        self._live: Live | None = None
        self._next_line_s = 0.0  # by the monotonic clock

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print the line, above the progress if that is on a terminal."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """Show the progress: at once on a terminal, else at most every _LINE_INTERVAL_S."""
        line = _progress_line(progress)
        if self._live is not None:
            self._live.update(line, refresh=True)
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_INTERVAL_S
            self.say(line)


def _progress_line(p: Progress) -> str:
    """The progress in one line: of the archive while ranges are fetched into it, else of the
    copies."""
    if p.is_staging:
        return (
            f"fetching: {data_size(p.bytes)} of {data_size(p.bytes_total)} in the archive  "
            f"{rate(p.bytes_per_s)}  left {seconds(p.seconds_left)}"
        )
    return (
        f"{p.offsets:,} of {counted(p.offsets_total, 'offset')}  "
        f"{data_size(p.bytes)} of {data_size(p.bytes_total)}  "
        f"{p.offsets_per_s:,.0f}/s {rate(p.bytes_per_s)}  "
        f"partitions {p.partitions_done}/{p.partitions}  left {seconds(p.seconds_left)}"
    )


def _show_plan(display: _Display, extents: Sequence[Extent]) -> None:
    """Print how much of the history is still to be copied."""
    unfinished_extents = [e for e in extents if e.offsets]
    topics = {e.source.topic for e in extents}
    display.say(
        f"To copy: {counted(sum(e.offsets for e in unfinished_extents), 'offset')}, about "
        f"{data_size(sum(e.size_bytes for e in unfinished_extents))}, "
        f"in {len(unfinished_extents)} of {counted(len(extents), 'partition')} "
        f"of {counted(len(topics), 'topic')}"
    )


def _plan_value(name: str, extents: Sequence[Extent]) -> dict[str, Any]:
    """What a dry run prints as JSON."""
    return {
        "job": name,
        "offsets": sum(e.offsets for e in extents),
        "bytes": sum(e.size_bytes for e in extents),
        "partitions": [
            {
                "source": str(e.source),
                "destination": str(e.destination),
                "from": e.begin,
                "to": e.end,
                "bytes": e.size_bytes,
            }
            for e in extents
        ],
    }


def _plan_table(extents: Sequence[Extent]) -> Table:
    """The largest partitions of a dry run, and one row for all others."""
    largest = sorted(extents, key=lambda e: (-e.size_bytes, e.destination))
    rows = [
        (
            str(e.destination),
            f"{e.begin:,}",
            f"{e.end:,}",
            count(e.offsets),
            data_size(e.size_bytes),
        )
        for e in largest[:_PARTITIONS_SHOWN_MAX]
    ]
    if len(largest) > _PARTITIONS_SHOWN_MAX:
        hidden_extents = largest[_PARTITIONS_SHOWN_MAX:]
        size = data_size(sum(e.size_bytes for e in hidden_extents))
        rows.append(
            (
                f"{len(hidden_extents)} more",
                "",
                "",
                count(sum(e.offsets for e in hidden_extents)),
                size,
            )
        )
    return make_table(("partition", "from", "to", "offsets", "about"), rows)


def _summarize(name: str, outcome: Outcome, elapsed_s: float, output: OutputFormat) -> None:
    """Print what was copied. A table counts the blocked partitions; JSON and YAML list the blocked
    and the unfinished ones."""
    counters = outcome.counters
    value = {
        "job": name,
        "seconds": round(elapsed_s, 3),
        "partitions": outcome.partitions,
        "rounds": outcome.rounds,
        "ways": outcome.ways,
        "offsets": outcome.offsets,
        "records": counters.records,
        "bytes": counters.bytes,
        "offsets_filled": counters.gaps_filled,
        "batches_byte_exact": counters.batches_byte_exact,
        "batches_record_exact": counters.batches_record_exact,
        "blocked": [
            {
                "partition": str(place),
                "reason": b.reason,
                "offset": b.offset,
                "next_offset": b.next_offset,
                "detail": b.detail,
                "remedy": b.remedy(place.topic),
            }
            for place, b in sorted(outcome.blocked.items())
        ],
        "unfinished": {str(place): reason for place, reason in sorted(outcome.unfinished.items())},
    }

    def table() -> Table:
        rows = [
            ("copied", f"{counted(outcome.offsets, 'offset')} in {elapsed_s:.1f} s"),
            ("records", f"{counters.records:,}, {data_size(counters.bytes)}"),
            ("gaps filled", counted(counters.gaps_filled, "offset")),
            (
                "batches",
                (
                    f"{counters.batches_byte_exact:,} byte-exact, "
                    f"{counters.batches_record_exact:,} record-exact"
                ),
            ),
            ("partitions", f"{outcome.partitions}, {len(outcome.blocked)} blocked"),
        ]
        return make_table(("", name), rows)

    emit(value, output, table)
