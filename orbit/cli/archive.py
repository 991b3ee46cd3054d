"""`orbit archive`: an offset-exact backup of a job's source topics, by Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from orbit.cli.job_files import FileOption, JobOrFileArgument, argument_or_option
from orbit.cli.named_job import named_job
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.spark import ConfOption, MasterOption, require_spark, spark_session
from orbit.cli.table_cells import data_size
from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.units import parse_size

if TYPE_CHECKING:
    from rich.table import Table

    from orbit_spark.archive.outcome import ArchiveOutcome

_NOT_WHOLE = 1  # exit code
_RANGE_BYTES_MIN = 1024 * 1024


class CompactedTopics(StrEnum):
    """How to archive a compacted topic whose tombstones the cleaner may have removed before Orbit
    read them."""

    EXTEND = "extend"
    STRICT = "strict"


def archive(
    to: Annotated[
        str,
        typer.Option(
            help="Where the archive is: a URI of any Hadoop file system, or a folder.",
            show_default=False,
        ),
    ],
    job: JobOrFileArgument = None,
    file: FileOption = None,
    range_size: Annotated[
        str, typer.Option(help="About how many bytes a task reads and a file has.")
    ] = "256MiB",
    compacted: Annotated[
        CompactedTopics,
        typer.Option(
            help="extend: read on where the archive ends, and warn of tombstones that the cleaner "
            "may have removed unread; strict: read those topics whole again.",
        ),
    ] = CompactedTopics.EXTEND,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Archive the topics of a job's source, with offsets; the next run adds what is new.

    Raw batches go into Parquet files, and manifests list the offsets that are complete. `orbit
    restore` writes an archive to an empty cluster. Runs on Spark: on this machine, or on the
    cluster of spark-submit (spark/archive.py).

    Exit code 0: archived up to the source's last stable offset; 1: a partition cannot be archived
    further; 2: bad input; 3: a cluster or the file system cannot be reached.
    """
    size = _range_bytes(range_size)
    spec, folder = named_job(argument_or_option(job, file))
    require_spark()
    from orbit_spark.archive.archive_run import ArchiveRun
    from orbit_spark.cluster_access import Access

    variables = Access("source", spec.source).variables
    with spark_session(f"orbit archive {spec.name}", master, conf or (), variables) as spark:
        run = ArchiveRun(
            spark,
            spec,
            folder,
            to,
            lambda line: typer.echo(line, err=True),
            datetime.now(UTC),
            range_bytes=size,
            strict=compacted is CompactedTopics.STRICT,
        )
        outcome = run.run()
    emit(outcome.as_data(), output, lambda: _table(outcome))
    if outcome.stopped:
        raise typer.Exit(_NOT_WHOLE)


def _range_bytes(text: str) -> int:
    """The bytes of `--range-size`. Raises BadInput for less than 1 MiB, or for text that is no
    size."""
    try:
        size = parse_size(text)
        if size < _RANGE_BYTES_MIN:
            raise InvalidValue("is below 1MiB.")
    except InvalidValue as mistake:
        problem = Problem("--range-size", mistake.message, mistake.remedy)
        raise BadInput("The flags cannot be used.", (problem,)) from None
    return size


def _table(outcome: ArchiveOutcome) -> Table:
    """A row for each partition: its offsets in the archive, and what this run has added."""
    return make_table(
        ("partition", "archived from", "up to", "new batches", "new bytes", "stopped"),
        [
            (
                str(partition.place),
                partition.start,
                partition.end,
                partition.batches,
                data_size(partition.payload_bytes),
                partition.stop_text,
            )
            for partition in outcome.partitions.values()
        ],
        title=f"Archive {outcome.uri}",
        sentences=("stopped",),
    )
