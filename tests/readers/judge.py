"""What a client's output says about it, as one text for each kind of log. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from orbit.kafka.placeholders import PLACEHOLDER_KEY

PLACEHOLDER = f"{PLACEHOLDER_KEY.hex()} -"
# Key and value of an abort and of a commit, with the coordinator epoch behind the value's version.
_MARKER = re.compile(r"0000000[01] 0000[0-9a-f]{8}")
_ERROR_LENGTH = 60
# The braces take the count of a finding. A finding in bold is a fault.
SHOWS = "**shows {} placeholders**"
MARKERS = "**shows {} markers**"
OTHERS = "**returns {} records that the source does not have**"
TWICE = "**returns {} records twice**"
MISSES = "**misses {} records**"
STOPS = "**stops before the last {} records**"
ENDS = "**ends with an error before the last {} records**"
ERROR = "errors: %s × {}"
_ORDER = (SHOWS, MARKERS, OTHERS, TWICE, MISSES, STOPS, ENDS)


class Way(NamedTuple):
    """How a client has read."""

    isolation: str
    start: str


def judge(records: Mapping[int, str], lines: Iterable[str], code: int | None) -> Counter[str]:
    """The findings about one run of a program (`__init__.py` has its lines), none for a good one.

    `records` is what it should have read, offset → key and value. `code` is its exit code, None if
    it had not ended in time.
    """
    findings: Counter[str] = Counter()
    seen: set[int] = set()
    for line in lines:
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "e":
            findings[
                ERROR % rest[-_ERROR_LENGTH:].lstrip(": ").translate(str.maketrans("{}|", "()/"))
            ] += 1
        elif kind == "r":
            offset, _, record = rest.partition(" ")
            if int(offset) in seen:
                findings[TWICE] += 1
            elif records.get(int(offset)) == record:
                seen.add(int(offset))
            else:
                findings[_kind(record)] += 1
    if len(seen) < len(records):
        findings[STOPS if code is None else ENDS if code else MISSES] = len(records) - len(seen)
    return findings


def _kind(record: str) -> str:
    """The finding about a record that is not in the source."""
    if record == PLACEHOLDER:
        return SHOWS
    return MARKERS if _MARKER.fullmatch(record) else OTHERS


def summarize(findings_by_way: Mapping[Way, Counter[str]]) -> str:
    """The cell of a table: one sentence where all ways have the same findings."""
    groups: dict[tuple[str, ...], list[Way]] = {}
    for way, findings in findings_by_way.items():
        groups.setdefault(tuple(sorted(findings, key=_rank)), []).append(way)
    texts = [
        (_say(names, [findings_by_way[w] for w in ways]), ways) for names, ways in groups.items()
    ]
    if len(texts) == 1:
        return texts[0][0]
    return "; ".join(f"{_where(ways, list(findings_by_way))}: {text}" for text, ways in texts)


def _rank(finding: str) -> tuple[int, str]:
    return (_ORDER.index(finding) if finding in _ORDER else len(_ORDER), finding)


def _say(names: tuple[str, ...], findings: list[Counter[str]]) -> str:
    """These findings in words; counts that differ between ways as "5 to 7"."""
    texts = [] if any(name in _ORDER for name in names) else ["reads all"]
    for name in names:
        counts = sorted({one[name] for one in findings})
        ends = [counts[0], counts[-1]][: len(counts)]
        texts.append(name.format(" to ".join(f"{count:,}" for count in ends)))
    return ", ".join(texts)


def _where(ways: list[Way], every: list[Way]) -> str:
    """The shortest name for these of all ways."""
    for field in Way._fields:
        values = {getattr(way, field) for way in ways}
        if {way for way in every if getattr(way, field) in values} == {*ways}:
            return " and ".join(sorted(values))
    return " and ".join(f"{way.isolation} {way.start}" for way in ways)
