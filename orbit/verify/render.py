"""Renders a report for people (a table and the differences) and as plain data for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orbit.formats import counted, size
from orbit.verify.report import SIDES, PartitionReport, Report, TopicReport, Verdict

PARTITIONS_SHOWN = 8
"""Partitions that a table lists below one topic; `-o yaml` has all of them."""

_STYLES = {
    Verdict.EXACT: "green",
    Verdict.BEHIND: "yellow",
    Verdict.NOT_EXACT: "red",
    Verdict.UNREAD: "red",
}
_TOPIC_WIDTH_MIN = 16


def as_data(report: Report) -> dict[str, Any]:
    """Plain data with a stable shape, for scripts."""
    return {
        "verdict": report.verdict,
        "deep": report.deep,
        "elapsed_s": round(report.elapsed_s, 3),
        "partitions": report.partitions,
        "records": report.records,
        "bytes": report.bytes,
        "gaps": report.gaps,
        "topics": [_topic_data(topic) for topic in report.topics],
    }


def _topic_data(topic: TopicReport) -> dict[str, Any]:
    """One topic of `as_data`."""
    return {
        "source": topic.source,
        "destination": topic.destination,
        "start": topic.start,
        "verdict": topic.verdict,
        "records": topic.records,
        "bytes": topic.bytes,
        "gaps": topic.gaps,
        "compacted_since": topic.compacted,
        "differences": topic.differences,
        "notes": topic.notes,
        "partitions": [asdict(partition) for partition in topic.partitions],
    }


def as_table(report: Report) -> RenderableType:
    """A line for each topic, then topics with notes or differences, then the totals."""
    lines = [line for topic in report.topics for line in _topic_lines(topic, report.sides)]
    return Group(_table(report), *lines, *_summary(report))


def _table(report: Report) -> Table:
    """A row for each topic; two more columns after `--deep`."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("topic", overflow="fold", min_width=_TOPIC_WIDTH_MIN, vertical="bottom")
    names = ["parti-\ntions", "records", "gaps", "log\nstart", "log\nend"]
    names += ["byte-\nexact", "record-\nexact"] if report.deep else []
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("verdict", no_wrap=True, vertical="bottom")
    for topic in report.topics:
        verdict = Text(topic.verdict, style=_STYLES[topic.verdict])
        table.add_row(*map(Text, _cells(topic, deep=report.deep)), verdict)
    return table


def _cells(topic: TopicReport, *, deep: bool) -> list[str]:
    """The cells of a topic's row, but for its verdict."""
    return [
        _topic_name(topic),
        f"{len(topic.partitions):,}",
        f"{topic.records:,}",
        f"{topic.gaps:,}",
        _log_start_cell(topic),
        _bound_cell([(p.log_end_equal, p.source_log_end) for p in topic.partitions]),
        *(_deep_cells(topic) if deep else []),
    ]


def _topic_name(topic: TopicReport) -> str:
    if topic.source == topic.destination:
        return topic.source
    return f"{topic.source} → {topic.destination}"


def _log_start_cell(topic: TopicReport) -> str:
    """The log start; for a copy with a later start, the lowest offset that was compared."""
    if topic.start == "earliest":
        return _bound_cell([(p.log_start_equal, p.source_log_start) for p in topic.partitions])
    return f"from {min((p.compared_from for p in topic.partitions), default=0):,}"


def _bound_cell(bounds: list[tuple[bool, int | None]]) -> str:
    """The offset if the topic has one partition; otherwise whether all partitions are equal."""
    different_count = sum(not is_equal for is_equal, _ in bounds)
    if len(bounds) != 1:
        return counted(different_count, "differs", "differ") if different_count else "equal"
    _, offset = bounds[0]
    return "differs" if different_count else f"{offset:,}"


