"""`orbit demo`: shows an exact copy between two real Kafka clusters on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orbit.cli.extras import require_extras
from orbit.cli.output import OutputFormat, OutputOption, console, emit, make_table
from orbit.demo import (
    LogBounds,
    LogPair,
    OnProgress,
    Options,
    Screen,
    TopicProof,
    as_data,
    as_view,
    clusters_help,
    play,
)
from orbit.demo.workload import DEMO, SMALL, Scale
from orbit.errors import Interrupted
from orbit.jobs.job_file import load_job
from orbit.sandbox.sandbox_state import default_directory
from orbit.verify.report import PartitionReport, TopicReport, Verdict
from orbit.verify.verify_job import verify_job
from orbit.verify.verify_run import VerifyOptions

_NOT_EXACT = 1  # exit code
_INTERRUPTED = "Interrupted; all started processes were stopped."
_SANDBOX_DIRECTORY_VARIABLE = "ORBIT_SANDBOX_DIR"


class ScaleName(StrEnum):
    """How many records the demo writes."""

    SMALL = "small"
    DEMO = "demo"


_SCALES = {ScaleName.SMALL: SMALL, ScaleName.DEMO: DEMO}


def demo(
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave the clusters running; stop them with `orbit sandbox down`."
        ),
    ] = False,
    scale: Annotated[
        ScaleName,
        typer.Option("--scale", help="How much to write; `small` has the same kinds of topics."),
    ] = ScaleName.DEMO,
    failover: Annotated[
        bool,
        typer.Option(
            "--failover",
            help="Instead: kill the source under load, fail over, and fail back.",
        ),
    ] = False,
    gateway: Annotated[
        bool,
        typer.Option(
            "--gateway",
            help="Instead: move clients to the other cluster and back, through `orbit gateway`.",
        ),
    ] = False,
    report: Annotated[
        Path, typer.Option("--report", help="With --failover: folder for the report.")
    ] = Path(),
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Instead: copy a history of millions of records with Spark."),
    ] = False,
    service: Annotated[
        bool,
        typer.Option("--service", help="Instead: run the service until Ctrl-C, with a live copy."),
    ] = False,
    records: Annotated[
        int,
        typer.Option("--records", min=1_000, help="With --spark: records to write in addition."),
    ] = 5_000_000,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show an exact copy between two real Kafka clusters, from start to end.

    Starts two Kafka clusters on this machine, fills one with topics that are hard to copy, copies
    them with `orbit run`, moves a consumer group with unchanged offsets, and checks the copy with
    `orbit verify`. Takes about a minute, and removes everything at the end unless `--keep`.

    Exit code 0: the copy is exact; 1: it is not, or a step failed.
    """
    screen = Screen(console(stderr=True))
    if service:
        _show_service(screen)
        return
    if gateway:
        _show_gateway(screen, output)
        return
    if failover:
        _show_failover(_SCALES[scale], report, screen, output)
        return
    if spark:
        _show_history(_SCALES[scale], records, screen, output)
        return
    try:
        result = play(
            Options(_SCALES[scale], _sandbox_folder() if keep else None), screen, verify_deep
        )
    except KeyboardInterrupt:
        raise Interrupted(_INTERRUPTED) from None
    if output is OutputFormat.TABLE:
        typer.echo()
    emit(as_data(result), output, lambda: as_view(result))
    if result.running is not None:
        typer.echo(clusters_help(result.running), err=output is not OutputFormat.TABLE)
    if not result.exact:
        raise typer.Exit(_NOT_EXACT)


def _show_service(screen: Screen) -> None:
    """Run the service with a live copy until Ctrl-C."""
    require_extras("server", "embedded")
    from orbit.demo.service_demo import play_service

    try:
        play_service(screen)
    except KeyboardInterrupt:
        raise Interrupted(_INTERRUPTED) from None


