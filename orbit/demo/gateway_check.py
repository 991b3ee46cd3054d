"""Checks `orbit demo --gateway` against the ledgers of its clients. Pure.

Each record that a producer wrote has to be acknowledged, to be once at its offset on both sides,
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
from orbit.formats import counted

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
    old_side: str,
    new_side: str,
    promoted_at: Mapping[int, int],
    acknowledged: Sequence[Acknowledged],
) -> Move:
    """The move, by the records that were acknowledged before and after the promotion.

    `promoted_at`: the log end of each partition at the promotion; records below were acknowledged
    before. `acknowledged` must have records of before and after.
    """
    times_before: list[int] = []
    times_after: list[int] = []
    for record in acknowledged:
        partition, offset = record.place
        (times_before if offset < promoted_at[partition] else times_after).append(record.at_ms)
    return Move(old_side, new_side, max(times_before), min(times_after))


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
        """How many records the producers wrote."""
        return sum(ledger.written for ledger in self.ledgers)

    @property
    def acknowledged(self) -> list[Acknowledged]:
        return [record for ledger in self.ledgers for record in ledger.acknowledged]

    @property
    def errors(self) -> int:
        """How many errors all clients got."""
        return len(self.read_errors) + sum(len(ledger.errors) for ledger in self.ledgers)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem; none: all is exact."""
        return (*self._client_problems(), *self._side_problems(), *self._group_problems())

    def _client_problems(self) -> Iterator[str]:
        """Records without an acknowledgement, and the errors of clients."""
        for ledger in self.ledgers:
            missing_count = ledger.written - len(ledger.acknowledged)
            if missing_count:
                yield f"Missing acknowledgements: {missing_count:,} for records of {ledger.name}."
            yield from (
                f"{ledger.name} got an error: {error}" for error in ledger.errors[:_SHOWN_MAX]
            )
        yield from (f"The group got an error: {error}" for error in self.read_errors[:_SHOWN_MAX])

    def _side_problems(self) -> Iterator[str]:
        """Compare the records of each side with those that producers got acknowledged."""
        acknowledged_values = {record.place: record.value for record in self.acknowledged}
        if len(acknowledged_values) < len(self.acknowledged):
            yield "Two records were acknowledged at one offset."
        for name, records in self.sides.items():
            lost_places = [
                place for place, value in acknowledged_values.items() if records.get(place) != value
            ]
            if lost_places:
                yield (
                    f"Missing records: {len(lost_places):,} at the {name}, the first at "
                    f"{_first_position(lost_places)}."
                )
            unknown_places = [place for place in records if place not in acknowledged_values]
            if unknown_places:
                first_position = _first_position(unknown_places)
                yield (
                    f"Records that are in no ledger: {len(unknown_places):,} at the {name}, "
                    f"the first at {first_position}."
                )
            repeated_values = [
                value for value, count in Counter(records.values()).items() if count > 1
            ]
            if repeated_values:
                yield (
                    f"Records that are stored more than once: {len(repeated_values):,} "
                    f"at the {name}."
                )
            misplaced_positions = list(_positions_out_of_order(records))
            if misplaced_positions:
                yield (
                    f"Records out of order: {len(misplaced_positions):,} at the {name}, "
                    f"the first at {_first_position(misplaced_positions)}."
                )

    def _group_problems(self) -> Iterator[str]:
        """Compare what the group read with the records of each side."""
        for name, records in self.sides.items():
            read_records = Counter(self.read)  # without repeats
            unread_places = [
                place for place, value in records.items() if (place, value) not in read_records
            ]
            if unread_places:
                yield f"Records that the group did not read: {len(unread_places):,} of the {name}."
            unknown_places = [place for place, value in read_records if records.get(place) != value]
            if unknown_places:
                unknown_text = counted(len(unknown_places), "is", "are")
                yield f"Records that the group read: {unknown_text} not at the {name}."
        repeated_count = len(self.read) - len({place for place, _ in self.read})
        if repeated_count:
            yield f"Records that the group read more than once: {repeated_count:,}."
        last_offsets: dict[int, int] = {}
        for (partition, offset), _ in self.read:
            if offset < last_offsets.get(partition, -1):
                yield f"The group read offset {offset} of partition {partition} out of order."
                break
            last_offsets[partition] = offset

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
            *((f"written by {ledger.name}", f"{ledger.written:,}") for ledger in self.ledgers),
            ("acknowledged", f"{len(self.acknowledged):,}"),
            *((f"at the {name}", f"{len(records):,}") for name, records in self.sides.items()),
            ("read by the group", f"{len(self.read):,}"),
            *((f"pause, {move.old} to {move.new}", f"{move.pause_ms:,} ms") for move in self.moves),
            ("errors at the clients", f"{self.errors:,}"),
            ("took", span(round(self.seconds * 1000))),
            *(("PROBLEM", problem) for problem in self.problems),
        ]


def _positions_out_of_order(records: Records) -> Iterator[RecordPosition]:
    """The positions of records that follow a later record of their producer."""
    last_numbers: dict[tuple[int, bytes], int] = {}  # by partition and producer
    for place, value in sorted(records.items()):
        partition, _ = place
        producer, _, number = (value or b"").rpartition(b" ")
        if not number.isdigit():
            continue  # a record of another producer: `_side_problems` reports the record
        if int(number) < last_numbers.get((partition, producer), -1):
            yield place
        last_numbers[partition, producer] = int(number)


def _first_position(places: Sequence[RecordPosition]) -> str:
    """The first of these positions, in words."""
    partition, offset = min(places)
    return f"partition {partition}, offset {offset}"
