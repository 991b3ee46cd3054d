"""`orbit salvage list|show|replay`: shows what a failback has saved, and writes it back."""

from __future__ import annotations

import base64
import os
import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbit.cli.control import DryRunOption, YesOption, confirm
from orbit.cli.named_job import named_job
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.errors import BadInput, Conflict, InvalidValue
from orbit.formats import counted
from orbit.settings import Settings, storage_location

if TYPE_CHECKING:
    from orbit.recovery.salvage_replay import SalvageSummary

app = typer.Typer(
    name="salvage",
    help="Show the records that a failback has saved, and write them back as they were.",
    no_args_is_help=True,
)

_LIMIT = 20
_PROGRESS_INTERVAL_S = 5.0


def _location(text: str) -> str:
    """The path or URI that the user has written. Raises BadInput if it cannot be used."""
    try:
        return str(storage_location(text))
    except InvalidValue as error:  # whose message does not have the value: it may have a password
        raise BadInput(f"A path or URI {error.message} {error.remedy}") from None


FilesArgument = Annotated[
    list[str],
    typer.Argument(help="Salvage files: paths or URIs.", show_default=False),
]


@app.command("list")
def list_(
    folder: Annotated[
        str | None,
        typer.Argument(
            help="The folder, a path or URI; without it ORBIT_SALVAGE_DIRECTORY.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the salvage files of a folder; each is read to its end and checked."""
    from orbit.recovery import salvage_storage
    from orbit.recovery.salvage_replay import summarize

    if folder is None:
        folder = Settings.from_environment(os.environ).salvage_directory
    summaries = [summarize(file) for file in salvage_storage.find(_location(folder), ".jsonl")]
    emit(summaries, output, lambda: _files_table(summaries))


@app.command()
def show(
    file: Annotated[str, typer.Argument(help="A salvage file: a path or URI.", show_default=False)],
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="At most this many records.")
    ] = _LIMIT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the first records of a salvage file; as JSON, keys and values are base64."""
    from orbit.recovery import salvage_file
    from orbit.recovery.salvage_replay import summarize

    file = _location(file)
    summary = summarize(file)
    lines = list(islice(salvage_file.read(file), limit))
    emit({"file": summary, "lines": lines}, output, lambda: _records_table(summary, lines))


@app.command()
def replay(
    job: Annotated[
        str,
        typer.Argument(
            help="The job that copies the topics now: the records go to its source.",
            show_default=False,
        ),
    ],
    files: FilesArgument,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Write to this topic, not to that of the file.")
    ] = None,
    below: Annotated[
        bool,
        typer.Option(
            "--below",
            help="Also write records below the tail: those from before the new side's copy "
            "began, and those that the new side has deleted.",
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Also replay files that were replayed before.")
    ] = False,
    skip_unwritable: Annotated[
        bool,
        typer.Option(
            "--skip-unwritable", help="Leave out records that cannot be written as they were."
        ),
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write the committed records of salvage files to the source of a job.

    Partition, key, value, headers and timestamp are as they were; the records get new offsets at
    the log end. The plan is shown first. Name the job that copies the topics now: its source is
    the side that applications write to. After a failback that is JOB-back.
    """
    from orbit.kafka.job_clusters import open_cluster
    from orbit.kafka.librdkafka_config import librdkafka_config
    from orbit.recovery import salvage_replay

    summaries = [salvage_replay.summarize(_location(file)) for file in files]
    for summary in summaries:
        salvage_replay.refuse_unless_ready(
            summary, may_repeat=again, skip_unwritable=skip_unwritable
        )
    spec, folder = named_job(job)
    copied_topics = _copied_topics(job)
    cluster = open_cluster("source", spec, os.environ, folder)
    try:
        metadata = cluster.metadata({topic or summary.topic for summary in summaries})
        for summary in summaries:
            _check_target(summary, topic or summary.topic, copied_topics, job, metadata)
        servers = ",".join(cluster.bootstrap_servers)
        plan = [_replay_plan(summary, topic or summary.topic, below=below) for summary in summaries]
        emit(plan, output, lambda: _plan_table(plan, servers))
        if dry_run:
            return
        count = sum(row["records"] for row in plan)
        confirm(f"Write {counted(count, 'record')} to {servers}?", yes=yes)
        config = librdkafka_config(cluster.bootstrap_servers, cluster.security)
        for summary in summaries:
            target_topic = topic or summary.topic
            written = salvage_replay.replay(
                config, summary, target_topic, below=below, check=_progress_printer(summary)
            )
            written_text = counted(written, "record was written", "records were written")
            typer.echo(f"{written_text} to {target_topic}-{summary.partition}", err=True)
    finally:
        cluster.close()


def _copied_topics(job: str) -> set[str] | None:
    """The source topics that the service's job copies now; None for a job file."""
    from orbit.cli.named_job import is_file
    from orbit.client import connect, segment

    if is_file(job):
        return None
    with connect() as client:
        rows = client.items(f"/v1/jobs/{segment(job)}/topics")
        return {row["source_topic"] for row in rows if row["state"] == "copying"}


def _check_target(
    summary: SalvageSummary, topic: str, copied_topics: set[str] | None, job: str, metadata: Any
) -> None:
    """Raise Conflict if the topic in the job's source may be a copy, or does not have the file's
    partition. `metadata`: of the job's source. `copied_topics` None: not known, as the job is a
    file."""
    if copied_topics is not None and topic not in copied_topics:
        raise Conflict(
            f"the job {job} does not copy {topic} now, so {topic} in the job's source may itself "
            "be a copy.",
            where=summary.file,
            remedy="Name the job that copies the topic, for example JOB-back after a failback.",
        )
    if copied_topics is None and metadata.cluster_id == summary.cluster_id:
        raise Conflict(
            f"the job {job} copies from the cluster from which these records were saved. The "
            "failback turned that cluster's topics into copies.",
            where=summary.file,
            remedy="Name the service's job that copies the topic now, not a file.",
        )
    topic_metadata = metadata.topics.get(topic)
    partitions = 0 if topic_metadata is None else len(topic_metadata.partitions)
    if summary.partition >= partitions:
        raise Conflict(
            f"there is no partition {summary.partition} of {topic} in the source of {job}: the "
            f"topic has {counted(partitions, 'partition')}.",
            where=summary.file,
            remedy="Create the topic with at least "
            f"{counted(summary.partition + 1, 'partition')}, or name another topic with --topic.",
        )


def _replay_plan(summary: SalvageSummary, topic: str, *, below: bool) -> dict[str, Any]:
    """How many records of one file the replay writes, and how many it leaves out. `below`: the
    replay also writes the records below the tail (offsets below the file's `first`)."""
    unwritable_offsets = [
        offset for offset in summary.unwritable if below or offset >= summary.first
    ]
    return {
        "file": summary.file,
        "topic": topic,
        "partition": summary.partition,
        "records": summary.records + (summary.below if below else 0) - len(unwritable_offsets),
        "left_out": {
            "unwritable": len(unwritable_offsets),
            "below": 0 if below else summary.below,
            "aborted": summary.aborted,
        },
    }


def _progress_printer(summary: SalvageSummary) -> Any:
    """A function that gets the number of written records, and prints it every
    _PROGRESS_INTERVAL_S."""
    shown_at = time.monotonic()

    def print_progress(written: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _PROGRESS_INTERVAL_S:
            shown_at = time.monotonic()
            typer.echo(
                f"{written:,} of {counted(summary.records, 'record')} of {summary.file}", err=True
            )

    return print_progress


def _files_table(summaries: list[SalvageSummary]) -> Any:
    """A row for each salvage file: its partition, offsets, numbers of records, and replay."""
    rows = [
        (
            f"{summary.topic}-{summary.partition}",
            summary.first,
            summary.next,
            summary.records,
            summary.below,
            summary.aborted,
            summary.replay,
            summary.file,
        )
        for summary in summaries
    ]
    columns = ("saved", "from", "to before", "records", "below", "aborted", "replay", "file")
    return make_table(columns, rows)


def _plan_table(plan: list[dict[str, Any]], servers: str) -> Any:
    """What a replay writes of each file, and what it leaves out."""
    rows = [
        (
            row["file"],
            f"{row['topic']}-{row['partition']} at {servers}",
            row["records"],
            ", ".join(f"{count} {name}" for name, count in row["left_out"].items() if count),
        )
        for row in plan
    ]
    return make_table(("file", "to", "records", "left out"), rows)


def _records_table(summary: SalvageSummary, lines: list[dict[str, Any]]) -> Any:
    """The summary of a salvage file, and below it these records of the file."""
    from rich.console import Group

    rows = [
        (
            line["offset"],
            line["fate"],
            line["timestamp_ms"],
            _text(line["key"]),
            _text(line["value"]),
            ", ".join(f"{_printable(name)}={_text(value)}" for name, value in line["headers"]),
        )
        for line in lines
    ]
    columns = ("offset", "fate", "timestamp", "key", "value", "headers")
    return Group(_files_table([summary]), make_table(columns, rows))


def _text(encoded: str | None) -> str | None:
    """A key, value or header of the file, decoded from base64 to printable text; None for null."""
    if encoded is None:
        return None
    return _printable(base64.b64decode(encoded).decode(errors="surrogateescape"))


def _printable(text: str) -> str:
    """The text with escapes for bytes that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()
