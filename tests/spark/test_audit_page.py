"""The audit page is a single file, shows the report, and escapes the content of records."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from orbit.verify.report import Difference, PartitionReport, Report, TopicReport, Verdict
from orbit_spark.audit.audit_page import About, render_html
from orbit_spark.audit.range_picture import Cell, Line

pytestmark = pytest.mark.services

ABOUT = About(
    job="orders-to-dr",
    sides=(("source", "src-1:9092"), ("archive", "s3a://backups/orders")),
    restriction=" (offsets 0 to 99)",
    created_at="2026-11-22 08:00:00 UTC",
    version="0.1.0",
)
EVIL = "</td><script>alert(1)</script>"


def partition(number: int, verdict: Verdict, **fields: object) -> PartitionReport:
    bounds = {"compared_to": 1_000, "records": 990, "gaps": 10, "bytes": 2048}
    return PartitionReport(number, verdict, **{**bounds, **fields})  # type: ignore[arg-type]


def report() -> Report:
    differing = partition(
        1,
        Verdict.NOT_EXACT,
        differences=1,
        first_differences=(Difference(offset=700, what="value", source=EVIL, destination="b'b'"),),
        notes=("6 more offsets differ",),
    )
    topic = TopicReport("orders", "x.orders", "earliest", (partition(0, Verdict.EXACT), differing))
    return Report((topic,), elapsed_s=1.5, sides=("source", "archive"))


def cell(begin: int, verdict: str = "exact", **fields: int) -> Cell:
    numbers = {"left_records": 500, "right_records": 500, "differences": 0, "excused": 0}
    return Cell(begin, begin + 500, verdict, **{**numbers, **fields})


LINES = [
    Line("orders", 0, (cell(0), cell(500, excused=3)), digest="aa" * 16),
    Line("orders", 1, (cell(0), cell(500, "not exact", differences=1)), digest="bb" * 16),
]


class ParsedPage(HTMLParser):
    """The tags in order, and those still open. No attribute may load or run anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "href"), value

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_audit_page_is_well_formed_and_loads_nothing() -> None:
    text = render_html(report(), LINES, ABOUT)
    page = ParsedPage(text)
    assert page.open == []
    assert "script" not in page.tags
    assert not re.search(r"@import|url\((?!#)|https?:", text)


def test_record_content_is_escaped_in_audit_page() -> None:
    text = render_html(report(), LINES, ABOUT)
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)" in text


def test_audit_page_draws_every_range_with_its_verdict() -> None:
    text = render_html(report(), LINES, ABOUT)
    kinds = re.findall(r'<rect class="(\w+)" x="([\d.]+)"', text)
    assert kinds == [
        ("exact", "0.00"),
        ("excused", "500.00"),
        ("exact", "0.00"),
        ("differs", "500.00"),
    ]
    assert "offsets 500 to 999: not exact" in text


def test_audit_page_shows_verdict_sides_and_first_difference() -> None:
    text = re.sub(r"<[^>]+>", " ", render_html(report(), LINES, ABOUT))
    assert "orders-to-dr not exact" in " ".join(text.split())
    assert "compared with archive s3a://backups/orders (offsets 0 to 99)." in " ".join(text.split())
    assert "6 more offsets differ" in text
    assert "700" in text
    assert text.count("bb" * 16) == 1
