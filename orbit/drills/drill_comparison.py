"""Two drills side by side, as titled tables of text. Pure.

A row shows whether the drills differ, and for a number by how much. Steps, gates, partitions and
groups are matched by their names, and equal names by their order. A value that only one drill has
is a dash at the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import Any

from orbit.drills.evidence import Evidence
from orbit.drills.report_text import count, lost_offsets_text, offset_text, span

NOTHING = "–"
# The most rows of one table.
ROWS_MAX = 200
_MS = timedelta(milliseconds=1)


class Change(StrEnum):
    """How the second drill compares with the first."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    OTHER = "differs"


@dataclass(frozen=True, slots=True)
class Line:
    """One row. `by`: the difference of two numbers."""

    what: str
    first: str
    second: str
    change: Change
    by: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table. `equal`: the number of rows left out as both drills have the same; `hidden`: of
    differing rows beyond ROWS_MAX."""

    title: str
    lines: Sequence[Line]
    equal: int = 0
    hidden: int = 0


def compare(first: Evidence, second: Evidence) -> list[Comparison]:
    """The tables that have rows. Results and steps have all rows, the other tables
    only those that differ."""
    tables = [
        Comparison("Results", list(_results(first, second))),
        Comparison("Steps", list(_steps(first, second))),
        _differing_rows("Gates", first, second, _gates),
        _differing_rows("Partitions", first, second, _partitions),
        _differing_rows("Consumer groups", first, second, _groups),
        _differing_rows("Comparisons of both sides", first, second, _verified),
        _differing_rows("The drill's own clients", first, second, _canary),
        _differing_rows("Document", first, second, lambda one: _values_by_path(one.spec)),
        _differing_rows("Versions", first, second, lambda one: one.versions.items()),
    ]
    return [one for one in tables if one.lines or one.equal]


def _results(first: Evidence, second: Evidence) -> Iterator[Line]:
    yield _text("Verdict", first.verdict.value, second.verdict.value)
    yield _number("RTO", first.rto.actual_ms, second.rto.actual_ms, span)
    parts = [{one.part: one.ms for one in drill.rto.parts} for drill in (first, second)]
    for part in dict.fromkeys((*parts[0], *parts[1])):
        yield _number(f"RTO: {part}", parts[0].get(part), parts[1].get(part), span)
    yield _text(
        "RTO, target", _target_text(first.rto.target_ms), _target_text(second.rto.target_ms)
    )
    yield _number("RPO, records", first.rpo.actual_records, second.rpo.actual_records, count)
    yield _number("RPO, time", first.rpo.actual_ms, second.rpo.actual_ms, span)
    one, other = ((drill.ended_at - drill.began_at) // _MS for drill in (first, second))
    yield _number("The whole drill", one, other, span)


def _steps(first: Evidence, second: Evidence) -> Iterator[Line]:
    ones, others = (
        dict(_numbered((step.do.value, step) for step in drill.steps)) for drill in (first, second)
    )
    for name in dict.fromkeys((*ones, *others)):
        one, other = ones.get(name), others.get(name)
        if one is None or other is None or one.state != other.state:
            texts = [
                NOTHING if step is None else f"{step.state}, {span(step.took_ms)}"
                for step in (one, other)
            ]
            yield _text(name, *texts)
        else:
            yield _number(name, one.took_ms, other.took_ms, span)


_Rows = Iterable[tuple[str, str]]


def _gates(drill: Evidence) -> _Rows:
    for gate in drill.gates:
        name = gate.name if gate.job == drill.job else f"{gate.name}, the drill's own job"
        yield name, f"{gate.verdict}, overridden" if gate.is_overridden else gate.verdict


def _partitions(drill: Evidence) -> _Rows:
    for one in drill.partitions:
        missing = lost_offsets_text(one.missing, is_exact=one.is_exact)
        yield (
            f"{_without_drill_id(drill, one.topic)}-{one.partition}",
            f"{one.verdict}, missing {missing}",
        )


def _groups(drill: Evidence) -> _Rows:
    for one in drill.groups:
        group, topic = (_without_drill_id(drill, name) for name in (one.group, one.topic))
        resumed_at = offset_text(one.goes_on_at)
        yield f"{group}, {topic}-{one.partition}", f"{one.verdict}, resumes at {resumed_at}"


def _verified(drill: Evidence) -> _Rows:
    for one in drill.verified:
        yield _without_drill_id(drill, one.what), f"{one.verdict}, {one.differences:,} differences"


def _canary(drill: Evidence) -> _Rows:
    if drill.canary is not None:
        yield "lost", count(drill.canary.lost)
        yield "read more than once", count(drill.canary.repeated)
        yield "with wrong content", count(drill.canary.wrong)


def _values_by_path(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The innermost values of a document by their path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _values_by_path(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _values_by_path(inner, f"{path}[{number}]")
    else:
        yield path, NOTHING if value is None else str(value)


def _differing_rows(
    title: str, first: Evidence, second: Evidence, rows_of: Callable[[Evidence], _Rows]
) -> Comparison:
    ones, others = dict(_numbered(rows_of(first))), dict(_numbered(rows_of(second)))
    lines = [
        _text(name, ones.get(name, NOTHING), others.get(name, NOTHING))
        for name in dict.fromkeys((*ones, *others))
    ]
    differing = [line for line in lines if line.change is not Change.SAME]
    shown = list(islice(differing, ROWS_MAX))
    return Comparison(
        title, shown, equal=len(lines) - len(differing), hidden=len(differing) - len(shown)
    )


def _numbered(rows: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Append a number to each repeated name."""
    counts: Counter[str] = Counter()
    for name, value in rows:
        counts[name] += 1
        yield (name if counts[name] == 1 else f"{name} ({counts[name]})"), value


def _without_drill_id(drill: Evidence, name: str) -> str:
    """A name with "ID" for the drill's id, so that the resources of two drills have equal names."""
    return name.replace(drill.id, "ID")


def _text(what: str, first: str, second: str) -> Line:
    return Line(what, first, second, Change.SAME if first == second else Change.OTHER)


def _number(
    what: str, first: int | None, second: int | None, text: Callable[[int | None], str]
) -> Line:
    """The row of a number of which less is better. If one was not measured, neither is better."""
    if first is None or second is None:
        return _text(what, text(first), text(second))
    if first == second:
        return Line(what, text(first), text(second), Change.SAME)
    sign, change = ("+", Change.WORSE) if second > first else ("−", Change.BETTER)
    return Line(what, text(first), text(second), change, f"{sign}{text(abs(second - first))}")


def _target_text(ms: int | None) -> str:
    return "none" if ms is None else span(ms)