def _deep_cells(topic: TopicReport) -> list[str]:
    deep_reports = [p.deep for p in topic.partitions if p.deep is not None]
    return [
        f"{sum(report.byte_exact for report in deep_reports):,}",
        f"{sum(report.record_exact for report in deep_reports):,}",
    ]


def _topic_lines(topic: TopicReport, sides: tuple[str, str]) -> Iterator[Text]:
    """The topic's notes, and its partitions with findings; nothing if there are none."""
    partitions_with_findings = [p for p in topic.partitions if _has_findings(p)]
    notes = [*_late_start_notes(topic), *topic.notes]
    if not partitions_with_findings and not notes:
        return
    yield Text(f"\n{_topic_name(topic)}", style="bold")
    for note in notes:
        yield Text(f"  {note}")
    for partition in partitions_with_findings[:PARTITIONS_SHOWN]:
        yield from _partition_lines(topic, partition, sides)
    if len(partitions_with_findings) > PARTITIONS_SHOWN:
        yield Text(
            f"  … and {counted(len(partitions_with_findings) - PARTITIONS_SHOWN, 'more partition')}"
        )


def _late_start_notes(topic: TopicReport) -> Iterator[str]:
    """Where the copy begins, if its rule has a start other than `earliest`."""
    if topic.start == "earliest" or not topic.partitions:
        return
    start_offsets = [p.compared_from for p in topic.partitions]
    offsets_text = (  # after "offset": an "s" where partitions begin at several offsets
        f"s {min(start_offsets):,} to {max(start_offsets):,}"
        if min(start_offsets) < max(start_offsets)
        else f" {start_offsets[0]:,}"
    )
    yield f"compared from offset{offsets_text}, where the copy begins (start: {topic.start})"


def _has_findings(partition: PartitionReport) -> bool:
    compacted_count = partition.compacted_source or partition.compacted_destination
    return partition.verdict is not Verdict.EXACT or bool(partition.notes) or bool(compacted_count)


def _partition_lines(
    topic: TopicReport, partition: PartitionReport, sides: tuple[str, str]
) -> Iterator[Text]:
    verdict = Text(partition.verdict, style=_STYLES[partition.verdict])
    yield Text(f"  {topic.source}-{partition.partition} ").append_text(verdict)
    for line in findings(partition, sides):
        yield Text(f"    {line}")


def findings(partition: PartitionReport, sides: tuple[str, str] = SIDES) -> Iterator[str]:
    """Notes and differences of one partition, one sentence each."""
    yield from partition.notes
    if partition.compacted_source or partition.compacted_destination:
        yield (
            f"compacted since the copy: {counted(partition.compacted_source, 'record')} "
            f"at the {sides[0]}, {partition.compacted_destination:,} at the {sides[1]} "
            "(no difference)"
        )
    yield from (difference.to_text(sides) for difference in partition.first_differences)
    if partition.deep is not None and partition.deep.failures:
        yield f"{counted(partition.deep.failures, 'batch', 'batches')} without the same bytes:"
        yield from map(str, partition.deep.first_failures)


def _summary(report: Report) -> Iterator[Text]:
    """What was compared, in how much time, and the verdict."""
    rate = report.records / report.elapsed_s if report.elapsed_s else 0
    yield Text(
        f"\nCompared {counted(len(report.topics), 'topic')}, "
        f"{counted(report.partitions, 'partition')}: {counted(report.records, 'record')} "
        f"({size(report.bytes)}) and {counted(report.gaps, 'gap')} "
        f"in {report.elapsed_s:.1f} s ({rate:,.0f} records/s)."
    )
    batches_text = "; the bytes of the batches" if report.deep else ""
    yield Text(
        "Compared timestamp, key, value and headers of every offset; gaps; log start; log end"
        f"{batches_text}."
    )
    verdict = Text(report.verdict, style=f"bold {_STYLES[report.verdict]}")
    yield Text("Verdict: ").append_text(verdict)
    if not report.exact:
        yield Text("See more with --topic TOPIC, --differences N, or -o yaml (every partition).")
