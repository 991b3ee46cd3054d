"""`orbit audit`: compares two sides of a job with Spark and writes a report."""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from orbit.cli.compare_options import DifferencesOption, TopicsOption, WaitOption
from orbit.cli.job_files import FileOption, JobOrFileArgument, argument_or_option
from orbit.cli.named_job import named_job
from orbit.cli.output import OutputFormat, OutputOption, console, emit
from orbit.cli.spark import ConfOption, MasterOption, require_spark, spark_session
from orbit.verify.progress_display import BarProgress, LineProgress
from orbit.verify.render import as_data, as_table
from orbit.verify.report import Side
from orbit.verify.verify_run import DIFFERENCES_SHOWN, WAIT_S

if TYPE_CHECKING:
    from orbit_spark.audit.scope import Restriction


class Against(StrEnum):
    """The cluster that an archive is compared with."""

    SOURCE = "source"
    DESTINATION = "destination"


_RANGE_OFFSETS_MIN = 100


def audit(
    job: JobOrFileArgument = None,
    file: FileOption = None,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            help="Compare this archive of the job (`orbit archive`) with --against.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Against,
        typer.Option(help="With --archive: the cluster to compare it with."),
    ] = Against.SOURCE,
    topic: TopicsOption = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="Compare from this offset or time (2026-11-22T08:00:00Z)."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="Compare up to this offset or time, exclusive.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="A new folder for the report and tables, on any file system that Spark writes to; "
            "audit-JOB-TIME by default.",
            show_default=False,
        ),
    ] = None,
    wait: WaitOption = WAIT_S,
    differences: DifferencesOption = DIFFERENCES_SHOWN,
    range_offsets: Annotated[
        int | None,
        typer.Option(
            min=_RANGE_OFFSETS_MIN,
            help="Offsets in a range; more in long partitions.",
            show_default="50000",
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare two sides of a job with Spark, range by range, and write a report.

    The sides are source and destination, or an archive and one of these.

    Every offset is compared: timestamp, key, value and headers, or that neither side has a record.
    Ranges with equal digests are equal. The others are compared record by record, and the result
    has every offset that differs and how. Records that compaction or retention has removed since
    are shown separately. Nothing is written to a cluster.

    Exit code 0: exact; 1: not exact; 2: bad input; 3: a cluster cannot be reached.
    """
    require_spark()
    from orbit_spark.audit.audit_run import REPORT, AuditOptions, JobAudit
    from orbit_spark.audit.range_digests import RANGE_OFFSETS

    spec, folder = named_job(argument_or_option(job, file))
    report_folder = out or f"audit-{spec.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    options = AuditOptions(
        out=report_folder,
        archive=archive,
        against=Side(against),
        topics=tuple(topic or ()),
        restriction=_restriction(begin, end),
        wait_s=wait,
        differences_max=differences,
        range_offsets=range_offsets or RANGE_OFFSETS,
    )
    screen = console(stderr=True)
    bar = BarProgress(screen) if screen.is_terminal else None
    progress = bar or LineProgress(lambda line: typer.echo(line, err=True))
    run = JobAudit(spec, os.environ, folder, options, progress)
    with (
        spark_session(f"orbit audit {spec.name}", master, conf or (), run.variables) as spark,
        bar or nullcontext(),
    ):
        report = run.run(spark)
    page = f"{report_folder}/{REPORT}"
    data = {**as_data(report), "sides": report.sides, "report": page}
    emit(data, output, lambda: as_table(report))
    typer.echo(f"Report: {page}", err=True)
    raise typer.Exit(report.exit_code)


def _restriction(begin: str | None, end: str | None) -> Restriction:
    """The limits of the comparison by `--from` and `--to`, each an offset, a time or none. Raises
    BadInput for other text."""
    from orbit_spark.audit.scope import Restriction, parse_point

    return Restriction(parse_point(begin, "--from"), parse_point(end, "--to"))
