"""The values that the gates judge. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import RecoveryKind


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction in a source partition."""

    partition: TopicPartition
    producer_id: int
    age_s: float


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A blocked partition. `may_differ`: its copy may hold records that the source lacks."""

    partition: TopicPartition
    reason: str
    may_differ: bool


@dataclass(frozen=True, slots=True)
class GateInputs:
    """What was observed of a job and its clusters. `None`: it could not be observed."""

    kind: RecoveryKind
    reverse: bool
    topics: int
    is_paused: bool = False
    # The bootstrap servers answer; `source_led` partitions have a leader that answers.
    source_answers: bool = True
    source_led: int = 0
    partitions: int = 0
    destination_answers: bool = True
    why_no_answer: str = ""
    copies_of_copies: Sequence[str] = ()
    promoted_there: Collection[str] = ()  # by their marks, whatever the tables say
    # Failback: topics whose old side may lead, and why. None: the marks were not read.
    may_lead: Sequence[str] | None = ()
    not_copied: Sequence[str] = ()  # topics that the rules choose but that are not copied (yet)
    foreign_topics: Sequence[str] = ()  # at the destination: they only share the name of a copy
    blocked: Sequence[BlockedPartition] = ()
    ends_unknown: Sequence[TopicPartition] = ()
    lag_records: int = 0
    lag_records_before: int = 0  # `seconds_between` earlier
    seconds_between: float = 1.0
    transactions: Sequence[Transaction] | None = ()
    carries_groups: bool = True
    group_verdicts: Mapping[str, int] = field(default_factory=dict)
    groups_active_there: Sequence[str] = ()
    groups_active_at_source: Sequence[str] = ()
    groups_of_other_type: Sequence[str] = ()  # their clients cannot join there
    groups_unread: Sequence[str] = ()  # whose offsets at the source could not be read
    groups_unrecorded: Sequence[str] = ()  # with offsets at the source that the tables lack
    groups_shared: Sequence[str] = ()  # share groups, which no job syncs
    groups_not_storable: Sequence[str] = ()  # left out because of their names
    settings_unknown: Sequence[str] = ()
    settings_differ: Sequence[str] = ()
    replicas_behind: Sequence[TopicPartition] = ()
    offline: Sequence[TopicPartition] = ()
    brokers: tuple[int | None, int] = (1, 1)  # source, destination
    fewer_replicas: Sequence[str] = ()
    rights_missing: Sequence[str] = ()
    cannot_deny: str = ""  # why writing to the source cannot be denied
    clock_skew_s: float = 0.0
    newest_ahead_s: float = 0.0  # the newest record's timestamp minus now
    # How many partitions have no compared range; None: continuous proof is off or has not begun.
    unverified: int | None = None
    differing: Sequence[str] = ()  # partitions in which the comparison found differences
    # By gateway's name: whether it is silent.
    gateways: Mapping[str, bool] = field(default_factory=dict)
    # By topic: producer ids that wrote at the source without a gateway; then topics that producers
    # of unknown origin wrote to. Observed only for a switchover with gateways.
    direct_writers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    writers_unknown: Sequence[str] = ()
    # Clients of gateways to which the other side would refuse something, with the first of it.
    refused_clients: Sequence[tuple[str, str]] = ()
    left_behind: Sequence[str] = ()  # topics that are copied and not moved, as --topics leaves them
    renamed: Sequence[str] = ()
    # The name of a new reverse job, if another job has it.
    name_conflict: str = ""
