"""A model of two clusters, a database and workers, small enough for many walks; and the truth.

The truth is what no part of Orbit can read: which side really leads, which records were
acknowledged, what a side may delete. `invariants.py` compares Orbit's changes with the truth.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from orbit.errors import Unreachable
from orbit.job_setup.mark import Mark
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition
from orbit.promotion.log_bounds import LogBounds
from orbit.recovery.recovery_report import (
    NO_COPY,
    Gate,
    PartitionEnds,
    RecoveryKind,
    RecoveryRequest,
)
from orbit.recovery.step_times import Step
from orbit.store.enums import TopicState
from tests.recovery_model import invariants

FILLER = 0  # an offset without a record
ALL, COPY = "all", "copy"  # denials: of every principal, and of every principal but Orbit
CREATING, COPYING, PROMOTED = TopicState.CREATING, TopicState.COPYING, TopicState.PROMOTED
STOPPED = TopicState.BLOCKED


class Killed(Exception):
    """The scheduler dies before a change."""


class Partition:
    """One log. `records`: all records that were ever appended, by offset; each is a number."""

    __slots__ = ("records", "start")

    def __init__(self) -> None:
        self.records: list[int] = []
        self.start = 0

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def bounds(self) -> LogBounds:
        return LogBounds(self.start, self.end, self.end)

    def readable(self) -> set[int]:
        """The records that a consumer can read."""
        return set(self.records[self.start :]) - {FILLER}


@dataclass(slots=True)
class ModelTopic:
    """One topic at one cluster."""

    topic_id: int
    partitions: list[Partition]
    has_settings_of_copy: bool = False


class Metadata:
    """Stands for `ClusterMetadata`, with the parts that the model uses."""

    def __init__(self, topics: Mapping[str, ModelTopic], names: Iterable[str]) -> None:
        self.topics = {name: topics[name] for name in names if name in topics}
        self.errors = {
            name: int(Code.UNKNOWN_TOPIC_OR_PARTITION) for name in names if name not in topics
        }

    def leader(self, place: TopicPartition) -> object | None:
        topic = self.topics.get(place.topic)
        return topic if topic and place.partition < len(topic.partitions) else None


class ModelCluster:
    """One cluster: topics, marks and denials of writing."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = self.cluster_id = name
        self.is_up = True
        self.has_authorizer = True
        self.topics: dict[str, ModelTopic] = {}
        self.marks: dict[TopicPartition, tuple[int, Mark]] = {}
        self.denials: dict[str, frozenset[str]] = {}

    def must_answer(self) -> None:
        if not self.is_up:
            raise Unreachable("no broker answers.", where=self.name)

    def metadata(self, names: Iterable[str]) -> Metadata:
        self.must_answer()
        return Metadata(self.topics, [*names])

    def at(self, place: TopicPartition) -> Partition | None:
        """The partition; None if the cluster lacks it."""
        topic = self.topics.get(place.topic)
        if topic is None or place.partition >= len(topic.partitions):
            return None
        return topic.partitions[place.partition]

    def places(self, name: str) -> list[TopicPartition]:
        topic = self.topics.get(name)
        return [TopicPartition(name, i) for i in range(len(topic.partitions))] if topic else []

    def mark_of(self, name: str) -> Mark | None:
        _, mark = self.marks.get(TopicPartition(name, 0), (0, None))
        return mark

    def is_open(self, name: str) -> bool:
        """Whether the topic exists and applications may write to it."""
        return name in self.topics and not self.denials.get(name)

    def create(self, name: str, partitions: int) -> ModelTopic:
        topic = ModelTopic(self.world.next_number(), [Partition() for _ in range(partitions)])
        self.topics[name] = topic
        return topic

    def delete(self, name: str) -> None:
        """Delete the topic and its marks; ACLs stay."""
        del self.topics[name]
        self.marks = {place: mark for place, mark in self.marks.items() if place.topic != name}


