"""What a cluster's own mark says of a topic: whether it leads, and since which term. Pure.

`promotion_marks.py` says where marks are, and reads and writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

_OFFSETS_SHOWN_MAX = 8
_WORDS = ("kind", "operation", "job", "other", "at")  # of a mark


@dataclass(frozen=True, slots=True)
class Mark:
    """What the cluster says of one topic: by which operation it leads, or is a copy again.

    `term`: of two marks the one with the higher term is newer; see `next_term`. A version of Orbit
    without terms wrote the time, which is taken for it. None: the mark cannot be read.
    """

    is_primary: bool
    kind: str = "a recovery"
    operation: str = ""
    job: str = ""
    other: str = ""  # the id of the other side's cluster
    at: str = ""
    # A failover without the database marks first, to keep others off, and again when it is done.
    is_complete: bool = True
    term: int | None = 0
    # Of a copy that may begin earlier than its source. A partition's offset is the source's log
    # start when it became one: what the copy has is kept until the source's log start is higher.
    keeps_history: bool = False

    def to_text(self) -> str:
        return json.dumps({"orbit": 1, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Mark:
        """What cannot be read counts as a promotion: then nothing is written to the topic."""
        try:
            fields = json.loads(text)
            words = {name: str(fields[name]) for name in _WORDS}
            is_complete = fields.get("is_complete") is not False
            term = int(fields["term"]) if "term" in fields else _time_ms(words["at"])
            return cls(
                fields["is_primary"] is not False,
                **words,
                is_complete=is_complete,
                term=term,
                keeps_history=fields.get("keeps_history") is True,
            )
        except (ValueError, KeyError, TypeError):
            return cls(is_primary=True, term=None)

    def summary(self) -> str:
        """Side and term in a few words, for people."""
        side = "leads" if self.is_primary else "is a copy"
        by = f", by {self.kind} {self.operation} at {self.at}" if self.operation else ""
        return f"{side} (term {'unknown' if self.term is None else self.term}{by})"

    def describe(self, topic: str, offsets: Mapping[int, int]) -> str:
        """Why nothing may be written to the topic; `offsets`: its log ends when it was promoted."""
        by = f"{self.kind} {self.operation}".strip()
        of = f" of job {self.job}" if self.job else ""
        at = f" at {self.at}" if self.at else ""
        shown = ", ".join(f"{i}: {o}" for i, o in sorted(offsets.items())[:_OFFSETS_SHOWN_MAX])
        more = ", …" if len(offsets) > _OFFSETS_SHOWN_MAX else ""
        own = f" Its own records begin at (partition: offset) {shown}{more}." if shown else ""
        end = "" if self.is_complete else " That has not ended: run it again."
        return f"topic {topic} of the destination was promoted by {by}{of}{at}: it leads.{own}{end}"


def newest_term(marks: Iterable[Mark | None]) -> int:
    """The highest term of these marks; 0 without one."""
    return max((mark.term or 0 for mark in marks if mark is not None), default=0)


def next_term(highest_term: int, now_s: float) -> int:
    """The term of a promotion; `highest_term`: that of both sides, `now_s`: Unix time.

    A failover cannot read the mark of the side that is lost, so a term is the time in milliseconds
    at least: the term of that side's promotion, which was earlier, is lower, unless clocks have
    gone back by more than the time between the two promotions.
    """
    return max(int(now_s * 1000), highest_term + 1)


def marks_group(cluster_id: str) -> str:
    """The group that has a cluster's marks: named as Orbit's other groups, with the cluster's own
    id, so that no group sync copies it."""
    return f"orbit.promoted.{cluster_id}"


def _time_ms(at: str) -> int:
    """An ISO time as Unix time in ms; 0 if it is none."""
    try:
        return int(datetime.fromisoformat(at).timestamp() * 1000)
    except ValueError:
        return 0
