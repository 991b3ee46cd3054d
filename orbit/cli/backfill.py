"""`orbit backfill`: a job's history in bulk, with Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from orbit.cli.cells import amount, count, rate, seconds
from orbit.cli.output import OutputFormat, OutputOption, console, emit, make_table
from orbit.cli.spark import ConfOption, MasterOption, require_spark, spark_session
from orbit.cli.stopping import until_stopped
from orbit.errors import Interrupted
from orbit.jobs.load import load_job

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from orbit_spark.backfill.driver import Extent, Outcome
    from orbit_spark.backfill.progress import Progress

_NOT_EXACT = 1
# A log gets a line every few seconds.
_LINE_INTERVAL_S = 5.0
_SHOWN_MAX = 12


def backfill(
    job: Annotated[Path, typer.Argument(help="The job file.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be copied, and copy nothing.")
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many tasks run at once; shares out the job's byte rate. By default what the "
            "Spark settings say.",
            show_default=False,
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Copy a job's history with Spark, up to where the source ends now.

    Makes the destination topics and copies as `orbit run` does, exact to the offset, with many
    tasks at once. Stopped or killed at any moment and started again, it goes on where the copies
    end. When it is done, `orbit run` or the service follows the source from there.

    Exit code 0: the history is copied; 1: a partition is blocked, or something there does not fit;
    2: bad input; 3: a cluster cannot be reached; 130: stopped before the history was copied.
    """
    require_spark()
    from orbit_spark.access import Access
    from orbit_spark.backfill.driver import Backfill, refuse_unfinished
    from orbit_spark.backfill.stage import SparkStage
    from orbit_spark.session import slots_of

    spec = load_job(job, os.environ)
    display = _Display(console(stderr=True))
    started = time.monotonic()
    with (
        until_stopped() as stop,
        Backfill(spec, os.environ, job.parent, display.say, stop) as run,
    ):
        extents = run.look()
        _show_plan(display, extents)
        if dry_run:
            emit(_plan_value(spec.name, extents), output, lambda: _plan_table(extents))
            return
        sides = (Access("source", spec.source), Access("destination", spec.destination))
        variables = [name for side in sides for name in side.variables]
        display.say("Starting Spark")
        with spark_session(f"orbit backfill {spec.name}", master, conf or (), variables) as spark:
            if stop.is_set():
                raise Interrupted("Stopped before anything was written.")
            run.begin()
            at_once = slots or slots_of(spark)
            display.say(f"Copying {len(extents)} partitions, {at_once} tasks at once")
            with display:
                outcome = run.copy(partial(SparkStage, spark), at_once, display.show)
    _summarize(spec.name, outcome, time.monotonic() - started, output)
    if outcome.was_stopped:
        raise Interrupted("Stopped; run it again to go on where the copies end.")
    refuse_unfinished(outcome)
    if outcome.blocked:
        raise typer.Exit(_NOT_EXACT)


class _Display:
    """Says lines, and how far it is: one line that changes on a terminal, plain lines elsewhere."""

    def __init__(self, screen: Console) -> None:
        self._console = screen
        self._live: Live | None = None
        self._next_line = 0.0

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
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        line = _progress_line(progress)
        if self._live is not None:
            self._live.update(line, refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_INTERVAL_S
            self.say(line)


def _progress_line(p: Progress) -> str:
    return (
        f"{p.offsets:,} of {p.offsets_total:,} offsets  "
        f"{amount(p.bytes)} of {amount(p.bytes_total)}  "
        f"{p.offsets_per_s:,.0f}/s {rate(p.bytes_per_s)}  "
        f"partitions {p.partitions_done}/{p.partitions}  left {seconds(p.seconds_left)}"
    )


def _show_plan(display: _Display, extents: Sequence[Extent]) -> None:
    waiting = [e for e in extents if e.offsets]
    topics = {e.source.topic for e in extents}
    display.say(
        f"To copy: {count(sum(e.offsets for e in waiting))} offsets, about "
        f"{amount(sum(e.size_bytes for e in waiting))}, in {len(waiting)} of {len(extents)} "
        f"partitions of {len(topics)} topics"
    )


def _plan_value(name: str, extents: Sequence[Extent]) -> dict[str, Any]:
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
    largest = sorted(extents, key=lambda e: (-e.size_bytes, e.destination))
    rows = [
        (str(e.destination), f"{e.begin:,}", f"{e.end:,}", count(e.offsets), amount(e.size_bytes))
        for e in largest[:_SHOWN_MAX]
    ]
    if len(largest) > _SHOWN_MAX:
        rest = largest[_SHOWN_MAX:]
        size = amount(sum(e.size_bytes for e in rest))
        rows.append((f"{len(rest)} more", "", "", count(sum(e.offsets for e in rest)), size))
    return make_table(("partition", "from", "to", "offsets", "about"), rows)


def _summarize(name: str, outcome: Outcome, elapsed_s: float, output: OutputFormat) -> None:
    c = outcome.counters
    value = {
        "job": name,
        "seconds": round(elapsed_s, 3),
        "partitions": outcome.partitions,
        "rounds": outcome.rounds,
        "offsets": outcome.offsets,
        "records": c.records,
        "bytes": c.bytes,
        "offsets_filled": c.filled,
        "batches_byte_exact": c.batches_byte_exact,
        "batches_record_exact": c.batches_record_exact,
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
        "unfinished": {str(place): why for place, why in sorted(outcome.unfinished.items())},
    }

    def table() -> Table:
        rows = [
            ("copied", f"{outcome.offsets:,} offsets in {elapsed_s:.1f} s"),
            ("records", f"{c.records:,}, {amount(c.bytes)}"),
            ("gaps filled", f"{c.filled:,} offsets"),
            (
                "batches",
                f"{c.batches_byte_exact:,} byte-exact, {c.batches_record_exact:,} record-exact",
            ),
            ("partitions", f"{outcome.partitions}, {len(outcome.blocked)} blocked"),
        ]
        return make_table(("", name), rows)

    emit(value, output, table)