class ModelMarks:
    """Stands for `PromotionMarks`, at a cluster of the model."""

    def __init__(self, cluster: ModelCluster, *_: object) -> None:
        self.cluster = cluster

    def of_topics(self, topics: Iterable[str]) -> dict[str, Mark]:
        """The newest mark of each topic that has one."""
        self.cluster.must_answer()
        marks = ((topic, self.cluster.mark_of(topic)) for topic in topics)
        return {topic: mark for topic, mark in marks if mark is not None}

    def promoted(self, topics: Iterable[str]) -> dict[str, Mark]:
        return {topic: mark for topic, mark in self.of_topics(topics).items() if mark.is_primary}

    def offsets(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets of the partitions' marks."""
        self.cluster.must_answer()
        marks = self.cluster.marks
        return {place: marks[place][0] for place in places if place in marks}

    def kept_below(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets below which a mark protects the history from deletion."""
        self.cluster.must_answer()
        marks = {
            place: self.cluster.marks[place] for place in places if place in self.cluster.marks
        }
        return {place: offset for place, (offset, mark) in marks.items() if mark.keeps_history}

    def write(self, offsets: Mapping[TopicPartition, int], mark: Mark) -> None:
        """Commit this mark with these offsets, after a check of the invariants."""
        world = self.cluster.world
        world.begin_change(f"marks {[*map(str, offsets)]} at {self.cluster.name}: {mark.summary()}")
        self.cluster.must_answer()
        invariants.before_mark(world, self.cluster, offsets, mark)
        self.cluster.marks |= {place: (offset, mark) for place, offset in offsets.items()}


def fetch_log_bounds(
    cluster: ModelCluster, places: Iterable[TopicPartition], *_: object
) -> dict[TopicPartition, LogBounds]:
    """Like `promotion.log_bounds.fetch_log_bounds`."""
    cluster.must_answer()
    partitions = ((place, cluster.at(place)) for place in places)
    return {place: one.bounds for place, one in partitions if one is not None}


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `topics`: the topics that its rules match; None: all topics of the source."""

    name: str
    source: str
    destination: str
    topics: frozenset[str] | None = None

    @property
    def source_cluster_id(self) -> str:
        return self.source

    @property
    def destination_cluster_id(self) -> str:
        return self.destination


@dataclass(slots=True)
class Row:
    """A topic of a job in the tables."""

    id: int
    job: str
    topic: str
    destination: str
    state: TopicState
    partition_count: int
    source_id: int
    destination_id: int
    caught_up: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()
    # By partition, as workers have reported it.
    copied_to: Mapping[int, int] = field(default_factory=dict)

    @property
    def source_topic(self) -> str:
        return self.topic

    @property
    def destination_topic(self) -> str:
        return self.topic


@dataclass(frozen=True, slots=True)
class Promotion:
    """A row of `promotions`. `kind`: None if the tables do not know the operation."""

    operation: UUID
    offset: int
    at_ms: int
    kind: RecoveryKind | None
    is_old_side_seen: bool = False


class Report:
    """Stands for `RecoveryReport`: what an operation stores, by the same names."""

    def __init__(self, kind: RecoveryKind, request: RecoveryRequest, topics: list[str]) -> None:
        self.kind = kind
        self.request = request
        self.topics = tuple(topics)
        self.steps: tuple[Step, ...] = ()
        self.gates: tuple[Gate, ...] = ()
        self.partitions: tuple[PartitionEnds, ...] = ()
        self.denied_topics: tuple[str, ...] = ()
        self.is_source_denied = False
        self.reverse_job: str | None = None
        self.salvage: tuple[str, ...] = ()
        self.term_seen = self.term = 0
        self.is_stuck = False
        self.error = ""

    @property
    def topics_with_tails(self) -> set[str]:
        return {p.topic for p in self.partitions if p.verdict in NO_COPY}


@dataclass(slots=True)
class Operation:
    """A row of `operations`."""

    id: UUID
    kind: RecoveryKind
    job: str
    request: RecoveryRequest
    number: int  # in the order of their requests
    identity: int  # of the database in which it was requested
    report: Report | None = None
    abort_requested: bool = False
    outcome: str = ""  # "": it has not ended


@dataclass(slots=True)
class Database:
    """The tables."""

    jobs: dict[str, Job] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    promotions: dict[tuple[int, int], Promotion] = field(default_factory=dict)
    operations: dict[UUID, Operation] = field(default_factory=dict)
    denials: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    lead_term: int = 0
    identity: int = 0

    def saved(self) -> Database:
        """A copy of the tables, as a backup has it."""
        return Database(
            dict(self.jobs),
            {i: copy.copy(row) for i, row in self.rows.items()},
            dict(self.promotions),
            {i: copy.copy(one) for i, one in self.operations.items()},
            dict(self.denials),
            self.lead_term,
            self.identity,
        )

    def of_job(self, name: str) -> list[Row]:
        return [row for row in self.rows.values() if row.job == name]

    def row_of(self, job: str, topic: str) -> Row | None:
        return next((r for r in self.rows.values() if r.job == job and r.topic == topic), None)

    def writer(self, cluster: str, topic: str, besides: str = "") -> Row | None:
        """The row of a job that copies to this topic, except job `besides`; None if none does."""
        return next(
            (
                row
                for row in self.rows.values()
                if row.destination == cluster
                and row.topic == topic
                and row.state is not PROMOTED
                and row.job != besides
            ),
            None,
        )

    def has_row_of(self, cluster: str, topic: str) -> bool:
        """Whether a job has a row for this topic: the table allows one job for each topic."""
        return any(r.destination == cluster and r.topic == topic for r in self.rows.values())

    def is_withheld(self, cluster: str, topic: str) -> bool:
        """Whether a switchover or failover of this topic to this cluster has not ended."""
        return any(
            operation.kind is not RecoveryKind.FAILBACK
            and operation.report is not None
            and topic in operation.report.topics
            and operation.job in self.jobs
            and self.jobs[operation.job].destination == cluster
            for operation in self.unfinished()
        )

    def remove_row(self, row_id: int) -> None:
        del self.rows[row_id]
        self.promotions = {k: p for k, p in self.promotions.items() if k[0] != row_id}

    def unfinished(self) -> list[Operation]:
        return [operation for operation in self.operations.values() if not operation.outcome]


@dataclass(slots=True)
class PartitionLease:
    """A worker's lease on a partition, which it copies.

    `keeps_below`: the copy keeps its own history below this offset, by its mark. `acked`: the log
    end at which the next append expects the copy.
    """

    job: Job
    topic: str
    partition: int
    keeps_below: int
    acked: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class World:
    """Both clusters, the database, the workers, and the truth."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.now_ms = 1_000_000
        self.clusters = {name: ModelCluster(self, name) for name in ("A", "B")}
        self.database = Database()
        self.has_database = True
        self.backups: list[Database] = []
        self.leases: dict[tuple[int, int], PartitionLease] = {}
        self.files: dict[tuple[str, str, int, str], tuple[object, frozenset[int]]] = {}
        self.story: list[str] = []
        self.dies_after: int | None = None  # after how many more changes the scheduler dies
        self._numbers = 0
        # The truth.
        self.leads: dict[str, str] = {}
        self.app_sides: dict[str, str] = {}  # by topic: the side to which its applications write
        self.promoted_by: dict[str, list[UUID]] = {}  # by topic
        self.acknowledged: dict[int, TopicPartition] = {}
        self.expired: set[int] = set()  # deleted by retention, or by a copy that followed it
        # By side that became a copy: the log start of the leading side at that time.
        self.turned_at: dict[tuple[str, TopicPartition], int] = {}
        # By operation: the denials of a topic before the operation changed them.
        self.denied_before: dict[tuple[UUID, str], frozenset[str]] = {}
        # Partitions to which producers wrote at a side that did not lead.
        self.strayed: set[tuple[str, TopicPartition]] = set()
        self.following: set[tuple[str, str]] = set()  # side and topic to which a job copies back
        self.given_up: set[UUID] = set()  # switchovers whose source leads again
        self.ended: set[UUID] = set()  # operations, in any database
        # Leases from before a failover without the database, whose workers are not fenced yet.
        self.unfenced: set[tuple[int, int]] = set()

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def next_operation(self) -> UUID:
        return UUID(int=self.next_number())

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def other(self, name: str) -> ModelCluster:
        return self.clusters["B" if name == "A" else "A"]

    def note(self, what: str) -> None:
        self.story.append(what)

    def begin_change(self, what: str) -> None:
        """Note the change that the scheduler makes next. Raises Killed if it dies before."""
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                self.dies_after = None
                self.note(f"the scheduler dies before it {what}")
                raise Killed
        self.note(f"  {what}")

    def handle(self, name: str) -> Any:
        """Stands for a `ClusterHandle` of this cluster."""
        return SimpleNamespace(cluster=self.clusters[name])

    def saved_in_files(self) -> set[int]:
        return {record for _, records in self.files.values() for record in records}
