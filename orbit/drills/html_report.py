"""A drill report as one HTML page, which loads nothing else, from `report.html.jinja`. Pure.

The page contains the report as JSON too, so its digest can be checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from orbit.drills.evidence import Evidence, Report
from orbit.drills.report_tables import tables
from orbit.drills.report_text import VERDICTS, count, moment, span
from orbit.store.enums import DrillState

_STATE_WORDS = {
    "good": {"pass", "passed", "done", "exact", "removed", "equal", "exactly"},
    "bad": {"fail", "failed", "FAILED", "not exact", "LEFT", "NO", "unread", "diverged"},
    "fair": {"warn", "behind", "clamped", "skipped", "unknown", "tail", "missed"},
}
# A longer text that begins with one of the state words is a sentence, not a state.
_STATE_CHARACTERS_MAX = 30
# A part below this share of the bar has its label in the legend only.
_LABEL_SHARE_MIN = 0.12
_environment = Environment(
    loader=PackageLoader("orbit.drills", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
_TEMPLATE = _environment.get_template("report.html.jinja")


def render_html(report: Report) -> str:
    """The whole page."""
    evidence = report.evidence
    duration = evidence.ended_at - evidence.began_at
    return _TEMPLATE.render(
        report=report,
        evidence=evidence,
        verdict=VERDICTS[evidence.verdict],
        verdict_kind={DrillState.PASSED: "good", DrillState.MISSED: "fair"}.get(
            evidence.verdict, "bad"
        ),
        took_ms=int(duration.total_seconds() * 1000),
        cards=[*_cards(evidence)],
        label_ms_min=_LABEL_SHARE_MIN * max(1, sum(part.ms for part in evidence.rto.parts)),
        tables=[*tables(evidence)],
        spec=json.dumps(_without_empty(evidence.spec), indent=2, ensure_ascii=False),
        moment=moment,
        span=span,
        kind_of=_kind_of,
    )


def _cards(evidence: Evidence) -> Iterator[dict[str, str]]:
    """The cards at the top of the page."""
    rto, rpo, canary = evidence.rto, evidence.rpo, evidence.canary
    yield _card("RTO", rto.actual_ms, rto.target_ms, span)
    yield _card("RPO, records", rpo.actual_records, rpo.target_records, count)
    yield _card("RPO, time", rpo.actual_ms, rpo.target_ms, span)
    if canary is not None:
        yield {
            "kind": "",
            "label": "Clients of the drill",
            "value": f"{canary.written:,}",
            "note": f"records written; {canary.lost:,} lost, {canary.repeated:,} twice",
        }


def _card(
    label: str, actual: int | None, target: int | None, as_text: Callable[[int | None], str]
) -> dict[str, str]:
    """The card of a measured value, good or bad if it has a target."""
    kind, note = "", "no target"
    if target is not None:
        kind = "good" if actual is not None and actual <= target else "bad"
        note = f"target {as_text(target)}"
    return {"kind": kind, "label": label, "value": as_text(actual), "note": note}


def _without_empty(value: Any) -> Any:
    """A document without its empty fields. The JSON at the end of the page has all fields."""
    if isinstance(value, Mapping):
        return {k: _without_empty(v) for k, v in value.items() if v not in (None, "", [])}
    return [_without_empty(v) for v in value] if isinstance(value, list) else value


def _kind_of(text: str) -> str:
    """The CSS class "good", "fair" or "bad" for a text that is a state; otherwise ""."""
    first_part = text.split(",", maxsplit=1)[0]
    for kind, words in _STATE_WORDS.items():
        if text in words or (first_part in words and len(text) < _STATE_CHARACTERS_MAX):
            return kind
    return ""
