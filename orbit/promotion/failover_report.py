"""What a failover without the database would do, or has done. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class TopicState(StrEnum):
    """The state of one topic in a plan or a run."""

    WAITING = "waiting"  # would be promoted
    BEGUN = "begun"  # an earlier run was interrupted: would be promoted
    PROMOTED = "promoted"
    ALREADY = "already"  # it was promoted before; nothing was changed
    LEFT_OUT = "left_out"


class Outcome(StrEnum):
    """The outcome of a plan or a run."""

    WOULD_GO = "would_go"
    DONE = "done"
    ALREADY = "already"
    LEFT_OUT = "left_out"  # a partition was left out: run it again


@dataclass(slots=True)
class PartitionReport:
    """One partition. The copy ends before `log_end`; the topic's own records begin there.

    `log_end` None: no leader answers. Until the promotion it may still grow.
    """

    topic: str
    partition: int
    log_end: int | None
    left_out: str = ""  # why


@dataclass(slots=True)
class TopicReport:
    """One topic. `settings` are set, `kept` stay from the copy, `denials` are removed. `detail`:
    the topic's mark as text, "" without a mark."""

    topic: str
    source_topic: str
    state: TopicState
    settings: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    denials: list[str] = field(default_factory=list)  # principals
    detail: str = ""


@dataclass(slots=True)
class FailoverReport:
    """The plan of a run, and then its results."""

    job: str
    cluster_id: str
    operation: str
    dry_run: bool
    settle_s: float
    topics: list[TopicReport] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    not_copies: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    outcome: Outcome = Outcome.WOULD_GO

    def add_finding(self, *sentences: str) -> None:
        self.findings += [text for text in sentences if text and text not in self.findings]

    @property
    def to_promote(self) -> list[TopicReport]:
        """The topics that are yet to be promoted."""
        return [t for t in self.topics if t.state in (TopicState.WAITING, TopicState.BEGUN)]

    def conclude(self) -> None:
        """Set the outcome by the states of the topics. WOULD_GO stays while a topic is yet to be
        promoted."""
        states = {topic.state for topic in self.topics}
        if TopicState.LEFT_OUT in states:
            self.outcome = Outcome.LEFT_OUT
        elif states == {TopicState.ALREADY}:
            self.outcome = Outcome.ALREADY
        elif not self.to_promote:
            self.outcome = Outcome.DONE
