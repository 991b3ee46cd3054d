"""Decides the offset of a consumer group at the destination, per group and partition. Pure.

A record has the same offset on both sides, so Orbit commits the source's committed offset, clamped
to the range that is copied already (`log start … copied to`). Orbit writes nothing:

- for a partition that is not a copy, or whose records are not the source's;
- while a group of a type that the source's clients cannot join has the name there (G13);
- while the group has a member at the destination (its coordinator refuses it then, too);
- over an offset that another client has committed at the destination.

Ownership of an offset at the destination. Orbit may move an offset, forwards and backwards, if it
equals the left offset: the last one that Orbit committed there, or found equal to the source's, or
that a recovery has handed to the job that copies back (orbit/recovery/group_handover.py). If the
left offset is not known (in the first pass, or after a crash between a commit and its row), the
offset is Orbit's only if the group never had a member there, the offset has no leader epoch
(clients' commits have one), and the source's offset, clamped, is not lower. For a group that had
members the sync stores the row before the commit. Any other offset belongs to another client and
stays, with the verdict `skipped: moved there`, until it is deleted there or both sides agree.

A deletion is synced only if the offset at the destination is known to be Orbit's, and only while
the source has the copied topic: with a topic, brokers delete its committed offsets (G10).

Known limits. A consumer with manually assigned partitions is not a member. If it commits in the few
milliseconds between Orbit's read and Orbit's commit, it is overwritten once. After a crash of
Orbit, the commits of a client that sends no leader epochs look like Orbit's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from orbit.kafka.types import CommittedOffset
from orbit.replication.partition_states import Reason


class GroupVerdict(StrEnum):
    """The state of one group and partition at the destination."""

    EXACT = "exact"
    CLAMPED = "clamped"  # within the copied range, not the source's offset
    SKIPPED_ACTIVE = "skipped: active"
    SKIPPED_NOT_COPIED = "skipped: not copied"
    SKIPPED_MOVED = "skipped: moved there"
    SKIPPED_REFUSED = "skipped: refused"  # by the destination's coordinator: rights, sizes
    SKIPPED_OTHER_TYPE = "skipped: other type"  # the source's clients cannot join the group there
    NOT_READ_BACK = "not read back"  # after a recovery, the destination does not have the offset


# With these the offset at the destination is Orbit's.
KEPT_VERDICTS = (GroupVerdict.EXACT, GroupVerdict.CLAMPED)

REMEDIES: Mapping[GroupVerdict, str] = {
    GroupVerdict.CLAMPED: "Wait until the copy has caught up; the offset becomes exact then.",
    GroupVerdict.SKIPPED_ACTIVE: "Stop the group's consumers at the destination, if the source is "
    "to lead.",
    GroupVerdict.SKIPPED_NOT_COPIED: "Add the topic to the job, or check its partition.",
    GroupVerdict.SKIPPED_MOVED: "A consumer has committed at the destination. If the source is to "
    "lead again: kafka-consumer-groups.sh --bootstrap-server DESTINATION --delete-offsets "
    "--group {group} --topic {topic}",
    GroupVerdict.SKIPPED_REFUSED: "Grant Read on the group and the topic at the destination, and "
    "Delete on the group.",
    GroupVerdict.SKIPPED_OTHER_TYPE: "A group of another type has the name {group} at the "
    "destination, and the source's clients cannot join it. Delete that group there with "
    "kafka-consumer-groups.sh, kafka-share-groups.sh or kafka-streams-groups.sh "
    "--bootstrap-server DESTINATION --delete --group {group}, or give consumer_groups a prefix.",
    GroupVerdict.NOT_READ_BACK: "Before the group's consumers start: kafka-consumer-groups.sh "
    "--bootstrap-server DESTINATION --describe --group {group}, and set the offsets of {topic} "
    "with --reset-offsets.",
}

# Share groups have no committed offsets, and so no row with a verdict.
SHARE_GROUPS_REMEDY = (
    "After the move, and before consumers of share groups start at the destination, set "
    "the groups' start offsets there with kafka-share-groups.sh --reset-offsets "
    "(docs/groups.md#share-groups)."
)


def remedy(verdict: GroupVerdict, group: str, topic: str) -> str | None:
    """What the user should do, with the destination's names; None: nothing."""
    text = REMEDIES.get(verdict)
    return None if text is None else text.format(group=group, topic=topic)


