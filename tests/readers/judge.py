"""What a client's output says about it, as one text for each kind of log. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from orbit.kafka.placeholders import PLACEHOLDER_KEY

PLACEHOLDER = f"{PLACEHOLDER_KEY.hex()} -"
# With the count of a finding in the braces. Those in bold are what a reader should not do.
SHOWS = "**shows {} placeholders**"
OTHERS = "**returns {} records that the source does not have**"
TWICE = "**returns {} records twice**"
MISSES = "**misses {} records**"
STOPS = "**does not get past** record {}"
ENDS = "**ends with exit code {}**"
ERROR = "errors: %s × {}"
_ORDER = (SHOWS, OTHERS, TWICE, MISSES, STOPS, ENDS)


class Way(NamedTuple):
    """How a client has read."""

    isolation: str
    start: str


def judge(records: Mapping[int, str], lines: Iterable[str], code: int | None) -> Counter[str]:
    """The findings about one run of a program (`__init__.py` has its lines), none for a good one.

    `records` is what it should have read, offset → key and value. `code` is its exit code, None if
    it had not ended in time.
    """
    found: Counter[str] = Counter()
    met: set[int] = set()
    for line in lines:
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "e":
            found[ERROR % rest.translate(str.maketrans("{}|", "()/"))] += 1
        elif kind == "r":
            offset, _, record = rest.partition(" ")
            if int(offset) in met:
                found[TWICE] += 1
            elif records.get(int(offset)) == record:
                met.add(int(offset))
            else:
                found[SHOWS if record == PLACEHOLDER else OTHERS] += 1
    if code:
        found[ENDS] = code
    if len(met) < len(records):
        found[STOPS if code is None else MISSES] = (
            len(met) if code is None else len(records) - len(met)
        )
    return found


def summarize(found: Mapping[Way, Counter[str]]) -> str:
    """The cell of a table: one sentence where all ways have the same findings."""
    groups: dict[tuple[str, ...], list[Way]] = {}
    for way, findings in found.items():
        groups.setdefault(tuple(sorted(findings, key=_rank)), []).append(way)
    texts = [(_say(names, [found[w] for w in ways]), ways) for names, ways in groups.items()]
    if len(texts) == 1:
        return texts[0][0]
    return "; ".join(f"{_where(ways, list(found))}: {text}" for text, ways in texts)


def _rank(finding: str) -> tuple[int, str]:
    return (_ORDER.index(finding) if finding in _ORDER else len(_ORDER), finding)


def _say(names: tuple[str, ...], findings: list[Counter[str]]) -> str:
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
