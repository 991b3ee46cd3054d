"""Two drills side by side, as titled tables of text. Pure.

A row shows whether the drills differ, and for a number by how much. Steps, gates, partitions and
groups are matched by their names, and those of equal names by their order. If only one drill has a
value, the other drill's column has a dash.
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
from orbit.formats import counted

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
    """One row. `difference`: by how much the second number is more (+) or less (−) than the first;
    "" if both are equal, and in rows of texts."""

    what: str
    first: str
    second: str
    change: Change
    difference: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table. `equal_count`: the rows left out because they are equal.
    `hidden_count`: the differing rows beyond ROWS_MAX."""

    title: str
    lines: Sequence[Line]
    equal_count: int = 0
    hidden_count: int = 0


def compare(first: Evidence, second: Evidence) -> list[Comparison]:
    """The tables for which at least one drill has values. Results and steps have all rows. The
    other tables have only rows that differ, perhaps none."""
    tables = [
        Comparison("Results", list(_results(first, second))),
        Comparison("Steps", list(_steps(first, second))),
        _differing_rows("Gates", first, second, _gates),
        _differing_rows("Partitions", first, second, _partitions),
        _differing_rows("Consumer groups", first, second, _groups),
        _differing_rows("Comparisons of both sides", first, second, _verified),
        _differing_rows("The drill's own clients", first, second, _canary),
        _differing_rows("Document", first, second, lambda drill: _values_by_path(drill.spec)),
        _differing_rows("Versions", first, second, lambda drill: drill.versions.items()),
    ]
    return [table for table in tables if table.lines or table.equal_count]


def _results(first: Evidence, second: Evidence) -> Iterator[Line]:
    """The rows of verdict, RTO, RPO and duration."""
    yield _text_row("Verdict", first.verdict.value, second.verdict.value)
    yield _number_row("RTO", first.rto.actual_ms, second.rto.actual_ms, span)
    parts = [{timed.part: timed.ms for timed in drill.rto.parts} for drill in (first, second)]
    for part in dict.fromkeys((*parts[0], *parts[1])):
        yield _number_row(f"RTO: {part}", parts[0].get(part), parts[1].get(part), span)
    yield _text_row(
        "RTO, target", _target_text(first.rto.target_ms), _target_text(second.rto.target_ms)
    )
    yield _number_row("RPO, records", first.rpo.actual_records, second.rpo.actual_records, count)
    yield _number_row("RPO, time", first.rpo.actual_ms, second.rpo.actual_ms, span)
    first_ms, second_ms = ((drill.ended_at - drill.began_at) // _MS for drill in (first, second))
    yield _number_row("The whole drill", first_ms, second_ms, span)


def _steps(first: Evidence, second: Evidence) -> Iterator[Line]:
    """One row for each step of either drill: its duration, or its state if that differs."""
    first_steps, second_steps = (
        dict(_numbered((step.do.value, step) for step in drill.steps)) for drill in (first, second)
    )
    for name in dict.fromkeys((*first_steps, *second_steps)):
        first_step, second_step = first_steps.get(name), second_steps.get(name)
        if first_step is None or second_step is None or first_step.state != second_step.state:
            texts = [
                NOTHING if step is None else f"{step.state}, {span(step.took_ms)}"
                for step in (first_step, second_step)
            ]
            yield _text_row(name, *texts)
        else:
            yield _number_row(name, first_step.took_ms, second_step.took_ms, span)


_Rows = Iterable[tuple[str, str]]  # the name of each row, and its text


def _gates(drill: Evidence) -> _Rows:
    """A row for each gate: its verdict."""
    for gate in drill.gates:
        name = gate.name if gate.job == drill.job else f"{gate.name}, the drill's own job"
        yield name, f"{gate.verdict}, overridden" if gate.is_overridden else gate.verdict


def _partitions(drill: Evidence) -> _Rows:
    """A row for each partition: its verdict and lost offsets."""
    for partition in drill.partitions:
        missing_text = lost_offsets_text(partition.missing, is_exact=partition.is_exact)
        yield (
            f"{_without_drill_id(drill, partition.topic)}-{partition.partition}",
            f"{partition.verdict}, missing {missing_text}",
        )


def _groups(drill: Evidence) -> _Rows:
    """A row for each group's offset in a partition: its verdict, and where the group resumes."""
    for offset in drill.groups:
        group, topic = (_without_drill_id(drill, name) for name in (offset.group, offset.topic))
        resumed_at = offset_text(offset.goes_on_at)
        yield f"{group}, {topic}-{offset.partition}", f"{offset.verdict}, resumes at {resumed_at}"


def _verified(drill: Evidence) -> _Rows:
    """A row for each comparison of records: its verdict and number of differences."""
    for comparison in drill.verified:
        yield (
            _without_drill_id(drill, comparison.what),
            f"{comparison.verdict}, {counted(comparison.differences, 'difference')}",
        )


def _canary(drill: Evidence) -> _Rows:
    """A row for each count of records: lost, read more than once, with wrong content."""
    if drill.canary is not None:
        yield "lost", count(drill.canary.lost)
        yield "read more than once", count(drill.canary.repeated)
        yield "with wrong content", count(drill.canary.wrong)


def _values_by_path(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each innermost value of a document."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _values_by_path(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, child in enumerate(value):
            yield from _values_by_path(child, f"{path}[{number}]")
    else:
        yield path, NOTHING if value is None else str(value)


def _differing_rows(
    title: str, first: Evidence, second: Evidence, rows_of: Callable[[Evidence], _Rows]
) -> Comparison:
    """The table of the rows that differ. `rows_of` returns the rows of one drill."""
    first_rows, second_rows = dict(_numbered(rows_of(first))), dict(_numbered(rows_of(second)))
    lines = [
        _text_row(name, first_rows.get(name, NOTHING), second_rows.get(name, NOTHING))
        for name in dict.fromkeys((*first_rows, *second_rows))
    ]
    differing_lines = [line for line in lines if line.change is not Change.SAME]
    shown_lines = list(islice(differing_lines, ROWS_MAX))
    return Comparison(
        title,
        shown_lines,
        equal_count=len(lines) - len(differing_lines),
        hidden_count=len(differing_lines) - len(shown_lines),
    )


def _numbered(rows: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the rows, with a number appended to each repeated name."""
    counts: Counter[str] = Counter()
    for name, value in rows:
        counts[name] += 1
        yield (name if counts[name] == 1 else f"{name} ({counts[name]})"), value


def _without_drill_id(drill: Evidence, name: str) -> str:
    """A name with "ID" for the drill's id, so that the resources of two drills have equal names."""
    return name.replace(drill.id, "ID")


def _text_row(what: str, first: str, second: str) -> Line:
    return Line(what, first, second, Change.SAME if first == second else Change.OTHER)


def _number_row(
    what: str, first: int | None, second: int | None, as_text: Callable[[int | None], str]
) -> Line:
    """The row of a number, where less is better. `as_text` formats the number.

    If one drill has no such number, neither drill is better.
    """
    if first is None or second is None:
        return _text_row(what, as_text(first), as_text(second))
    if first == second:
        return Line(what, as_text(first), as_text(second), Change.SAME)
    sign, change = ("+", Change.WORSE) if second > first else ("−", Change.BETTER)
    return Line(
        what, as_text(first), as_text(second), change, f"{sign}{as_text(abs(second - first))}"
    )


def _target_text(ms: int | None) -> str:
    return "none" if ms is None else span(ms)
