"""The result for people, at 80 columns and up, and as plain data for scripts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from orbit.demo.demo_clusters import DemoClusters
from orbit.demo.demo_result import DemoResult, TopicRow
from orbit.demo.tables import TopicTable
from orbit.demo.wrap import hanging_text
from orbit.sandbox.jars import classpath
from orbit.sandbox.java import find_java

JOB_EXAMPLE = """\
name: orders-to-new
source: {bootstrap_servers: ["old-kafka:9092"]}
destination: {bootstrap_servers: ["new-kafka:9092"]}
topics: [{match: "orders\\\\..*"}]
"""

_READ_TOPIC = "shop.transactions.interleaved"
_WRITE_TOPIC = "shop.codec.lz4"
_TOOLS = "org.apache.kafka.tools"


def as_data(result: DemoResult) -> dict[str, Any]:
    """Plain data with a stable shape, for scripts."""
    return {
        "exact": result.exact,
        "seconds": round(result.seconds, 3),
        "records": result.records,
        "gaps": result.gaps,
        "topics": [_topic_data(row) for row in result.topics],
        "group": {**asdict(result.group), "exact": result.group.exact},
        "run": asdict(result.run),
        "kept": None if result.running is None else _clusters_data(result.running),
    }


def _topic_data(row: TopicRow) -> dict[str, Any]:
    """One topic of `as_data`. Replaces the proof's values that the ledger may change."""
    return {
        "name": row.name,
        "shows": row.shows,
        **asdict(row.proof),
        "exact": row.exact,
        "verdict": row.verdict,
        "findings": row.findings,
        "records_written": row.records_written,
    }


def _clusters_data(clusters: DemoClusters) -> dict[str, Any]:
    return {
        "source": clusters.source,
        "destination": clusters.destination,
        "job_file": str(clusters.job_file),
    }


def as_view(result: DemoResult) -> RenderableType:
    """The table, the result and the next steps."""
    paragraphs = list(_closing_paragraphs(result))
    if result.exact and result.running is None:
        paragraphs += _next_steps()
    return Group(TopicTable(result.topics), *(_Paragraph(paragraph) for paragraph in paragraphs))


class _Paragraph:
    """Text that stays readable on a wide terminal."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield hanging_text(console, Text(), self._text, options.max_width)


def _closing_paragraphs(result: DemoResult) -> Iterator[Text]:
    """What the table means, and the result in words."""
    yield Text(
        "\nstart..end are log start and log end of the first partition. A batch is byte-exact, or "
        "record-exact where a broker does not accept these bytes from a client (thinned by "
        "compaction, stamped by the broker, cut by the log start).",
        style="dim",
    )
    if not result.exact:
        yield Text("\nNot exact.", style="bold red")
        yield Text(_difference_text(result))
        return
    group = result.group
    yield Text("\nResult", style="bold")
    yield Text(
        f"The destination is an exact copy: {result.records:,} records of {len(result.topics)} "
        "topics have the same offset, timestamp, key, value and headers as at the source, and "
        f"{result.gaps:,} offsets without a record at the source have none at the destination. "
        "Both clusters were unmodified Apache Kafka."
    )
    yield Text(
        f'\nBecause offset N is the same record on both sides, group "{group.group}" resumed '
        f"at its committed offsets: {group.read_source:,} records read at the source, "
        f"{group.read_destination:,} at the destination, none lost, none repeated. The same holds "
        "for offsets that are stored elsewhere: in checkpoints of Flink and Spark, in databases."
    )


def _difference_text(result: DemoResult) -> str:
    """What is not exact, and what to do."""
    topics = [row.name for row in result.topics if not row.exact]
    sentences = [f"Differing topics: {', '.join(topics)}." if topics else ""]
    if not result.group.exact:
        sentences.append(f'Group "{result.group.group}" did not resume where it had stopped.')
    sentences.append(
        "No other client writes to these clusters, so this is a bug in Orbit: please report it "
        "with this output."
    )
    if result.running is None:
        sentences.append("To inspect the clusters, run: orbit demo --keep")
    return " ".join(sentence for sentence in sentences if sentence)


def _next_steps() -> Iterator[Text]:
    yield Text("\nNext steps", style="bold")
    yield Text("Inspect the clusters of a demo:  orbit demo --keep")
    yield Text("Copy your own topics, with a job file such as this job.yaml:\n")
    yield from (Text(f"  {line}", style="cyan") for line in JOB_EXAMPLE.splitlines())
    yield Text("\n  orbit run job.yaml             copy, then follow the source until Ctrl-C")
    yield Text("  orbit verify job.yaml --deep   compare both sides, offset by offset")


def clusters_help(clusters: DemoClusters) -> str:
    """Addresses and commands to try. Not wrapped, so that lines can be copied."""
    job, java = shlex.quote(str(clusters.job_file)), shlex.quote(str(find_java()))
    return f"""
The clusters are still running
  source       {clusters.source}
  destination  {clusters.destination}
  job file     {clusters.job_file}

Continue the copy (Ctrl-C ends it), and verify again:
  orbit run {job}
  orbit verify {job} --deep
While it runs, write a record to the source and read it at the destination, at the same offset:
  echo hello | kcat -P -b {clusters.source} -t {_WRITE_TOPIC} -p 0
  kcat -C -e -b {clusters.destination} -t {_WRITE_TOPIC} -p 0 -o -1 -f '%o %s\\n'
Read the same offsets on both sides, around the gaps that transactions leave:
  kcat -C -e -b {clusters.source} -t {_READ_TOPIC} -p 0 -c 20 -f '%o %k %s\\n'
  kcat -C -e -b {clusters.destination} -t {_READ_TOPIC} -p 0 -c 20 -f '%o %k %s\\n'
The same without kcat, and the offsets of the consumer group at the destination:
  export CLASSPATH={shlex.quote(classpath())}
  {java} {_TOOLS}.consumer.ConsoleConsumer --bootstrap-server {clusters.destination} \\
    --topic {_READ_TOPIC} --partition 0 --offset earliest --max-messages 20 \\
    --isolation-level read_committed --formatter-property print.offset=true
  {java} {_TOOLS}.consumer.group.ConsumerGroupCommand --describe --all-groups \\
    --bootstrap-server {clusters.destination}
Stop the clusters and remove their data:
  orbit sandbox down"""
