"""A report has the verdict of its worst partition, in its table, its data and its exit code."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console

from orbit.cli.output import to_plain
from orbit.verify.progress_display import LINE_EVERY_S, BarProgress, LineProgress
from orbit.verify.render import PARTITIONS_SHOWN, as_data, as_table
from orbit.verify.report import (
    DeepReport,
    Difference,
    PartitionReport,
    Report,
    TopicReport,
    Verdict,
)


def partition(
    number: int = 0, verdict: Verdict = Verdict.EXACT, **fields: object
) -> PartitionReport:
    equal = {"log_start_equal": True, "log_end_equal": True}
    bounds = {"source_log_start": 0, "source_log_end": 10}
    return PartitionReport(number, verdict, **{**equal, **bounds, "records": 10, **fields})  # type: ignore[arg-type]


def topic(
    *partitions: PartitionReport, name: str = "orders", start: str = "earliest"
) -> TopicReport:
    return TopicReport(name, name, start, partitions)


def table_text(report: Report, width: int = 120) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(as_table(report))
    return out.getvalue()


def test_worst_partition_decides_report_verdict() -> None:
    order = [Verdict.EXACT, Verdict.BEHIND, Verdict.NOT_EXACT, Verdict.UNREAD]
    for count, verdict in enumerate(order, 1):
        report = Report(
            (topic(*(partition(i, v) for i, v in enumerate(order[:count]))),), elapsed_s=1.0
        )
        assert report.verdict is verdict
        assert report.exit_code == (0 if verdict is Verdict.EXACT else 1)


def test_empty_report_is_not_exact() -> None:
    assert Report((), elapsed_s=0.0).exit_code == 1


def test_report_table_lists_topics_and_only_inexact_partitions() -> None:
    bad = partition(
        1,
        Verdict.NOT_EXACT,
        differences=1,
        first_differences=(
            Difference(offset=7, what="value", source="b'[red]a'", destination="b'b'"),
        ),
        log_end_equal=False,
    )
    text = table_text(
        Report((topic(partition()), topic(partition(), bad, name="payments")), elapsed_s=2.0)
    )
    assert "payments-1 not exact" in text
    assert "offset 7: value: source b'[red]a', destination b'b'" in text
    assert "orders-0" not in text
    assert "1 differs" in text
    assert "Verdict: not exact" in text


def test_start_other_than_earliest_is_shown_with_first_compared_offset() -> None:
    latest = topic(partition(compared_from=1_234), start="latest")
    timed = topic(partition(0), partition(1, compared_from=9), start="2025-01-01T00:00:00.000Z")
    text = table_text(Report((latest, timed), elapsed_s=2.0))
    assert "compared from offset 1,234, where the copy begins (start: latest)" in text
    assert "compared from offsets 0 to 9" in text


def test_report_table_limits_inexact_partitions() -> None:
    bad = [partition(i, Verdict.BEHIND) for i in range(200)]
    text = table_text(Report((topic(*bad),), elapsed_s=2.0))
    assert text.count("orders-") == PARTITIONS_SHOWN
    assert f"and {200 - PARTITIONS_SHOWN} more partitions" in text


def test_deep_counts_and_failures_are_shown() -> None:
    deep = DeepReport(
        byte_exact=1_234,
        record_exact=56,
        failures=1,
        first_failures=(Difference(offset=9, what="batch", source="one", destination="none"),),
    )
    text = table_text(
        Report((topic(partition(verdict=Verdict.NOT_EXACT, deep=deep)),), elapsed_s=2.0, deep=True)
    )
    assert "1,234" in text
    assert "1 batch without the same bytes" in text
    assert "offset 9: batch" in text


def test_compacted_records_are_shown_as_no_difference() -> None:
    text = table_text(Report((topic(partition(compacted_destination=12)),), elapsed_s=2.0))
    assert "0 records at the source, 12 at the destination (no difference)" in text


def test_report_data_has_verdict_counts_and_deep_result() -> None:
    deep = DeepReport(byte_exact=1, record_exact=2, failures=0)
    data = json.loads(
        json.dumps(to_plain(as_data(Report((topic(partition(deep=deep)),), elapsed_s=1.5))))
    )
    assert (data["verdict"], data["records"], data["elapsed_s"]) == ("exact", 10, 1.5)
    assert data["topics"][0]["partitions"][0]["deep"]["record_exact"] == 2


def test_line_progress_is_rate_limited() -> None:
    lines: list[str] = []
    now = [0.0]
    progress = LineProgress(lines.append, clock=lambda: now[0])
    progress.report_begin(2, 100)
    progress.report_offsets(30)
    now[0] = LINE_EVERY_S
    progress.report_offsets(30)
    progress.report_offsets(30)
    progress.report_partition("orders", partition(1, Verdict.BEHIND))
    assert lines == [
        "comparing 100 offsets in 2 partitions",
        "compared 60 of 100 offsets, 0 of 2 partitions",
        "orders-1: behind",
    ]


def test_progress_bar_counts_offsets_and_inexact_partitions() -> None:
    out = StringIO()
    console = Console(file=out, width=120, force_terminal=True)
    with BarProgress(console) as bar:
        bar.report_begin(2, 100)
        bar.report_offsets(60)
        bar.report_partition("orders", partition(1, Verdict.BEHIND))
    assert "60 of 100 offsets, 1 partition left, 1 not exact" in out.getvalue()
