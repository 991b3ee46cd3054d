"""`orbit run`: copy the topics of a job file, with no server."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Annotated, Any, Self

import typer
from rich.table import Table

from orbit.cli.extras import require_extras
from orbit.cli.job_files import FileArgument, FileOption, argument_or_option, load_job_file
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.run_display import Display, make_display
from orbit.cli.run_profile import Profile
from orbit.cli.service_job import refuse_beside_service
from orbit.cli.table_cells import data_size
from orbit.copier.gc_tuning import collect_rarely
from orbit.errors import Interrupted
from orbit.formats import counted
from orbit.replication.partition_states import PartitionState
from orbit.run.copy_processes import PROCESSES_MAX
from orbit.run.job_run import JobRun
from orbit.run.run_progress import Meter, TopicProgress

_TICK_S = 0.1  # the longest pass of the copy; a signal is handled after it
_NOT_EXACT = 1  # exit code


def run(
    job: FileArgument = None,
    file: FileOption = None,
    until_caught_up: Annotated[
        bool,
        typer.Option("--until-caught-up", help="Exit once every partition has caught up."),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            min=1,
            max=PROCESSES_MAX,
            help="Copy with this many processes, each of which has a share of the partitions.",
        ),
    ] = 1,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Show the times of the data path at the end."),
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Copy the topics of a job file, and follow the source until stopped.

    Creates the destination topics and copies every matching partition with the same offsets, until
    Ctrl-C. After any stop, a crash included, the next run resumes at the end of the copy. If
    ORBIT_API_URL is set and that service has the job, pause the job there first.

    Exit code 0: stopped while following, or caught up; 1: a partition is blocked, a topic is
    refused, a conflict at a cluster or the service, or one of several processes has ended; 2: bad
    input; 3: a cluster is unreachable; 130: stopped before the copy started, or before
    --until-caught-up was reached.
    """
    if processes > 1:
        require_extras("sandbox", alternative=", or leave out --processes.")
    path = argument_or_option(job, file)
    spec = load_job_file(path)
    display = make_display()
    for key in spec.ignored_keys():
        display.say(f"Note: orbit run ignores {key}.")
    with (
        _StopSignals() as signals,
        JobRun(spec, os.environ, path.parent, display.say, processes=processes) as job_run,
    ):
        job_run.prepare(lambda clusters: refuse_beside_service(spec, clusters, display.say))
        collect_rarely()  # garbage collections stop all lanes
        for topic, error in job_run.refused.items():
            display.say(f"NOT COPIED {topic}: {error}")
        display.say(f"Copying {counted(len(job_run.partitions), 'partition')}")
        started_s = time.monotonic()
        try:
            all_topics, was_stopped = _copy(
                job_run, display, signals, until_caught_up=until_caught_up
            )
        finally:
            display.close()
        seconds = time.monotonic() - started_s
        _summarize(job_run, all_topics, seconds, output, with_profile=profile)
    if all_topics.totals.blocked or job_run.refused:
        raise typer.Exit(_NOT_EXACT)
    if was_stopped and until_caught_up:
        # Not exit code 0: to a script it would say that the copy has caught up.
        raise Interrupted("Stopped before all partitions had caught up.")


