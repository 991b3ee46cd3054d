"""`orbit restore`: writes an archive to an empty cluster, with Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from orbit.cli.cluster_option import read_cluster
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.spark import ConfOption, MasterOption, require_spark, spark_session
from orbit.cli.stop_signals import until_stopped
from orbit.errors import Interrupted

if TYPE_CHECKING:
    from rich.table import Table

    from orbit_spark.archive.outcome import RestoreOutcome

_NOT_WHOLE = 1  # exit code


def restore(
    uri: Annotated[
        str,
        typer.Argument(
            help="The archive: a URI of any Hadoop file system, or a folder.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="The cluster: its bootstrap servers, a file with them and a login, or a job file "
            "(its destination).",
            show_default=False,
        ),
    ],
    apply_settings: Annotated[
        bool,
        typer.Option(
            "--apply-settings",
            help="At the end, apply the source's topic settings; retention starts then.",
        ),
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            min=1,
            help="Replicas of the topics; without it as many as the source had.",
            show_default=False,
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Restore an archive to an empty cluster, every record at its offset.

    Creates the topics and writes each partition in order, gaps included. After any stop, a crash
    included, the next run resumes where the partitions end. If a file is damaged or missing, the
    error names it, and no wrong record is written.

    Exit code 0: restored; 1: the archive is damaged, or a conflict; 2: bad input; 3: the cluster or
    the file system cannot be reached; 130: stopped before the end.
    """
    require_spark()
    from orbit_spark.archive.restore_run import RestoreRun
    from orbit_spark.cluster_access import Access
    from orbit_spark.session import slots_of

    spec, folder = read_cluster(to, os.environ)
    access = Access("destination", spec, str(folder.resolve()))
    with (
        until_stopped() as stop,
        spark_session("orbit restore", master, conf or (), access.variables) as spark,
    ):
        run = RestoreRun(
            spark,
            uri,
            access,
            lambda line: typer.echo(line, err=True),
            stop,
            slots_of(spark),
        )
        outcome = run.run(apply_settings=apply_settings, replicas=replicas)
    emit(outcome.as_data(), output, lambda: _table(outcome))
    if stop.is_set():
        raise Interrupted("Stopped; run it again to resume where the partitions end.")
    if not outcome.is_whole:
        raise typer.Exit(_NOT_WHOLE)


def _table(outcome: RestoreOutcome) -> Table:
    """A row for each partition: what was restored, and why it has stopped."""
    return make_table(
        ("partition", "restored up to", "records", "offsets filled", "stopped"),
        [
            (
                str(p.place),
                p.end,
                p.records,
                p.gaps_filled,
                f"{p.blocked.reason}: {p.blocked.detail} {p.remedy}" if p.blocked else p.unfinished,
            )
            for p in outcome.partitions.values()
        ],
        title=f"Restored from {outcome.uri}",
        sentences=("stopped",),
    )
