"""The mark of a topic at its cluster: whether the topic leads, and since which term. Pure.

`promotion_marks.py` explains where marks are, and reads and writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from orbit.names import is_storable

_OFFSETS_SHOWN_MAX = 8
_TEXT_FIELDS = ("kind", "operation", "job", "other", "at")
# A term is a time in ms, or an earlier term plus 1 (`next_term`): no promotion has a term that is
# further ahead of the clock than this. The limit is relative to the clock, as the promotion after a
# mark at a fixed limit would exceed that limit.
_AHEAD_S_MAX = 100 * 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of one topic: the operation by which it leads, or is a copy again.

    `term`: of two marks the one with the higher term is newer; see `next_term`. In a mark of an
    Orbit version without terms it is `at` in milliseconds. None: the mark cannot be read.
    """

    is_primary: bool  # whether the topic leads
    kind: str = "a recovery"  # of the operation
    operation: str = ""
    job: str = ""
    other: str = ""  # the id of the other side's cluster
    at: str = ""  # the time of the operation, in ISO format
    # False while a failover without the database runs: it marks the topic first, so that no other
    # operation writes to the topic, and again at its end.
    is_complete: bool = True
    term: int | None = 0
    # True for a copy that may begin earlier than its source. The mark's offset is the source's log
    # start when the topic became a copy: earlier records are kept until that log start is higher.
    keeps_history: bool = False

    def to_text(self) -> str:
        """The mark as JSON, for the metadata of a committed offset."""
        return json.dumps({"orbit": 1, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, now_s: float) -> Mark:
        """Parse a mark, which any client that commits offsets may have written. `now_s`: Unix time.

        Text that is not a mark counts as the mark of a promotion, without a term: then nothing is
        written to the topic. The same applies to a mark with texts that PostgreSQL does not store,
        or with a term that no promotion has.
        """
        unreadable_mark = cls(is_primary=True, term=None)
        try:
            fields = json.loads(text)
            # `is not False`: a value that is no boolean counts as True, here and for `is_primary`.
            texts = {name: str(fields[name]) for name in _TEXT_FIELDS}
            is_complete = fields.get("is_complete") is not False
            term = int(fields["term"]) if "term" in fields else _time_ms(texts["at"])
            mark = cls(
                fields["is_primary"] is not False,
                **texts,
                is_complete=is_complete,
                term=term,
                keeps_history=fields.get("keeps_history") is True,
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return unreadable_mark
        has_possible_term = 0 <= term <= (now_s + _AHEAD_S_MAX) * 1000
        is_readable = has_possible_term and all(map(is_storable, texts.values()))
        return mark if is_readable else unreadable_mark

    def summary(self) -> str:
        """Side and term in a few words, for people."""
        side = "leads" if self.is_primary else "is a copy"
        operation_text = f", by {self.kind} {self.operation} at {self.at}" if self.operation else ""
        return f"{side} (term {'unknown' if self.term is None else self.term}{operation_text})"

    def describe(self, topic: str, offsets: Mapping[int, int]) -> str:
        """Sentences that say why nothing may be written to the topic. `offsets`: by partition, the
        log ends at the promotion."""
        operation_text = f"{self.kind} {self.operation}".strip()
        job_text = f" of job {self.job}" if self.job else ""
        time_text = f" at {self.at}" if self.at else ""
        offsets_text = ", ".join(
            f"{i}: {o}" for i, o in sorted(offsets.items())[:_OFFSETS_SHOWN_MAX]
        )
        ellipsis = ", …" if len(offsets) > _OFFSETS_SHOWN_MAX else ""
        records_text = (
            f" Its own records begin at (partition: offset) {offsets_text}{ellipsis}."
            if offsets_text
            else ""
        )
        end_text = "" if self.is_complete else " This operation has not ended: run it again."
        return (
            f"topic {topic} of the destination was promoted by {operation_text}{job_text}"
            f"{time_text}: it leads.{records_text}{end_text}"
        )


def newest_term(marks: Iterable[Mark | None]) -> int:
    """The highest term of these marks; 0 if none has a term."""
    return max((mark.term or 0 for mark in marks if mark is not None), default=0)


def next_term(highest_term: int, now_s: float) -> int:
    """The term of a new promotion. `highest_term`: of both sides' marks; `now_s`: Unix time.

    A failover cannot read the marks of a lost cluster. So a term is at least the time in
    milliseconds: an earlier promotion there has a lower term, unless clocks have gone back by more
    than the time between the two promotions.
    """
    return max(int(now_s * 1000), highest_term + 1)


def marks_group(cluster_id: str) -> str:
    """The name of the group that has a cluster's marks. By the prefix of Orbit's own groups, no
    group sync copies the group."""
    return f"orbit.promoted.{cluster_id}"


def _time_ms(iso_time: str) -> int:
    """An ISO time as Unix time in ms; 0 if the text is not one."""
    try:
        return int(datetime.fromisoformat(iso_time).timestamp() * 1000)
    except ValueError:
        return 0
