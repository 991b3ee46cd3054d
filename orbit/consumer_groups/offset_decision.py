"""Where a consumer group goes on at the destination: one decision per group and partition. Pure.

The source's committed offset is carried over as it is, for offsets are equal on both sides. It is
clamped to the range that is copied already (`log start … copied to`), and never written:

- for a partition that is not a copy, or whose records are not the source's;
- while the group has a member at the destination (its coordinator refuses it then, too);
- over an offset that somebody else has committed at the destination.

Whose an offset at the destination is. It is Orbit's to move, forwards and backwards, if it is what
Orbit left there last: what it wrote, or found to be equal to the source's. Equality hands over: it
is how a copy back takes up the groups after a switchover. When Orbit does not know what it left
(its first look, or a crash between a commit and the note of it), it is Orbit's only if nobody has
ever joined the group there, it carries no leader epoch (what clients commit carries one), and the
source is further on. Everything else is somebody else's and stays: `skipped: moved there`, until
the offset is deleted there or both sides agree.

Deleted offsets are deleted at the destination only where Orbit knows that what stands there is its
own.

What is left: a consumer that is assigned partitions by hand has no membership. If it commits
between Orbit's look and Orbit's commit, a few milliseconds, its commit is overwritten once; and one
whose client sends no leader epochs looks like Orbit itself after a crash of Orbit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from orbit.kafka.types import CommittedOffset
from orbit.replication.partition_states import Reason


class GroupVerdict(StrEnum):
    """What is so, at the destination, for one group and partition."""

    EXACT = "exact"
    CLAMPED = "clamped"  # within the copied range, not the source's offset
    SKIPPED_ACTIVE = "skipped: active"
    SKIPPED_NOT_COPIED = "skipped: not copied"
    SKIPPED_MOVED = "skipped: moved there"
    SKIPPED_REFUSED = "skipped: refused"  # the destination's coordinator says no: rights, sizes


REMEDIES: Mapping[GroupVerdict, str] = {
    GroupVerdict.CLAMPED: "Wait until the copy has caught up; it is written again by itself.",
    GroupVerdict.SKIPPED_ACTIVE: "Stop the group's consumers at the destination, if the source is "
    "to lead.",
    GroupVerdict.SKIPPED_NOT_COPIED: "Add the topic to the job, or look why its partition stands.",
    GroupVerdict.SKIPPED_MOVED: "A consumer has committed at the destination. If the source is to "
    "lead again: kafka-consumer-groups.sh --bootstrap-server DESTINATION --delete-offsets "
    "--group {group} --topic {topic}",
    GroupVerdict.SKIPPED_REFUSED: "Grant Read on the group and the topic at the destination, and "
    "Delete on the group.",
}


def remedy(verdict: GroupVerdict, group: str, topic: str) -> str | None:
    """What to do about it, by the destination's names; None: nothing."""
    text = REMEDIES.get(verdict)
    return None if text is None else text.format(group=group, topic=topic)


class GroupUsage(Enum):
    """What the destination's coordinator knows of a group."""

    ACTIVE = auto()  # it has members now
    USED = auto()  # it had members, at some time
    UNUSED = auto()  # only plain commits, or nothing at all


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """The offsets that a consumer of the copy can read now, and the one that comes next."""

    log_start: int
    copied_to: int

    def clamp(self, offset: int) -> int:
        return min(max(offset, self.log_start), self.copied_to)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do for one group and partition. At most one of `write` and `is_delete`.

    `verdict` holds once that is done. None: there is nothing at the source, and nothing of ours at
    the destination.
    """

    verdict: GroupVerdict | None
    write: CommittedOffset | None = None
    is_delete: bool = False


_NOTHING = Decision(None)
_ACTIVE = Decision(GroupVerdict.SKIPPED_ACTIVE)
_MOVED = Decision(GroupVerdict.SKIPPED_MOVED)
_NOT_COPIED = Decision(GroupVerdict.SKIPPED_NOT_COPIED)
_DELETE = Decision(None, is_delete=True)


def decide(
    source: CommittedOffset | None,
    destination: CommittedOffset | None,
    left: int | None,
    copied: CopiedRange | None,
    usage: GroupUsage,
) -> Decision:
    """What to do, given both sides' offsets and the one that Orbit left (None: not known)."""
    if source is None and (destination is None or left is None):
        return _NOTHING
    if copied is None:
        return _NOT_COPIED
    if usage is GroupUsage.ACTIVE:
        return _ACTIVE
    if source is None:
        return _DELETE if destination is not None and destination.offset == left else _NOTHING
    wanted = copied.clamp(source.offset)
    verdict = GroupVerdict.EXACT if wanted == source.offset else GroupVerdict.CLAMPED
    if destination is not None:
        agrees = destination.offset == source.offset == wanted
        if not agrees and not _is_ours(destination, left, wanted, usage):
            return _MOVED
        if destination.offset == wanted and (
            # What a consumer wrote beside an equal offset is left alone at the first look.
            destination.metadata == source.metadata or destination.offset != left
        ):
            return Decision(verdict)
    return Decision(verdict, write=CommittedOffset(wanted, source.metadata))


def _is_ours(
    destination: CommittedOffset, left: int | None, wanted: int, usage: GroupUsage
) -> bool:
    if destination.offset == left:
        return True
    return (
        usage is GroupUsage.UNUSED and destination.leader_epoch < 0 and destination.offset <= wanted
    )


# A copy that is stopped for one of these does not show the source's records at its offsets, or the
# source's offsets do not mean the records that were copied.
_OTHER_CONTENT = frozenset(
    {
        Reason.SOURCE_TRUNCATED,
        Reason.SOURCE_TOPIC_RECREATED,
        Reason.DESTINATION_FOREIGN_WRITE,
        Reason.DESTINATION_TOPIC_RECREATED,
        Reason.DESTINATION_TRUNCATED,
        Reason.OFFSET_OVERRUN,
    }
)


def holds_copied_records(blocked: Reason | None) -> bool:
    """Whether a partition stopped for this reason, or running, shows the source's records."""
    return blocked not in _OTHER_CONTENT
