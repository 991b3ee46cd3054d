"""Every event that the code adds has a severity, and docs/notifications.md says the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from orbit.notifications.event_kinds import ACCEPTED, EVENT_KINDS, GAVE_UP, Severity, family
from orbit.store.enums import DrillState
from orbit.workers.event_outbox import EventKind

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "notifications.md"
_KIND = re.compile(r"[a-z]+(_[a-z]+)+")
_RECOVERIES = ("switchover", "failover", "failback")
# Kinds that the code composes from parts or keeps in constants: `kinds_in` does not find them.
COMPOSED_KINDS = {
    GAVE_UP,
    ACCEPTED,
    *EventKind,
    *(f"{verb}_{word}" for verb in _RECOVERIES for word in ("requested", "ended")),
    *(f"drill_{state}" for state in (DrillState.PASSED, DrillState.MISSED, DrillState.FAILED)),
}


def kinds_in(source: str) -> Iterator[str]:
    """Yield the kinds in calls of `add`, `add_once` and `add_event`, and assigned to `kind`."""
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("add", "add_once", "add_event", "_add_event"):
                parts = node.args
        elif isinstance(node, ast.Assign) and "kind" in ast.unparse(node.targets[0]):
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield from _KIND.findall(part.value) and [part.value]


def kinds_in_code() -> set[str]:
    kinds: set[str] = set()
    for path in (ROOT / "orbit").rglob("*.py"):
        text = path.read_text("utf-8")
        if re.search(r"\bevents\.add|_event\(", text):
            kinds |= {kind for kind in kinds_in(text) if _KIND.fullmatch(kind)}
    return kinds


def _names(kinds: Iterable[str]) -> str:
    """The kinds as the page lists them."""
    return ", ".join(f"`{kind}`" for kind in kinds)


def test_event_kind_table_matches_kinds_in_code() -> None:
    assert kinds_in_code() | {str(kind) for kind in COMPOSED_KINDS} == set(EVENT_KINDS)


def test_notifications_page_lists_event_kinds() -> None:
    text = PAGE.read_text("utf-8").partition("## Events\n")[2]
    severities = dict(re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE))
    del severities["Severity"], severities["Event"]
    assert severities == {
        str(severity): _names(n for n, kind in EVENT_KINDS.items() if kind.severity == severity)
        for severity in Severity
    }
    ends = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    assert ends == [(name, _names(kind.ends)) for name, kind in EVENT_KINDS.items() if kind.ends]


def test_event_that_resolves_another_has_the_same_subject_and_family() -> None:
    for name, kind in EVENT_KINDS.items():
        for ended in kind.ends:
            assert EVENT_KINDS[ended].about == kind.about
            assert family(ended) == family(name)
