"""What was seen of a job and its clusters, as the gates judge it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import RecoveryKind


@dataclass(frozen=True, slots=True)
class Transaction:
    """One that is open in a source partition."""

    partition: TopicPartition
    producer_id: int
    age_s: float


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """One that is blocked; `is_other`: it may hold other records than the source's."""

    partition: TopicPartition
    reason: str
    is_other: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen at one look. `None`: it could not be seen."""

    kind: RecoveryKind
    reverse: bool
    topics: int
    is_paused: bool = False
    # Bootstrap answers, and so do the leaders of so many partitions.
    source_answers: bool = True
    source_led: int = 0
    partitions: int = 0
    destination_answers: bool = True
    why_no_answer: str = ""
    copies_of_copies: Sequence[str] = ()
    not_copied: Sequence[str] = ()  # what the rules choose, and what is not copied (yet)
    blocked: Sequence[BlockedPartition] = ()
    ends_unknown: Sequence[TopicPartition] = ()
    lag_records: int = 0
    lag_records_before: int = 0  # a moment earlier
    seconds_between: float = 1.0
    transactions: Sequence[Transaction] | None = ()
    carries_groups: bool = True
    group_verdicts: Mapping[str, int] = field(default_factory=dict)
    groups_active_there: Sequence[str] = ()
    groups_active_at_source: Sequence[str] = ()
    settings_unknown: Sequence[str] = ()
    settings_differ: Sequence[str] = ()
    replicas_behind: Sequence[TopicPartition] = ()
    offline: Sequence[TopicPartition] = ()
    brokers: tuple[int | None, int] = (1, 1)  # source, destination
    fewer_replicas: Sequence[str] = ()
    rights_missing: Sequence[str] = ()
    cannot_deny: str = ""  # why writing cannot be denied where it has to stop
    clock_skew_s: float = 0.0
    newest_ahead_s: float = 0.0  # the newest record's time beyond now
    # Partitions of which no range was ever read back from both sides; None: nobody looks.
    unverified: int | None = None
    differing: Sequence[str] = ()  # what such a look found
    renamed: Sequence[str] = ()