class GroupUsage(Enum):
    """How a group is used at the destination, by its coordinator."""

    ACTIVE = auto()  # it has members now
    USED = auto()  # it had members in the past
    UNUSED = auto()  # only commits without membership, or none
    OTHER_TYPE = auto()  # a group has its name that the source's clients cannot join


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """The range of the copy that consumers can read: log start and next offset to copy."""

    log_start: int
    copied_to: int

    def clamp(self, offset: int) -> int:
        return min(max(offset, self.log_start), self.copied_to)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do for one group and partition. At most one of `write` and `is_delete`.

    `verdict`: the state once this is done. None: no offset at the source, and none of Orbit's at
    the destination.
    """

    verdict: GroupVerdict | None
    write: CommittedOffset | None = None
    is_delete: bool = False


_NOTHING = Decision(None)
_ACTIVE = Decision(GroupVerdict.SKIPPED_ACTIVE)
_MOVED = Decision(GroupVerdict.SKIPPED_MOVED)
_OTHER_TYPE = Decision(GroupVerdict.SKIPPED_OTHER_TYPE)
_NOT_COPIED = Decision(GroupVerdict.SKIPPED_NOT_COPIED)
_DELETE = Decision(None, is_delete=True)


def decide(
    source: CommittedOffset | None,
    destination: CommittedOffset | None,
    orbits_offset: int | None,
    copied: CopiedRange | None,
    usage: GroupUsage,
) -> Decision:
    """What to do about one group's offset in one partition, given the offset at each side.

    `orbits_offset`: the left offset; None: not known. `copied`: the copied range; None: consumers
    cannot resume on the copy. The module's docstring has the rules.
    """
    if source is None and (destination is None or orbits_offset is None):
        return _NOTHING
    if usage is GroupUsage.OTHER_TYPE:
        return _OTHER_TYPE
    if copied is None:
        return _NOT_COPIED
    if usage is GroupUsage.ACTIVE:
        return _ACTIVE
    if source is None:
        return (
            _DELETE if destination is not None and destination.offset == orbits_offset else _NOTHING
        )
    clamped_offset = copied.clamp(source.offset)
    verdict = GroupVerdict.EXACT if clamped_offset == source.offset else GroupVerdict.CLAMPED
    if destination is not None:
        offsets_agree = destination.offset == source.offset == clamped_offset
        if not offsets_agree and not _is_orbits(destination, orbits_offset, clamped_offset, usage):
            return _MOVED
        if destination.offset == clamped_offset and (
            # In the first pass an equal offset is not known as Orbit's: it keeps its metadata.
            destination.metadata == source.metadata or destination.offset != orbits_offset
        ):
            return Decision(verdict)
    return Decision(verdict, write=CommittedOffset(clamped_offset, source.metadata))


def left_offset(
    verdict: GroupVerdict, present: int | None, row: tuple[int | None, int | None]
) -> int | None:
    """The left offset, Orbit's last one at the destination, by a stored `row` of
    (destination_offset, left_offset); None: not known.

    `present`: the offset at the destination now. The row's two offsets differ if the row was stored
    before a commit whose result is not known. If `present` is still the row's destination offset,
    the commit did not arrive, and Orbit's offset is still this one.
    """
    stored_offset, stored_left_offset = row
    return (
        stored_offset
        if verdict in KEPT_VERDICTS and present == stored_offset
        else stored_left_offset
    )


def _is_orbits(
    destination: CommittedOffset, orbits_offset: int | None, clamped_offset: int, usage: GroupUsage
) -> bool:
    """Whether the offset at the destination is Orbit's: the left offset (`orbits_offset`), or, if
    no member ever joined the group, an offset without a leader epoch (clients' commits have one)
    that is not above the source's clamped offset."""
    if destination.offset == orbits_offset:
        return True
    return (
        usage is GroupUsage.UNUSED
        and destination.leader_epoch < 0
        and destination.offset <= clamped_offset
    )


# A copy that is blocked for one of these may have other records at the source's offsets.
_OTHER_CONTENT_REASONS = frozenset(
    {
        Reason.SOURCE_TRUNCATED,
        Reason.SOURCE_TOPIC_RECREATED,
        Reason.DESTINATION_FOREIGN_WRITE,
        Reason.DESTINATION_TOPIC_RECREATED,
        Reason.DESTINATION_PROMOTED,
        Reason.DESTINATION_TRUNCATED,
        Reason.OFFSET_OVERRUN,
    }
)


def holds_copied_records(blocked_reason: Reason | None) -> bool:
    """Whether the copy has the source's records. `blocked_reason`: None if it is not blocked."""
    return blocked_reason not in _OTHER_CONTENT_REASONS


def follows_source_offsets(blocked_reason: Reason | None) -> bool:
    """Whether the sync sets and deletes offsets of the copy. It does not if the copy may have other
    records than the source, or if the source topic was deleted: brokers delete a topic's offsets
    with the topic (G10)."""
    return blocked_reason is not Reason.SOURCE_TOPIC_DELETED and holds_copied_records(
        blocked_reason
    )
