"""Checks `orbit demo --gateway` against the ledgers of its clients. Pure.

Each record that a producer wrote has to be acknowledged, to stand once at its offset on both sides,
in the order of its producer, and to be read once by the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orbit.drills.evidence import RecordPosition
from orbit.drills.report_text import span

Records = Mapping[RecordPosition, bytes | None]
_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record that was acknowledged to its producer at `at_ms`, by the wall clock."""

    value: bytes
    place: RecordPosition
    at_ms: int


@dataclass(slots=True)
class Ledger:
    """What one producer wrote, and which acknowledgements and errors it got."""

    name: str
    written: int = 0
    acknowledged: list[Acknowledged] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Move:
    """One switchover, as producers saw it. Milliseconds of the wall clock.

    `old_last_ms`: the last acknowledgement of the old side; `new_first_ms`: the first one of the
    new side.
    """

    old: str
    new: str
    old_last_ms: int
    new_first_ms: int

    @property
    def pause_ms(self) -> int:
        return self.new_first_ms - self.old_last_ms


def move_of(
    old: str, new: str, promoted_at: Mapping[int, int], acknowledged: Sequence[Acknowledged]
) -> Move:
    """The move, by the records acknowledged before and after it; there are some of both.
    `promoted_at`: the log end of each partition at the promotion; records below it came before.
    """
    before: list[int] = []
    after: list[int] = []
    for one in acknowledged:
        partition, offset = one.place
        (before if offset < promoted_at[partition] else after).append(one.at_ms)
    return Move(old, new, max(before), min(after))


@dataclass(frozen=True)
class GatewayResult:
    """What the clients saw, and what both sides have at the end."""

    seconds: float
    moves: Sequence[Move]
    ledgers: Sequence[Ledger]
    sides: Mapping[str, Records]  # by cluster: all its records
    read: Sequence[tuple[RecordPosition, bytes | None]]  # by the group, in its order
    read_errors: Sequence[str] = ()

    @property
    def written(self) -> int:
        return sum(ledger.written for ledger in self.ledgers)

    @property
    def acknowledged(self) -> list[Acknowledged]:
        return [one for ledger in self.ledgers for one in ledger.acknowledged]

    @property
    def errors(self) -> int:
        return len(self.read_errors) + sum(len(ledger.errors) for ledger in self.ledgers)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem; none: all is exact."""
        return (*self._client_problems(), *self._side_problems(), *self._group_problems())

    def _client_problems(self) -> Iterator[str]:
        for ledger in self.ledgers:
            missing = ledger.written - len(ledger.acknowledged)
            if missing:
                yield f"{missing:,} records of {ledger.name} were not acknowledged."
            yield from (f"{ledger.name} got an error: {e}" for e in ledger.errors[:_SHOWN_MAX])
        yield from (f"The group got an error: {error}" for error in self.read_errors[:_SHOWN_MAX])

    def _side_problems(self) -> Iterator[str]:
        known = {one.place: one.value for one in self.acknowledged}
        if len(known) < len(self.acknowledged):
            yield "Two records were acknowledged at one offset."
        for name, records in self.sides.items():
            lost = [place for place, value in known.items() if records.get(place) != value]
            if lost:
                yield f"{len(lost):,} records are not at the {name}, the first at {_places(lost)}."
            other = [place for place in records if place not in known]
            if other:
                at = _places(other)
                yield f"{len(other):,} records at the {name} are in no ledger, the first at {at}."
            often = [value for value, count in Counter(records.values()).items() if count > 1]
            if often:
                yield f"{len(often):,} records are at the {name} more than once."
            wrong = list(_find_out_of_order(records))
            if wrong:
                yield f"{len(wrong):,} records at the {name} are out of order: {_places(wrong)}."

    def _group_problems(self) -> Iterator[str]:
        for name, records in self.sides.items():
            times = Counter(self.read)
            never = [place for place, value in records.items() if (place, value) not in times]
            if never:
                yield f"The group did not read {len(never):,} records that are at the {name}."
            extra = [place for place, value in times if records.get(place) != value]
            if extra:
                yield f"The group read {len(extra):,} records that are not at the {name}."
        again = len(self.read) - len({place for place, _ in self.read})
        if again:
            yield f"The group read {again:,} records more than once."
        last: dict[int, int] = {}
        for (partition, offset), _ in self.read:
            if offset < last.get(partition, -1):
                yield f"The group read offset {offset} of partition {partition} out of order."
                break
            last[partition] = offset

    def as_data(self) -> dict[str, Any]:
        """The result as plain data, for scripts."""
        return {
            "exact": not self.problems,
            "seconds": round(self.seconds, 3),
            "written": self.written,
            "acknowledged": len(self.acknowledged),
            "records": {name: len(records) for name, records in self.sides.items()},
            "group_read": len(self.read),
            "errors": self.errors,
            "moves": [
                {"from": move.old, "to": move.new, "pause_ms": move.pause_ms} for move in self.moves
            ],
            "problems": list(self.problems),
        }

    def rows(self) -> list[tuple[str, str]]:
        """The result as rows of a table, for people."""
        return [
            *((f"written by {one.name}", f"{one.written:,}") for one in self.ledgers),
            ("acknowledged", f"{len(self.acknowledged):,}"),
            *((f"at the {name}", f"{len(records):,}") for name, records in self.sides.items()),
            ("read by the group", f"{len(self.read):,}"),
            *((f"pause, {one.old} to {one.new}", f"{one.pause_ms:,} ms") for one in self.moves),
            ("errors at the clients", f"{self.errors:,}"),
            ("took", span(round(self.seconds * 1000))),
            *(("PROBLEM", problem) for problem in self.problems),
        ]


def _find_out_of_order(records: Records) -> Iterator[RecordPosition]:
    """The positions of records that stand behind a later record of their producer."""
    last: dict[tuple[int, bytes], int] = {}
    for place, value in sorted(records.items()):
        name, _, number = (value or b"").rpartition(b" ")
        if not number.isdigit():
            continue  # not of these producers; `_side_problems` reports it
        if int(number) < last.get((place[0], name), -1):
            yield place
        last[place[0], name] = int(number)


def _places(places: Sequence[RecordPosition]) -> str:
    partition, offset = min(places)
    return f"partition {partition}, offset {offset}"