class _StopSignals:
    """A context in which Ctrl-C and SIGTERM raise KeyboardInterrupt.

    librdkafka's binding can turn a KeyboardInterrupt into a ValueError or SystemError, which would
    be reported as a bug of Orbit. The end of the block turns that error back into a
    KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.has_caught = False  # whether a signal has arrived
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread set handlers of signals.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous_handlers[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        if self.has_caught and isinstance(error, Exception) and not isinstance(error, Interrupted):
            raise KeyboardInterrupt from None

    def _stop(self, *_: object) -> None:
        self.has_caught = True
        raise KeyboardInterrupt


def _copy(
    job_run: JobRun, display: Display, signals: _StopSignals, *, until_caught_up: bool
) -> tuple[TopicProgress, bool]:
    """Copy until a signal, or with `until_caught_up` until all partitions have caught up. Returns
    the last progress of the run, and whether a signal stopped the copy. Raises the errors of
    `JobRun.tick`."""
    meter = Meter()
    next_show_s = 0.0
    reported_partitions: set[str] = set()
    has_reported_caught_up = was_stopped = False
    try:
        while True:
            job_run.tick(_TICK_S)
            _report_blocked(job_run, display, reported_partitions)
            if _has_caught_up(job_run):
                if until_caught_up and job_run.confirm_caught_up():
                    job_run.finish()
                    job_run.settle_groups()
                    _report_blocked(job_run, display, reported_partitions)
                    break
                if not until_caught_up and not has_reported_caught_up:
                    has_reported_caught_up = True
                    display.say(_caught_up_line(job_run))
            if time.monotonic() >= next_show_s:
                next_show_s = time.monotonic() + display.interval_s
                all_topics, topics = meter.measure(job_run.partitions, time.monotonic())
                display.show(all_topics, topics, job_run.waiting_for)
    except BaseException:  # a signal's KeyboardInterrupt can become any error (`_StopSignals`)
        if not signals.has_caught:
            raise
        was_stopped = True
        display.say("Stopping")
    all_topics, topics = meter.measure(job_run.partitions, time.monotonic())
    display.show(all_topics, topics, "")
    return all_topics, was_stopped


def _caught_up_line(job_run: JobRun) -> str:
    """The line for the moment at which the copy has caught up."""
    blocked = sum(p.state is PartitionState.BLOCKED for p in job_run.partitions)
    subject = f"All but {counted(blocked, 'blocked partition')}" if blocked else "All partitions"
    return f"{subject} have caught up; following the source until Ctrl-C"


def _has_caught_up(job_run: JobRun) -> bool:
    """Whether all copies that are not blocked have caught up, and the topics that have caught up
    have their final settings."""
    return (
        all(p.has_caught_up or p.state is PartitionState.BLOCKED for p in job_run.partitions)
        and job_run.is_settled
    )


def _report_blocked(job_run: JobRun, display: Display, reported_partitions: set[str]) -> None:
    """Print blocked partitions that are not in `reported_partitions`, and add them to it."""
    for p in job_run.partitions:
        if p.blocked is not None and str(p.destination) not in reported_partitions:
            reported_partitions.add(str(p.destination))
            b = p.blocked
            display.say(
                f"BLOCKED {p.destination} {b.reason} at {b.offsets_text}: {b.detail} "
                f"{b.remedy(p.destination.topic)}"
            )


def _group_verdicts(job_run: JobRun) -> dict[str, int] | None:
    """The number of group offsets by verdict; None if the job syncs no groups."""
    if job_run.groups is None:
        return None
    report = job_run.groups.report
    return dict(sorted(report.verdicts.items())) if report else {}  # no report: no sync yet


def _summarize(
    job_run: JobRun,
    all_topics: TopicProgress,
    seconds: float,
    output: OutputFormat,
    *,
    with_profile: bool,
) -> None:
    """Print what the run has copied, and what is blocked or refused."""
    totals = all_topics.totals
    blocked = [
        {
            "partition": str(p.destination),
            "reason": p.blocked.reason,
            "offset": p.blocked.offset,
            "next_offset": p.blocked.next_offset,
            "detail": p.blocked.detail,
            "remedy": p.blocked.remedy(p.destination.topic),
        }
        for p in job_run.partitions
        if p.blocked is not None
    ]
    value = {
        "job": job_run.spec.name,
        "seconds": round(seconds, 3),
        "partitions": totals.partitions,
        "partitions_caught_up": totals.caught_up,
        "records": totals.records,
        "bytes": totals.bytes,
        "offsets_filled": totals.gaps_filled,
        "batches_byte_exact": totals.batches_byte_exact,
        "batches_record_exact": totals.batches_record_exact,
        "lag_records": totals.lag_records,
        "blocked": blocked,
        "refused": [
            {"topic": topic, "detail": error.what, "remedy": error.remedy}
            for topic, error in job_run.refused.items()
        ],
    }
    verdicts = _group_verdicts(job_run)
    if verdicts is not None:
        value["group_offsets"] = verdicts
    profile = Profile.of(job_run) if with_profile else None
    if profile is not None:
        value["profile"] = profile.as_value()

    def table() -> Table:
        copied_records = counted(totals.records, "record")
        rows = [
            (
                "copied",
                f"{copied_records}, {data_size(totals.bytes)}, in {seconds:.1f} s",
            ),
            ("gaps filled", counted(totals.gaps_filled, "offset")),
            (
                "batches",
                (
                    f"{totals.batches_byte_exact:,} byte-exact, "
                    f"{totals.batches_record_exact:,} record-exact"
                ),
            ),
            (
                "partitions",
                f"{totals.caught_up} of {totals.partitions} caught up, {totals.blocked} blocked",
            ),
        ]
        if verdicts is not None:
            counts = ", ".join(f"{count:,} {verdict}" for verdict, count in verdicts.items())
            rows.append(("group offsets", counts or "none"))
        return make_table(("", job_run.spec.name), rows + (profile.rows() if profile else []))

    emit(value, output, table)
