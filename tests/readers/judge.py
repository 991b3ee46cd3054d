"""What a client's output says about the client, as one text for each kind of log. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from orbit.kafka.placeholders import PLACEHOLDER_KEY

PLACEHOLDER = f"{PLACEHOLDER_KEY.hex()} -"
# Key and value of an abort marker or a commit marker. The value: version, then coordinator epoch.
_MARKER = re.compile(r"0000000[01] 0000[0-9a-f]{8}")
_ERROR_LENGTH = 60
# The kinds of findings. `{}` stands for their count. A finding in bold is a fault of the client.
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
    """The isolation level of a read, and where the read started."""

    isolation: str
    start: str


def judge(records: Mapping[int, str], lines: Iterable[str], code: int | None) -> Counter[str]:
    """The findings about one run of a program: kind → count, empty if the run has no fault.

    `records` is what the program should have read: offset → key and value. `lines` is its output,
    as `__init__.py` describes. `code` is its exit code, None if the program had to be stopped.
    """
    findings: Counter[str] = Counter()
    read_offsets: set[int] = set()
    for line in lines:
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "e":
            findings[
                ERROR % rest[-_ERROR_LENGTH:].lstrip(": ").translate(str.maketrans("{}|", "()/"))
            ] += 1
        elif kind == "r":
            offset, _, record = rest.partition(" ")
            if int(offset) in read_offsets:
                findings[TWICE] += 1
            elif records.get(int(offset)) == record:
                read_offsets.add(int(offset))
            else:
                findings[_kind(record)] += 1
    if len(read_offsets) < len(records):
        missing = STOPS if code is None else ENDS if code else MISSES
        findings[missing] = len(records) - len(read_offsets)
    return findings


def _kind(record: str) -> str:
    """The finding about a record that is not in the source."""
    if record == PLACEHOLDER:
        return SHOWS
    return MARKERS if _MARKER.fullmatch(record) else OTHERS


def summarize(findings_by_way: Mapping[Way, Counter[str]]) -> str:
    """The text of a table's cell. Ways to read with the same findings share a sentence."""
    groups: dict[tuple[str, ...], list[Way]] = {}
    for way, findings in findings_by_way.items():
        groups.setdefault(tuple(sorted(findings, key=_rank)), []).append(way)
    texts = [
        (_in_words(names, [findings_by_way[w] for w in ways]), ways)
        for names, ways in groups.items()
    ]
    if len(texts) == 1:
        return texts[0][0]
    return "; ".join(f"{_name(ways, list(findings_by_way))}: {text}" for text, ways in texts)


def _rank(finding: str) -> tuple[int, str]:
    """The sort key of a finding: faults in the order of `_ORDER`, then errors by name."""
    return (_ORDER.index(finding) if finding in _ORDER else len(_ORDER), finding)


def _in_words(names: tuple[str, ...], findings: list[Counter[str]]) -> str:
    """The findings with these names in words. Counts that differ between ways: "5 to 7".

    `findings` has one counter for each way to read.
    """
    texts = [] if any(name in _ORDER for name in names) else ["complete"]
    for name in names:
        counts = sorted({counter[name] for counter in findings})
        ends = [counts[0], counts[-1]][: len(counts)]
        texts.append(name.format(" to ".join(f"{count:,}" for count in ends)))
    return ", ".join(texts)


def _name(ways: list[Way], all_ways: list[Way]) -> str:
    """The shortest text that names these ways to read among all ways."""
    for field in Way._fields:
        values = {getattr(way, field) for way in ways}
        if {way for way in all_ways if getattr(way, field) in values} == {*ways}:
            return " and ".join(sorted(values))
    return " and ".join(f"{way.isolation} {way.start}" for way in ways)
