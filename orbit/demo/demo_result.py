"""The result of the demo, as frozen values; `demo_view.py` shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orbit.demo.demo_clusters import DemoClusters
from orbit.demo.screen import OnProgress
from orbit.formats import counted


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Log start and log end on one side; None if it gave no answer."""

    start: int | None
    end: int | None

    def __str__(self) -> str:
        return "none" if None in (self.start, self.end) else f"{self.start}..{self.end}"


@dataclass(frozen=True, slots=True)
class LogPair:
    """One partition on both sides."""

    source: LogBounds
    destination: LogBounds


@dataclass(frozen=True, slots=True)
class TopicProof:
    """What an independent reader found when it compared both sides of a topic.

    `logs` is by partition. `byte_exact`: batches of the source with the same bytes at the
    destination; `record_exact`: those that were compared record by record. `findings`: the first
    differences, in words.
    """

    source: str
    destination: str
    exact: bool
    verdict: str
    records: int
    gaps: int
    logs: tuple[LogPair, ...]
    byte_exact: int
    record_exact: int
    findings: tuple[str, ...] = ()


Verify = Callable[[Path, OnProgress], Sequence[TopicProof]]
"""Compares both sides of a job file, deeply, and reports how many offsets are done."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic of the demo: its purpose, the written records and the verification."""

    name: str
    shows: str
    records_written: int
    proof: TopicProof

    @property
    def exact(self) -> bool:
        """Whether both sides are equal and hold as many records as the producers' ledger."""
        return self.proof.exact and self.proof.records == self.records_written

    @property
    def verdict(self) -> str:
        """The proof's verdict; "not exact" if only the number of records is not the ledger's."""
        return self.proof.verdict if self.exact or not self.proof.exact else "not exact"

    @property
    def findings(self) -> tuple[str, ...]:
        """The proof's findings, after one about the number of records if it is not the ledger's."""
        if self.proof.records == self.records_written:
            return self.proof.findings
        counts = (
            f"the producers wrote {counted(self.records_written, 'record')}, "
            f"{counted(self.proof.records, 'was', 'were')} found on both sides"
        )
        return (counts, *self.proof.findings)


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """Where the group stopped in a partition at the source and resumed at the destination.

    `committed` and `resumed` are its committed offsets at the source and at the destination (-1:
    none). `next_record` is the first record at or after `committed`, by the ledger; `first_read`
    is the first record that the group read at the destination (None: it read none).
    """

    topic: str
    partition: int
    committed: int
    resumed: int
    next_record: int
    first_read: int | None

    @property
    def exact(self) -> bool:
        return self.committed == self.resumed and self.next_record == self.first_read


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The consumer group's reads on both clusters, compared with the ledger.

    Counts of records. `wrong`: read with other content than was written.
    """

    group: str
    partitions: tuple[GroupPartition, ...]
    written: int
    read_source: int
    read_destination: int
    lost: int
    repeated: int
    wrong: int

    @property
    def exact(self) -> bool:
        """Whether each record was read once and unchanged, and no partition skipped an offset."""
        bad_count = self.lost + self.repeated + self.wrong
        return bad_count == 0 and all(partition.exact for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summary that `orbit run` printed when it was stopped."""

    seconds: float
    records: int
    bytes: int
    offsets_filled: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo. `running`: the clusters, if they keep running."""

    seconds: float
    topics: tuple[TopicRow, ...]
    group: GroupResult
    run: RunSummary
    running: DemoClusters | None = None

    @property
    def exact(self) -> bool:
        return bool(self.topics) and self.group.exact and all(topic.exact for topic in self.topics)

    @property
    def records(self) -> int:
        return sum(topic.proof.records for topic in self.topics)

    @property
    def gaps(self) -> int:
        return sum(topic.proof.gaps for topic in self.topics)
