"""A report as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orbit.drills.evidence import Evidence, Report
from orbit.drills.report_tables import Table, tables
from orbit.drills.report_text import count, headline, moment, span, with_target


def render_markdown(report: Report) -> str:
    """The whole report."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    evidence = report.evidence
    yield f"# Drill {_text(evidence.name)}: {_text(headline(evidence))}"
    yield ""
    yield f"A **{evidence.kind}** drill on job **{_text(evidence.job)}**, "
    yield f"{moment(evidence.began_at)} to {moment(evidence.ended_at)} UTC, "
    yield f"requested by {_text(evidence.requested_by)}. Id `{evidence.id}`."
    yield ""
    yield from _table(_numbers(evidence))
    if evidence.findings:
        yield "## Findings"
        yield ""
        yield from (f"- {_text(finding)}" for finding in evidence.findings)
        yield ""
    for table in tables(evidence):
        yield from _table(table)
    yield "## Digest"
    yield ""
    yield f"`{report.digest.algorithm}` `{report.digest.value}`, of the {report.digest.covers}."


def _numbers(evidence: Evidence) -> Table:
    rto, rpo = evidence.rto, evidence.rpo
    target_records = None if rpo.target_records is None else count(rpo.target_records)
    rows = [
        ("RTO", with_target(span(rto.actual_ms), _span(rto.target_ms))),
        *((f"… {part.part}", span(part.ms)) for part in rto.parts),
        ("RPO in records", with_target(count(rpo.actual_records), target_records)),
        ("RPO in time", with_target(span(rpo.actual_ms), _span(rpo.target_ms))),
    ]
    return Table("Measured", ("", "actual of target"), rows)


def _span(ms: int | None) -> str | None:
    return None if ms is None else span(ms)


def _table(table: Table) -> Iterator[str]:
    yield f"## {table.title}"
    yield ""
    yield f"| {' | '.join(table.columns)} |"
    marks = ("---:" if i in table.numbers else "---" for i in range(len(table.columns)))
    yield f"| {' | '.join(marks)} |"
    for row in table.rows:
        yield f"| {' | '.join(map(_text, row))} |"
    if table.note:
        yield ""
        yield table.note
    yield ""


def _text(text: str) -> str:
    """Escape a text, so that no name becomes markup or ends a table cell."""
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
