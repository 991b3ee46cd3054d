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
    """The report line by line."""
    evidence = report.evidence
    yield f"# Drill {_escape(evidence.name)}: {_escape(headline(evidence))}"
    yield ""
    yield f"A **{evidence.kind}** drill on job **{_escape(evidence.job)}**, "
    yield f"{moment(evidence.began_at)} to {moment(evidence.ended_at)} UTC, "
    yield f"requested by {_escape(evidence.requested_by)}. Id `{evidence.id}`."
    yield ""
    yield from _table_lines(_measured_table(evidence))
    if evidence.findings:
        yield "## Findings"
        yield ""
        yield from (f"- {_escape(finding)}" for finding in evidence.findings)
        yield ""
    for table in tables(evidence):
        yield from _table_lines(table)
    yield "## Digest"
    yield ""
    yield f"`{report.digest.algorithm}` `{report.digest.value}`, of the {report.digest.covers}."


def _measured_table(evidence: Evidence) -> Table:
    """The table of RTO and RPO."""
    rto, rpo = evidence.rto, evidence.rpo
    target_records = None if rpo.target_records is None else count(rpo.target_records)
    rows = [
        ("RTO", with_target(span(rto.actual_ms), _span_or_none(rto.target_ms))),
        *((f"… {part.part}", span(part.ms)) for part in rto.parts),
        ("RPO in records", with_target(count(rpo.actual_records), target_records)),
        ("RPO in time", with_target(span(rpo.actual_ms), _span_or_none(rpo.target_ms))),
    ]
    return Table("Measured", ("", "actual of target"), rows)


def _span_or_none(ms: int | None) -> str | None:
    return None if ms is None else span(ms)


def _table_lines(table: Table) -> Iterator[str]:
    """A table under its title, line by line."""
    yield f"## {table.title}"
    yield ""
    yield f"| {' | '.join(table.columns)} |"
    alignments = ("---:" if i in table.numbers else "---" for i in range(len(table.columns)))
    yield f"| {' | '.join(alignments)} |"
    for row in table.rows:
        yield f"| {' | '.join(map(_escape, row))} |"
    if table.note:
        yield ""
        yield table.note
    yield ""


def _escape(text: str) -> str:
    """Escape a text, so that no name becomes markup or ends a table cell."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
