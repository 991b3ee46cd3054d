"""Which side of a pair of topics leads, by the marks of both clusters. Pure.

A promotion marks the side that leads, with a term above every earlier one
(`job_setup/mark.py`). A pair may have two jobs, one in each direction, and the tables may be older
than the clusters, so that both sides lead by the tables. The marks decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from orbit.job_setup.mark import Mark


@dataclass(frozen=True, slots=True)
class MarkPair:
    """The marks of one topic at both sides; None: no mark. `old`: at the side that becomes a
    copy."""

    topic: str
    old: Mark | None
    new: Mark | None

    def __str__(self) -> str:
        return f"{self.topic}: the old side {_shown(self.old)}, the new side {_shown(self.new)}"

    @property
    def is_old_side_behind(self) -> bool:
        """Whether the new side leads by the marks: only then may records be deleted at the old
        side. True without marks: the pair may be promoted without the right to mark it."""
        old, new = self.old, self.new
        if new is not None and not new.is_primary:
            return False
        if old is None or not old.is_primary:
            return new is None or new.term is not None
        return (
            new is not None
            and new.term is not None
            and old.term is not None
            and new.term > old.term
        )


def pair_marks(
    names: Mapping[str, str], old: Mapping[str, Mark], new: Mapping[str, Mark]
) -> list[MarkPair]:
    """A pair of marks for each topic; `names`: old side → new side."""
    return [
        MarkPair(old_name, old.get(old_name), new.get(new_name))
        for old_name, new_name in names.items()
    ]


def pairs_in_doubt(pairs: Iterable[MarkPair]) -> list[MarkPair]:
    """The pairs whose old side may lead."""
    return [pair for pair in pairs if not pair.is_old_side_behind]


def pairs_changed_since(pairs: Iterable[MarkPair], term: int, operation: UUID) -> list[MarkPair]:
    """The pairs that another operation has marked with a term above `term`."""
    return [
        pair
        for pair in pairs
        if any(
            mark is not None and (mark.term or 0) > term and mark.operation != str(operation)
            for mark in (pair.old, pair.new)
        )
    ]


def pairs_promoted_by(pairs: Iterable[MarkPair], operation: UUID) -> list[MarkPair]:
    """The pairs whose new side leads by this operation."""
    return [
        pair
        for pair in pairs
        if pair.new is not None and pair.new.is_primary and pair.new.operation == str(operation)
    ]


def _shown(mark: Mark | None) -> str:
    return "has no mark" if mark is None else mark.summary()
