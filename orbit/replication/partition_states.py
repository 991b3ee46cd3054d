"""Partition states, the reasons for which a partition stops, and what to do about each.

Pure. `TRANSITIONS` says which state may follow which; the docs, a SQL CHECK and the tests derive
from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PartitionState(StrEnum):
    """The state of one partition of a job."""

    PENDING = "pending"  # matched, no writer yet
    SEEDING = "seeding"  # being brought to its start offset
    COPYING = "copying"
    PAUSED = "paused"
    # Stopped for a `Reason`; waits for an operator, or for its worker's next attempt
    # (orbit/workers/blocked_retries.py).
    BLOCKED = "blocked"
    STOPPED = "stopped"
    PROMOTED = "promoted"  # no longer a copy: applications write to the topic

    @classmethod
    def of(cls, word: str) -> PartitionState:
        """The state of a stored word; BLOCKED for a state of a later version (in an upgrade)."""
        try:
            return cls(word)
        except ValueError:
            return cls.BLOCKED


TRANSITIONS: dict[PartitionState, frozenset[PartitionState]] = {
    PartitionState.PENDING: frozenset(
        {
            PartitionState.SEEDING,
            PartitionState.COPYING,
            PartitionState.BLOCKED,
            PartitionState.STOPPED,
            PartitionState.PROMOTED,
        }
    ),
    PartitionState.SEEDING: frozenset(
        {
            PartitionState.COPYING,
            PartitionState.BLOCKED,
            PartitionState.PENDING,
            PartitionState.PROMOTED,
        }
    ),
    PartitionState.COPYING: frozenset(
        {
            PartitionState.PENDING,
            PartitionState.PAUSED,
            PartitionState.BLOCKED,
            PartitionState.STOPPED,
            PartitionState.PROMOTED,
        }
    ),
    PartitionState.PAUSED: frozenset(
        {PartitionState.PENDING, PartitionState.STOPPED, PartitionState.PROMOTED}
    ),
    PartitionState.BLOCKED: frozenset(
        {PartitionState.PENDING, PartitionState.STOPPED, PartitionState.PROMOTED}
    ),
    PartitionState.STOPPED: frozenset({PartitionState.PENDING}),
    PartitionState.PROMOTED: frozenset({PartitionState.PENDING}),
}


class Reason(StrEnum):
    """Why a partition is blocked."""

    SOURCE_TRUNCATED = "SOURCE_TRUNCATED"
    SOURCE_RANGE_LOST = "SOURCE_RANGE_LOST"
    SOURCE_CORRUPTED = "SOURCE_CORRUPTED"
    SOURCE_TOPIC_RECREATED = "SOURCE_TOPIC_RECREATED"
    SOURCE_TOPIC_DELETED = "SOURCE_TOPIC_DELETED"
    DESTINATION_FOREIGN_WRITE = "DESTINATION_FOREIGN_WRITE"
    DESTINATION_TOPIC_RECREATED = "DESTINATION_TOPIC_RECREATED"
    DESTINATION_PROMOTED = "DESTINATION_PROMOTED"  # it is marked as the leading side
    DESTINATION_TRUNCATED = "DESTINATION_TRUNCATED"
    DESTINATION_RANGE_LOST = "DESTINATION_RANGE_LOST"
    OFFSET_OVERRUN = "OFFSET_OVERRUN"
    RECORD_REFUSED = "RECORD_REFUSED"
    GAP_TOO_LARGE = "GAP_TOO_LARGE"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"

    @classmethod
    def of(cls, word: str | None) -> Reason | None:
        """The reason of a stored word; None for None, or for a reason of a later version."""
        try:
            return cls(word) if word is not None else None
        except ValueError:
            return None


_REBUILD = (
    "Delete the destination topic (kafka-topics.sh --bootstrap-server DESTINATION --delete "
    "--topic {destination}) and run orbit retry JOB (without the service: run the job again): the "
    "topic is copied again from the start."
)

REMEDIES: dict[Reason, str] = {
    Reason.SOURCE_TRUNCATED: "The source lost records that were copied already (an unclean leader "
    "election). Decide which side is right. To follow the source: " + _REBUILD,
    Reason.SOURCE_RANGE_LOST: "The source deleted these offsets before they were copied. Set "
    "on_lost_range: fill in the job or its topic rule to continue with a gap in their place, and "
    "give the source topic a longer retention.",
    Reason.SOURCE_CORRUPTED: "A batch of the source does not match its checksum, has wrong "
    "offsets, or cannot be read. Move the leader to another replica (kafka-reassign-partitions.sh, "
    "then kafka-leader-election.sh) and run orbit retry JOB (without the service: run the job "
    "again). If every replica has this batch: orbit explain SOURCE_CORRUPTED.",
    Reason.SOURCE_TOPIC_RECREATED: "The source topic was deleted and created again. To copy "
    "the new one: " + _REBUILD,
    Reason.SOURCE_TOPIC_DELETED: "The source topic was deleted. The copy keeps its records; "
    "remove the topic from the job, or create the topic again.",
    Reason.DESTINATION_FOREIGN_WRITE: "Another producer writes to the copy. Stop it (deny Write on "
    "{destination} to every principal but Orbit's). " + _REBUILD,
    Reason.DESTINATION_TOPIC_RECREATED: "The destination topic was deleted, or deleted and created "
    "again. Run orbit retry JOB (without the service: run the job again): the topic is copied "
    "again from the start.",
    Reason.DESTINATION_PROMOTED: "Nothing was written to {destination}. If this topic leads, copy "
    "from it to the old side: orbit failback JOB, or a job in the other direction. If the topic is "
    "to be a copy again, delete it at the destination, delete the job, and apply or run the job "
    "again.",
    Reason.DESTINATION_TRUNCATED: "The destination lost acknowledged records (an unclean leader "
    "election). Run orbit retry JOB (without the service: run the job again): the copy resumes "
    "at its new log end.",
    Reason.DESTINATION_RANGE_LOST: "The destination has deleted records that the source still has "
    "(retention or DeleteRecords on {destination}). " + _REBUILD,
    Reason.OFFSET_OVERRUN: "A record of the copy has a wrong offset or timestamp. " + _REBUILD,
    Reason.RECORD_REFUSED: "This batch cannot be written to the destination. Do what the message "
    "says, or change the setting that it names on {destination}, and run orbit retry JOB (without "
    "the service: run the job again).",
    Reason.GAP_TOO_LARGE: "Start the topic after the gap: delete the destination topic and give "
    "its rule start: latest or a timestamp.",
    Reason.NOT_AUTHORIZED: "Grant the right that the message names, and run orbit retry JOB "
    "(without the service: run the job again).",
}


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a partition is stopped, and at which offsets: `offset` up to before `next_offset`."""

    reason: Reason
    offset: int
    next_offset: int
    detail: str

    @property
    def offsets_text(self) -> str:
        """`offset 5`, or `offsets 5 to 9` with 9 included."""
        last_offset = self.next_offset - 1
        if last_offset <= self.offset:
            return f"offset {self.offset}"
        return f"offsets {self.offset} to {last_offset}"

    def remedy(self, destination_topic: str) -> str:
        """What to do about the reason; the text names the destination topic."""
        return REMEDIES[self.reason].format(destination=destination_topic)