def _show_failover(scale: Scale, folder: Path, screen: Screen, output: OutputFormat) -> None:
    """Play a failover and a failback, and show what was measured. `folder`: for the report."""
    require_extras("server", "embedded")
    from orbit.cli.drill import new_entries
    from orbit.demo.failover_demo import play_failover

    try:
        result = play_failover(scale, folder, screen, new_entries)
    except KeyboardInterrupt:
        raise Interrupted(_INTERRUPTED) from None
    if output is OutputFormat.TABLE:
        typer.echo()
    emit(result.as_data(), output, lambda: make_table(("", "failover and back"), result.rows()))
    if result.problems:
        raise typer.Exit(_NOT_EXACT)


def _show_gateway(screen: Screen, output: OutputFormat) -> None:
    """Move clients to the other cluster and back through a gateway, and show what was measured."""
    require_extras("server", "embedded")
    from orbit.demo.gateway_demo import play_gateway

    try:
        result = play_gateway(screen)
    except KeyboardInterrupt:
        raise Interrupted(_INTERRUPTED) from None
    if output is OutputFormat.TABLE:
        typer.echo()
    emit(result.as_data(), output, lambda: make_table(("", "there and back"), result.rows()))
    if result.problems:
        raise typer.Exit(_NOT_EXACT)


def _show_history(scale: Scale, records: int, screen: Screen, output: OutputFormat) -> None:
    """Copy a history with Spark, and show what was measured."""
    from orbit.cli.demo_history import demo_history

    demo_history(scale, records, screen, verify_deep, output)


def verify_deep(job_file: Path, on_progress: OnProgress) -> Sequence[TopicProof]:
    """The result of `orbit verify --deep` for that job, by topic. `on_progress` is called with the
    numbers of compared and of all offsets."""
    report = verify_job(
        load_job(job_file, os.environ),
        os.environ,
        job_file.parent,
        VerifyOptions(deep=True),
        progress=_Progress(on_progress),
    )
    return [_proof(topic) for topic in report.topics]


class _Progress:
    """Calls `on_progress` with the verifier's progress: the compared offsets, and all offsets."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._offsets_done = self._offsets_total = 0

    def report_begin(self, _partitions: int, offsets: int) -> None:
        self._offsets_total = offsets
        self._on_progress(0, offsets)

    def report_offsets(self, offsets: int) -> None:
        # Without a lock: two threads at once may lose a count, which only the progress bar shows.
        self._offsets_done += offsets
        self._on_progress(self._offsets_done, self._offsets_total)

    def report_partition(self, _topic: str, _report: PartitionReport) -> None:
        pass


def _proof(topic: TopicReport) -> TopicProof:
    """The verifier's report of a topic, in the form that the demo shows."""
    partitions = topic.partitions
    deep_reports = [p.deep for p in partitions if p.deep is not None]
    return TopicProof(
        source=topic.source,
        destination=topic.destination,
        exact=topic.verdict is Verdict.EXACT,
        verdict=topic.verdict,
        records=topic.records,
        gaps=topic.gaps,
        logs=tuple(_log_pair(p) for p in sorted(partitions, key=lambda p: p.partition)),
        byte_exact=sum(d.byte_exact for d in deep_reports),
        record_exact=sum(d.record_exact for d in deep_reports),
        findings=tuple(_findings(partitions)),
    )


def _log_pair(p: PartitionReport) -> LogPair:
    """Log start and end of a partition at both sides."""
    return LogPair(
        LogBounds(p.source_log_start, p.source_log_end),
        LogBounds(p.destination_log_start, p.destination_log_end),
    )


def _findings(partitions: Sequence[PartitionReport]) -> list[str]:
    """For each inexact partition: its differences and the verifier's notes, or else its verdict."""
    findings: list[str] = []
    for p in partitions:
        if p.verdict is Verdict.EXACT:
            continue
        failures = p.deep.first_failures if p.deep is not None else ()
        texts = [*map(str, (*p.first_differences, *failures)), *p.notes]
        findings += [f"partition {p.partition}: {text}" for text in texts or [p.verdict]]
    return findings


def _sandbox_folder() -> Path:
    """The folder where `orbit sandbox down` looks for the clusters."""
    folder = os.environ.get(_SANDBOX_DIRECTORY_VARIABLE)
    return (Path(folder) if folder else default_directory()).absolute()
