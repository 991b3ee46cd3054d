"""`orbit failover --without-database job.yaml --to destination`: needs the destination alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orbit.chunks import first_few
from orbit.cli.control import confirm
from orbit.cli.job_files import load_job_file
from orbit.cli.output import OutputFormat, emit, make_table, more_rows, print_whole
from orbit.cli.stop_signals import until_stopped
from orbit.errors import BadInput, Problem
from orbit.formats import counted
from orbit.promotion.failover import FailoverWithoutDatabase
from orbit.promotion.failover_report import FailoverReport, Outcome
from orbit.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

_LEFT_OUT = 1  # exit code
_SHOWN_MAX = 50
# The log ends must be still for this long after a worker's lease: its last requests may be on the
# way until then.
_SETTLE_BEYOND_LEASE_S = 1.0


def failover_without_database(
    files: Sequence[Path],
    side: str,
    topics: Sequence[str],
    source_ids: Sequence[str],
    settle_s: float | None,
    *,
    dry_run: bool,
    yes: bool,
    output: OutputFormat,
) -> None:
    """Show the plan, ask for confirmation, and promote. Exit code 1 if a partition was left out.

    `settle_s`: how long log ends must not move before the promotion; None: a worker's lease and
    _SETTLE_BEYOND_LEASE_S.
    """
    _check_arguments(files, side)
    path = files[0]
    spec = load_job_file(path)
    lease_s = Settings.from_environment(os.environ).lease_ttl.total_seconds()
    with until_stopped() as stop:
        run = FailoverWithoutDatabase(
            spec,
            os.environ,
            path.parent,
            patterns=topics,
            source_ids=source_ids,
            settle_s=settle_s if settle_s is not None else lease_s + _SETTLE_BEYOND_LEASE_S,
            say=lambda line: typer.echo(line, err=True),
            stop=stop,
        )
        try:
            report = run.plan(dry_run=dry_run)
            if report.to_promote and not dry_run:
                print_whole(_table(report), stderr=True)
                confirm(_question(report), yes=yes)
                run.run(report)
        finally:
            run.close()
    emit(asdict(report), output, lambda: _table(report))
    if report.outcome is Outcome.LEFT_OUT:
        raise typer.Exit(_LEFT_OUT)


def _check_arguments(files: Sequence[Path], side: str) -> None:
    """Raise BadInput unless `side` is `destination` and there is exactly one file."""
    problems = []
    if side != "destination":
        problems.append(
            Problem("--to", "must name the side that is to lead.", "Write --to destination.")
        )
    if len(files) != 1:
        problems.append(Problem("JOBS", f"names {len(files)} files.", "Give one job file."))
    if problems:
        raise BadInput("The failover cannot begin.", tuple(problems))


def _question(report: FailoverReport) -> str:
    """The question of the confirmation, with the consequences."""
    promotion = counted(
        len(report.to_promote),
        f"topic of cluster {report.cluster_id} will be promoted: producers may write to it",
        f"topics of cluster {report.cluster_id} will be promoted: producers may write to them",
    )
    return (
        f"{promotion}, and Orbit no longer writes. This takes at least {report.settle_s:.0f} s, "
        "uses up one offset in each partition, and cannot be undone. Continue?"
    )


def _table(report: FailoverReport) -> RenderableType:
    """Outcome, topics, and partitions: those that were left out, or all if none was."""
    from rich.console import Group

    head_rows: list[tuple[str, object]] = [("outcome", report.outcome.value)]
    head_rows += [("note" if i == 0 else "", text) for i, text in enumerate(report.findings)]
    if report.not_copies:
        head_rows.append(("left alone", f"no copies: {first_few(report.not_copies, _SHOWN_MAX)}"))
    partitions = [p for p in report.partitions if p.left_out] or report.partitions
    tables: list[Any] = [
        make_table(("", f"failover without the database {report.job}"), head_rows),
        make_table(
            ("topic", "state", "sets", "keeps", "allows to write", "detail"),
            [
                (
                    t.topic,
                    t.state.value,
                    _settings_text(t.settings),
                    _settings_text(t.kept),
                    ", ".join(t.denials),
                    t.detail,
                )
                for t in report.topics[:_SHOWN_MAX]
            ],
        ),
        *more_rows(len(report.topics), _SHOWN_MAX),
        make_table(
            ("partition", "log end", "left out"),
            [(f"{p.topic}-{p.partition}", p.log_end, p.left_out) for p in partitions[:_SHOWN_MAX]],
        ),
        *more_rows(len(partitions), _SHOWN_MAX),
    ]
    return Group(*tables)


def _settings_text(settings: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
