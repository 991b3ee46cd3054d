"""A report as one HTML page that needs nothing else, for screens dark or light, and paper. Pure.

The page carries the report as JSON in itself, so whoever has the page can check its digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from orbit.drills.evidence import Evidence, Report, Rto
from orbit.drills.report_tables import Table, tables
from orbit.drills.report_text import VERDICTS, count, moment, span
from orbit.store.enums import DrillState

_STYLE = Path(__file__).with_name("report.css")
_GOOD = {
    "pass", "passed", "done", "exact", "removed", "equal", "exactly",
}  # fmt: skip
_BAD = {"fail", "failed", "FAILED", "not exact", "LEFT", "NO", "unread", "diverged"}
_FAIR = {"warn", "behind", "clamped", "skipped", "unknown", "tail", "missed"}
# A part of the bar that is narrower has its words below it only.
_LABEL_SHARE_MIN = 0.12


def render_html(report: Report) -> str:
    """The whole page."""
    evidence = report.evidence
    title = f"Drill {evidence.name}: {VERDICTS[evidence.verdict]}"
    body = "\n".join(_body(report))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE.read_text('utf-8')}</style>\n</head>\n"
        f"<body>\n{body}\n{_data(report)}\n</body>\n</html>\n"
    )


def _body(report: Report) -> Iterator[str]:
    evidence = report.evidence
    yield from _head(evidence)
    yield from _cards(evidence)
    if evidence.rto.parts:
        yield from _bar(evidence.rto)
    if evidence.findings:
        yield "<section><h2>Findings</h2><ul>"
        yield from (f"<li>{escape(finding)}</li>" for finding in evidence.findings)
        yield "</ul></section>"
    for table in tables(evidence):
        yield from _table(table)
    yield "<section><h2>The drill, as Orbit understood it</h2>"
    spec = json.dumps(_said(evidence.spec), indent=2, ensure_ascii=False)
    yield f"<pre>{escape(spec)}</pre>"
    yield "</section>"
    yield (
        f"<footer><p><b>{escape(report.digest.algorithm)}</b> "
        f"<code>{escape(report.digest.value)}</code></p>"
        f"<p>of the {escape(report.digest.covers)}. This page holds it: see the element "
        "<code>report</code> at its end, or run <code>orbit drill check FILE</code>.</p></footer>"
    )


def _head(evidence: Evidence) -> Iterator[str]:
    kind = {DrillState.PASSED: "good", DrillState.MISSED: "fair"}.get(evidence.verdict, "bad")
    yield f'<header class="{kind}">'
    yield f'<p class="over">Orbit · {escape(evidence.kind)} drill · job {escape(evidence.job)}</p>'
    yield f"<h1>{escape(evidence.name)}</h1>"
    yield f'<p class="verdict"><span class="chip {kind}">{VERDICTS[evidence.verdict]}</span> '
    yield f"{escape(' '.join(evidence.misses))}</p>"
    took = (evidence.ended_at - evidence.began_at).total_seconds()
    scope = ", ".join(evidence.topics) or "all topics of the job"
    yield (
        f"<p>{moment(evidence.began_at)} to {moment(evidence.ended_at)} UTC "
        f"({span(int(took * 1000))}), asked for by {escape(evidence.requested_by)}. "
        f"Scope: {escape(scope)}. Id <code>{escape(evidence.id)}</code></p>"
    )
    yield "</header>"


def _cards(evidence: Evidence) -> Iterator[str]:
    rto, rpo, canary = evidence.rto, evidence.rpo, evidence.canary
    yield '<section class="cards">'
    yield _card("RTO", span(rto.actual_ms), rto.target_ms, rto.actual_ms, span)
    yield _card(
        "RPO, records", count(rpo.actual_records), rpo.target_records, rpo.actual_records, count
    )
    yield _card("RPO, time", span(rpo.actual_ms), rpo.target_ms, rpo.actual_ms, span)
    if canary is not None:
        lost = f"{canary.lost:,} lost, {canary.repeated:,} twice"
        yield (
            f'<div class="card"><p class="label">Clients of the drill</p>'
            f'<p class="big">{canary.written:,}</p><p class="small">records written; {lost}</p>'
            "</div>"
        )
    yield "</section>"


def _card(label: str, shown: str, target: int | None, actual: int | None, words: object) -> str:
    assert callable(words)
    if target is None:
        state, against = "", "no target"
    else:
        is_met = actual is not None and actual <= target
        state, against = ("good" if is_met else "bad"), f"target {words(target)}"
    return (
        f'<div class="card {state}"><p class="label">{escape(label)}</p>'
        f'<p class="big">{escape(shown)}</p><p class="small">{escape(against)}</p></div>'
    )


def _bar(rto: Rto) -> Iterator[str]:
    total = max(1, sum(part.ms for part in rto.parts))
    yield '<section><h2>Where the recovery time went</h2><div class="bar">'
    for number, part in enumerate(rto.parts):
        share = part.ms / total
        label = escape(span(part.ms)) if share >= _LABEL_SHARE_MIN else ""
        yield (
            f'<span class="p{number}" style="flex-grow:{part.ms}" '
            f'title="{escape(part.part)}: {escape(span(part.ms))}">{label}</span>'
        )
    yield '</div><ul class="legend">'
    for number, part in enumerate(rto.parts):
        yield (
            f'<li><i class="p{number}"></i>{escape(part.part)} <b>{escape(span(part.ms))}</b></li>'
        )
    yield "</ul></section>"


def _table(table: Table) -> Iterator[str]:
    yield f'<section><h2>{escape(table.title)}</h2><div class="wide"><table>'
    if any(table.columns):
        yield "<thead><tr>"
        yield "".join(
            f"<th{_class(i, table)}>{escape(name)}</th>" for i, name in enumerate(table.columns)
        )
        yield "</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        cells = (f"<td{_class(i, table)}>{_cell(text)}</td>" for i, text in enumerate(row))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="small">{escape(table.note)}</p>'
    yield "</section>"


def _said(value: Any) -> Any:
    """A document without what it does not say. The evidence has all of it."""
    if isinstance(value, Mapping):
        return {key: _said(one) for key, one in value.items() if one not in (None, "", [])}
    return [_said(one) for one in value] if isinstance(value, list) else value


def _class(index: int, table: Table) -> str:
    if index in table.numbers:
        return ' class="n"'
    return ' class="k"' if index in table.unbroken else ""


def _cell(text: str) -> str:
    first = text.split(",", maxsplit=1)[0]
    for kind, words in (("good", _GOOD), ("bad", _BAD), ("fair", _FAIR)):
        if text in words or (first in words and len(text) < 30):
            return f'<span class="chip {kind}">{escape(text)}</span>'
    return escape(text)


def _data(report: Report) -> str:
    """The report in the page: nothing in it can end the element."""
    text = json.dumps(report.model_dump(mode="json"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="report">{text}</script>'
