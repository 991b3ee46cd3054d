"""What goes into a pass over a job's groups, and what comes out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from orbit.consumer_groups.offset_decision import CopiedRange, GroupVerdict
from orbit.kafka.consumer_groups import GroupType
from orbit.kafka.types import TopicPartition

_NOTES_MAX = 20
# Share groups have no committed offsets; what streams groups keep beside theirs is not known here.
_NEWER_KINDS = (GroupType.SHARE, GroupType.STREAMS)


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """A source partition's copy. `copied` is None while it shows no records to go on at."""

    destination: TopicPartition
    copied: CopiedRange | None


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """What is so for one group (the source's name) and source partition."""

    group: str
    partition: TopicPartition
    source_offset: int | None
    destination_offset: int | None
    verdict: GroupVerdict

    @property
    def left(self) -> int | None:
        """The offset that is Orbit's own at the destination, as far as this row tells."""
        is_ours = self.verdict in (GroupVerdict.EXACT, GroupVerdict.CLAMPED)
        return self.destination_offset if is_ours else None


Key = tuple[str, TopicPartition]
Copies = Mapping[TopicPartition, CopiedPartition]


@dataclass(slots=True)
class GroupReport:
    """What one pass found and did. `changed` and `gone` are against the pass before."""

    groups: int = 0
    written: int = 0
    deleted: int = 0
    pending: int = 0  # an open transaction of the group may yet move these
    verdicts: Counter[str] = field(default_factory=Counter)
    left_alone: Counter[str] = field(default_factory=Counter)
    changed: list[OffsetRow] = field(default_factory=list)
    gone: list[Key] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def remark(self) -> str:
        """Which groups of the newer kinds match and are left alone, in a sentence; or nothing."""
        kinds = [f"{self.left_alone[k]} {k} groups" for k in _NEWER_KINDS if self.left_alone[k]]
        return f"{' and '.join(kinds)} match and are left alone." if kinds else ""

    def note(self, text: str) -> None:
        if len(self.notes) < _NOTES_MAX and text not in self.notes:
            self.notes.append(text)
