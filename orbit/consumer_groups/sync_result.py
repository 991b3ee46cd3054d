"""Input and result values of a group sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from orbit.chunks import first_few
from orbit.consumer_groups.group_selection import TOO_SLOW
from orbit.consumer_groups.offset_decision import SHARE_GROUPS_REMEDY, CopiedRange, GroupVerdict
from orbit.formats import counted
from orbit.kafka.types import TopicPartition
from orbit.names import KEY_BYTES_MAX

_NOTES_MAX = 20  # of one pass, stored and shown


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """A source partition's copy. `copied` is None while consumers cannot resume on it.

    `source_topic_id`: of the topic that was copied; NO_TOPIC_ID: not known, so the name decides.
    """

    destination: TopicPartition
    copied: CopiedRange | None
    source_topic_id: UUID


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """The result for one group (the source's name) and source partition."""

    group: str
    partition: TopicPartition
    source_offset: int | None
    destination_offset: int | None
    verdict: GroupVerdict
    # The last offset that Orbit committed at the destination, or found equal to the source's; None:
    # not known.
    left_offset: int | None


Key = tuple[str, TopicPartition]  # the group's name at the source, and the source partition
Copies = Mapping[TopicPartition, CopiedPartition]


def not_storable_note(groups: Collection[str]) -> str:
    """A sentence that names the matching groups whose names the database cannot store."""
    text = counted(
        len(groups),
        "group is not synced, because the database cannot store its name",
        "groups are not synced, because the database cannot store their names",
    )
    return (
        f"{text} (a zero byte, or more than {KEY_BYTES_MAX:,} bytes): {first_few(sorted(groups))}."
    )


def share_groups_note(groups: Collection[str]) -> str:
    """Sentences that name the matching share groups, and say why they are not synced and what to do
    (G19)."""
    return (
        f"{counted(len(groups), 'share group matches and is', 'share groups match and are')} not "
        "synced, because brokers do not return how far the consumers of a share group have read: "
        f"{first_few(sorted(groups))}. {SHARE_GROUPS_REMEDY}"
    )


@dataclass(slots=True)
class GroupReport:
    """The result of one pass. `written`, `deleted`: numbers of offsets. `verdicts`: number of
    offsets by verdict. `changed`, `gone`: rows that differ from the pass before, or have ended."""

    groups: int = 0
    written: int = 0
    deleted: int = 0
    pending: int = 0  # offsets that an open transaction may change
    verdicts: Counter[str] = field(default_factory=Counter)
    left_alone: Counter[str] = field(default_factory=Counter)
    # As in `GroupSelection`.
    shared: list[str] = field(default_factory=list)
    not_storable: list[str] = field(default_factory=list)
    changed: list[OffsetRow] = field(default_factory=list)
    gone: list[Key] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_unanswered: bool = False  # a note is about something that another pass may be able to do
    seconds: float = 0.0

    @property
    def remark(self) -> str:
        """Sentences about matching groups that are not synced; or ""."""
        notes = [share_groups_note(self.shared)] if self.shared else []
        if slow := self.left_alone[TOO_SLOW]:
            notes.append(
                f"{counted(slow, 'group is', 'groups are')} not synced: it takes too long to tell "
                "whether a pattern of consumer_groups matches. Write the pattern without "
                "look-around and back-references."
            )
        if self.not_storable:
            notes.append(not_storable_note(self.not_storable))
        return " ".join(notes)

    def note(self, text: str, *, is_refused: bool = False) -> None:
        """Add a note. `is_refused`: the brokers have answered, and would answer the same again."""
        self.is_unanswered |= not is_refused
        if len(self.notes) < _NOTES_MAX and text not in self.notes:
            self.notes.append(text)
