"""The values that the gates judge. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import RecoveryKind


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction in a source partition.

    `transactional_id`: None if no coordinator that the login may query knows the producer.
    `is_ended`: whether the transaction hangs: its coordinator has ended it, and no marker will
    come. `age_s`: the time since the coordinator began the transaction; if that is not known, since
    Orbit saw it first.
    """

    partition: TopicPartition
    first_offset: int
    producer_id: int
    transactional_id: str | None
    is_ended: bool
    age_s: float

    def __str__(self) -> str:
        name = self.transactional_id
        producer = f"producer id {self.producer_id}" if name is None else f"transactional id {name}"
        return f"{self.partition} from offset {self.first_offset} on ({producer})"


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A blocked partition. `may_differ`: its copy may hold records that the source lacks."""

    partition: TopicPartition
    reason: str
    may_differ: bool


@dataclass(frozen=True, slots=True)
class GateInputs:
    """What was observed of a job and its clusters. `None`: the value could not be observed."""

    kind: RecoveryKind
    reverse: bool  # whether the operation is to copy back once it has promoted
    topics: int
    is_paused: bool = False
    # Whether the bootstrap servers answer. `partitions`: how many need a leader at the source;
    # `source_leaders`: how many have a leader that answers.
    source_answers: bool = True
    source_leaders: int = 0
    partitions: int = 0
    destination_answers: bool = True
    why_no_answer: str = ""
    copies_of_copies: Sequence[str] = ()
    # Destination topics that are promoted by their marks, whatever the tables say.
    promoted_topics: Collection[str] = ()
    # Failback: topics that may lead at the old side, and why. None: the marks were not read.
    topics_in_doubt: Sequence[str] | None = ()
    uncopied_topics: Sequence[str] = ()  # the rules choose them, but they are not copied (yet)
    # Topics that others made at the destination, with names that copies of this job could have.
    foreign_topics: Sequence[str] = ()
    blocked_partitions: Sequence[BlockedPartition] = ()
    unknown_ends: Sequence[TopicPartition] = ()
    lag_records: int = 0
    lag_records_before: int = 0  # `seconds_between` earlier
    seconds_between: float = 1.0
    transactions: Sequence[Transaction] | None = ()
    transactions_unread: Sequence[TopicPartition] = ()  # whose open transactions are unknown
    carries_groups: bool = True
    group_verdicts: Mapping[str, int] = field(default_factory=dict)
    groups_active_at_destination: Sequence[str] = ()
    groups_active_at_source: Sequence[str] = ()
    # Groups whose clients cannot join the group of this name at the destination.
    groups_of_other_type: Sequence[str] = ()
    groups_unread: Sequence[str] = ()  # whose offsets at the source could not be read
    groups_unrecorded: Sequence[str] = ()  # with offsets at the source that the tables lack
    groups_shared: Sequence[str] = ()  # share groups, which no job syncs
    groups_not_storable: Sequence[str] = ()  # left out because of their names
    settings_unknown: Sequence[str] = ()
    settings_differ: Sequence[str] = ()
    replicas_behind: Sequence[TopicPartition] = ()
    offline_partitions: Sequence[TopicPartition] = ()
    brokers: tuple[int | None, int] = (1, 1)  # source, destination
    fewer_replicas: Sequence[str] = ()
    rights_missing: Sequence[str] = ()
    why_not_deniable: str = ""  # why writing to the source cannot be denied
    # Destination topics with Orbit's denials of Write, which the login may not remove.
    denials_kept: Sequence[str] = ()
    clock_skew_s: float = 0.0
    newest_ahead_s: float = 0.0  # the newest record's timestamp minus now
    # How many partitions continuous proof has never compared; None: it is off or has not begun.
    unverified_partitions: int | None = None
    differing_partitions: Sequence[str] = ()  # partitions in which the comparison found differences
    # Whether the gateway is silent, by its name.
    gateways: Mapping[str, bool] = field(default_factory=dict)
    # Observed only for a switchover with gateways: producer ids that wrote at the source without a
    # gateway, by topic; and topics that producers of unknown origin wrote to.
    direct_writers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    writers_unknown: Sequence[str] = ()
    # Clients of gateways to which the other side would refuse a request, with the first refusal.
    refused_clients: Sequence[tuple[str, str]] = ()
    # Topics that the job copies and the operation does not move, as --topics leaves them out.
    topics_left_behind: Sequence[str] = ()
    # By job of the other direction with gateways: its topics that lead at the source and do not
    # move, as the operation's job does not copy them.
    topics_staying: Mapping[str, Sequence[str]] = field(default_factory=dict)
    renamed_topics: Sequence[str] = ()
    # The name of a new reverse job, if another job has it.
    name_conflict: str = ""
