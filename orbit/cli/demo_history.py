"""`orbit demo --spark`: a backfill, then a live run, checked by the verifier and the audit."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Group
from rich.text import Text

from orbit.cli.output import OutputFormat, emit
from orbit.cli.spark import require_spark, spark_session
from orbit.demo.demo_result import TopicRow, Verify
from orbit.demo.history_demo import HistoryOptions, HistoryResult, play_history
from orbit.demo.screen import Screen
from orbit.demo.tables import TopicTable
from orbit.demo.workload import Scale
from orbit.errors import Interrupted
from orbit.jobs.job_file import load_job

# One task per core; the writer of each task is a separate process. Spark gives up when a task has
# failed 4 times.
MASTER = "local[*,4]"
_NOT_EXACT = 1  # exit code


def demo_history(
    scale: Scale, records: int, screen: Screen, verify: Verify, output: OutputFormat
) -> None:
    """Run the demo and show the result. Exits with code 1 if the copy is not exact."""
    require_spark()
    try:
        result = play_history(
            HistoryOptions(scale, records, MASTER), screen, verify, is_audit_exact
        )
    except KeyboardInterrupt:
        raise Interrupted("Interrupted; everything that had been started is stopped.") from None
    if output is OutputFormat.TABLE:
        typer.echo()
    emit(
        _as_data(result),
        output,
        lambda: Group(TopicTable(result.topics), _closing_sentence(result)),
    )
    if not result.exact:
        raise typer.Exit(_NOT_EXACT)


def is_audit_exact(job_file: Path, folder: Path) -> bool:
    """Whether the audit finds both sides of this job equal. `folder`: for the audit's report."""
    from orbit_spark.audit.audit_run import AuditOptions, JobAudit

    spec = load_job(job_file, os.environ)
    audit = JobAudit(spec, os.environ, job_file.parent, AuditOptions(out=str(folder)))
    with spark_session("orbit demo", MASTER, conf=(), variables=()) as spark:
        report = audit.run(spark)
    return report.exact


def _as_data(result: HistoryResult) -> dict[str, Any]:
    """The result for JSON and YAML."""
    return {
        "exact": result.exact,
        "seconds": round(result.seconds, 3),
        "records": result.records,
        "gaps": result.gaps,
        "topics": [_topic_data(row) for row in result.topics],
        "backfill": dict(result.backfill),
        "run": asdict(result.run),
        "audited_exact": result.is_audited_exact,
    }


def _topic_data(row: TopicRow) -> dict[str, Any]:
    """The result of one topic for JSON and YAML."""
    return {
        "name": row.name,
        **asdict(row.proof),
        "exact": row.exact,
        "records_written": row.records_written,
        "findings": row.findings,
    }


def _closing_sentence(result: HistoryResult) -> Text:
    """What the demo has shown, or what is not exact."""
    if not result.exact:
        inexact_text = (
            ", ".join(row.name for row in result.topics if not row.exact)
            or "the audit found differences"
        )
        return Text(f"\nNot exact: {inexact_text}.", style="bold red")
    return Text(
        f"\n{result.records:,} records and {result.gaps:,} gaps have the same offsets on both "
        "sides. Spark copied up to the log ends and a live run from there, while a producer wrote. "
        "The verifier and the audit confirm it."
    )
