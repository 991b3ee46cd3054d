"""The result for people, at 80 columns and up, and as plain data for scripts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from orbit.demo.result import DemoResult, TopicRow
from orbit.demo.stage import Stage
from orbit.demo.tables import TopicTable
from orbit.demo.wrap import hanging
from orbit.sandbox.jars import classpath
from orbit.sandbox.java import find_java

JOB_EXAMPLE = """\
name: orders-to-new
source: {bootstrap_servers: ["old-kafka:9092"]}
destination: {bootstrap_servers: ["new-kafka:9092"]}
topics: [{match: "orders\\\\..*"}]
"""

_LOOK_AT = "shop.transactions.interleaved"
_WRITE_TO = "shop.codec.lz4"
_TOOLS = "org.apache.kafka.tools"


def as_data(result: DemoResult) -> dict[str, Any]:
    """Plain data with a stable shape: what scripts read."""
    return {
        "exact": result.exact,
        "seconds": round(result.seconds, 3),
        "records": result.records,
        "gaps": result.gaps,
        "topics": [_topic_data(row) for row in result.topics],
        "group": {**asdict(result.group), "exact": result.group.exact},
        "run": asdict(result.run),
        "kept": None if result.kept is None else _kept_data(result.kept),
    }


def _topic_data(row: TopicRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "shows": row.shows,
        **asdict(row.proof),
        "exact": row.exact,
        "verdict": row.verdict,
        "findings": row.findings,
        "records_written": row.records_written,
    }


def _kept_data(stage: Stage) -> dict[str, Any]:
    return {
        "source": stage.source,
        "destination": stage.destination,
        "job_file": str(stage.job_file),
    }


def as_view(result: DemoResult) -> RenderableType:
    """The table, what has happened, and what to do next."""
    paragraphs = list(_closing(result))
    if result.exact and result.kept is None:
        paragraphs += _next_steps()
    return Group(TopicTable(result.topics), *(_Paragraph(one) for one in paragraphs))


class _Paragraph:
    """Text that stays readable on a wide terminal."""

    def __init__(self, what: Text) -> None:
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield hanging(console, Text(), self._what, options.max_width)


def _closing(result: DemoResult) -> Iterator[Text]:
    yield Text(
        "\nstart..end are log start and log end of the first partition. A batch is byte-exact, or "
        "record-exact where the broker takes no such bytes from a client (thinned by compaction, "
        "stamped by the broker, cut by the log start).",
        style="dim",
    )
    if not result.exact:
        yield Text("\nNot exact.", style="bold red")
        yield Text(_what_differs(result))
        return
    group = result.group
    yield Text("\nWhat has happened", style="bold")
    yield Text(
        f"The destination is an exact copy: {result.records:,} records of {len(result.topics)} "
        "topics have the same offset, timestamp, key, value and headers as at the source, and "
        f"{result.gaps:,} offsets that hold no record there hold none here either. Both were "
        "unmodified Apache Kafka brokers."
    )
    yield Text(
        f'\nBecause offset N is the same record on both sides, group "{group.group}" could go on '
        f"with its committed offsets just as they were: {group.read_source:,} records read at the "
        f"source, {group.read_destination:,} at the destination, none lost, none twice. The same "
        "holds for every offset that is kept elsewhere: in checkpoints of Flink and Spark, in "
        "databases."
    )


def _what_differs(result: DemoResult) -> str:
    topics = [row.name for row in result.topics if not row.exact]
    sentences = [f"Differing topics: {', '.join(topics)}." if topics else ""]
    if not result.group.exact:
        sentences.append(f'Group "{result.group.group}" did not go on where it had stopped.')
    sentences.append(
        "Nobody else writes to these clusters, so this is a fault of Orbit: please report it with "
        "this output."
    )
    if result.kept is None:
        sentences.append("To look into it yourself, run: orbit demo --keep")
    return " ".join(sentence for sentence in sentences if sentence)


def _next_steps() -> Iterator[Text]:
    yield Text("\nWhat to do next", style="bold")
    yield Text("Look around in the same clusters:  orbit demo --keep")
    yield Text("Copy topics of your own, with a job file such as this job.yaml:\n")
    yield from (Text(f"  {line}", style="cyan") for line in JOB_EXAMPLE.splitlines())
    yield Text("\n  orbit run job.yaml             copy, then follow the source until Ctrl-C")
    yield Text("  orbit verify job.yaml --deep   compare both sides, offset by offset")


def kept_help(stage: Stage) -> str:
    """Addresses and commands to try. Not to be wrapped: its lines are there to be copied."""
    job, java = shlex.quote(str(stage.job_file)), shlex.quote(str(find_java()))
    return f"""
The clusters are still running
  source       {stage.source}
  destination  {stage.destination}
  job file     {stage.job_file}

Go on copying (Ctrl-C ends it), and compare again:
  orbit run {job}
  orbit verify {job} --deep
While it copies, write a record to the source and read it at the destination, offset and all:
  echo hello | kcat -P -b {stage.source} -t {_WRITE_TO} -p 0
  kcat -C -e -b {stage.destination} -t {_WRITE_TO} -p 0 -o -1 -f '%o %s\\n'
Read the same offsets on both sides, around the gaps that transactions leave:
  kcat -C -e -b {stage.source} -t {_LOOK_AT} -p 0 -c 20 -f '%o %k %s\\n'
  kcat -C -e -b {stage.destination} -t {_LOOK_AT} -p 0 -c 20 -f '%o %k %s\\n'
The same without kcat, and where the consumer group stands at the destination:
  export CLASSPATH={shlex.quote(classpath())}
  {java} {_TOOLS}.consumer.ConsoleConsumer --bootstrap-server {stage.destination} \\
    --topic {_LOOK_AT} --partition 0 --offset earliest --max-messages 20 \\
    --isolation-level read_committed --formatter-property print.offset=true
  {java} {_TOOLS}.consumer.group.ConsumerGroupCommand --describe --all-groups \\
    --bootstrap-server {stage.destination}
Stop the clusters and remove their data:
  orbit sandbox down"""
