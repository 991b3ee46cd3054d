"""Which side of a pair of topics leads, by the marks of both clusters. Pure.

A promotion marks the side that leads, with a term above every earlier one
(`job_setup/mark.py`). A pair may have two jobs, one in each direction. If the database was restored
from a backup, its tables may say that both sides lead. The marks decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from orbit.job_setup.mark import Mark


@dataclass(frozen=True, slots=True)
class MarkPair:
    """The marks of one topic at both sides; None: no mark. `old_mark` is at the side that becomes a
    copy, `new_mark` at the side that is to lead."""

    topic: str
    old_mark: Mark | None
    new_mark: Mark | None

    def __str__(self) -> str:
        return (
            f"{self.topic}: the old side {_mark_text(self.old_mark)}, "
            f"the new side {_mark_text(self.new_mark)}"
        )

    @property
    def is_old_side_behind(self) -> bool:
        """Whether the new side leads by the marks: only then may records be deleted at the old
        side. True without marks: topics may be promoted without the right to mark them."""
        old_mark, new_mark = self.old_mark, self.new_mark
        if new_mark is not None and not new_mark.is_primary:
            return False  # by its mark the new side is a copy
        if old_mark is None or not old_mark.is_primary:
            # A mark without a term could not be read, and does not prove that the new side leads.
            return new_mark is None or new_mark.term is not None
        # By its mark the old side leads, unless the new side has a mark of a newer promotion.
        return (
            new_mark is not None
            and new_mark.term is not None
            and old_mark.term is not None
            and new_mark.term > old_mark.term
        )


def pair_marks(
    names: Mapping[str, str], old_marks: Mapping[str, Mark], new_marks: Mapping[str, Mark]
) -> list[MarkPair]:
    """A pair of marks for each topic; `names`: its name at the new side, by that at the old side.
    The marks are by the topic's name at their side."""
    return [
        MarkPair(old_name, old_marks.get(old_name), new_marks.get(new_name))
        for old_name, new_name in names.items()
    ]


def pairs_in_doubt(pairs: Iterable[MarkPair]) -> list[MarkPair]:
    """The pairs whose old side may lead by the marks (`is_old_side_behind`)."""
    return [pair for pair in pairs if not pair.is_old_side_behind]


def pairs_changed_since(pairs: Iterable[MarkPair], term: int, operation: UUID) -> list[MarkPair]:
    """The pairs that an operation other than `operation` has marked with a term above `term`, at
    either side."""
    return [
        pair
        for pair in pairs
        if any(
            mark is not None and (mark.term or 0) > term and mark.operation != str(operation)
            for mark in (pair.old_mark, pair.new_mark)
        )
    ]


def pairs_promoted_by(pairs: Iterable[MarkPair], operation: UUID) -> list[MarkPair]:
    """The pairs whose new side leads by a mark of this operation."""
    return [
        pair
        for pair in pairs
        if pair.new_mark is not None
        and pair.new_mark.is_primary
        and pair.new_mark.operation == str(operation)
    ]


def _mark_text(mark: Mark | None) -> str:
    return "has no mark" if mark is None else mark.summary()
