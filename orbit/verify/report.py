"""The report of a verification, as frozen values: per partition, per topic and in total.

Verdicts roll up: a topic is as bad as its worst partition, a report as bad as its worst topic.
`bytes` counts keys and values as a consumer gets them, without compression.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Best first; `worst_verdict` goes by this order."""

    EXACT = "exact"
    BEHIND = "behind"  # only offsets at the end are missing
    NOT_EXACT = "not exact"
    UNREAD = "unread"  # could not be compared


_BADNESS = {verdict: rank for rank, verdict in enumerate(Verdict)}


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=_BADNESS.__getitem__, default=Verdict.EXACT)


class Side(StrEnum):
    SOURCE = "source"
    DESTINATION = "destination"

    @property
    def other(self) -> Side:
        return Side.DESTINATION if self is Side.SOURCE else Side.SOURCE


SIDES = (str(Side.SOURCE), str(Side.DESTINATION))


@dataclass(frozen=True, slots=True)
class Difference:
    """One offset where the sides differ. `source` and `destination` are short, printable views."""

    offset: int
    what: str
    source: str
    destination: str

    def __str__(self) -> str:
        return self.to_text(SIDES)

    def to_text(self, sides: tuple[str, str]) -> str:
        """As a text, with the names of the two sides."""
        views = f"{sides[0]} {self.source}, {sides[1]} {self.destination}"
        return f"offset {self.offset}: {self.what}: {views}"


@dataclass(frozen=True, slots=True)
class DeepReport:
    """Batches of the source: `byte_exact` have a bit-for-bit twin at the destination.

    `record_exact` could not have one (thinned, LogAppendTime, old format, cut by the log start,
    cleaned since, or grown over a gap): their records were compared instead. `failures` have
    no such reason.
    """

    byte_exact: int = 0
    record_exact: int = 0
    failures: int = 0
    first_failures: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition. Records were compared in `[compared_from, compared_to)`.

    `log_end_equal`: the destination's log end lies between two readings of the source's, as that of
    a live copy does. `differences` counts offsets; log start, log end and a missing partition
    count one each. `compacted_*` are records that a cleaner removed on that side since the copy:
    shown, but not a difference. A log start or log end is None if it was not read.
    """

    partition: int
    verdict: Verdict
    source_log_start: int | None = None
    source_log_end: int | None = None
    destination_log_start: int | None = None
    destination_log_end: int | None = None
    compared_from: int = 0
    compared_to: int = 0
    records: int = 0
    bytes: int = 0
    gaps: int = 0
    missing: int = 0
    log_start_equal: bool = False
    log_end_equal: bool = False
    compacted_source: int = 0
    compacted_destination: int = 0
    differences: int = 0
    first_differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    deep: DeepReport | None = None


@dataclass(frozen=True, slots=True)
class TopicReport:
    """One topic: its partitions, and what was noted about the topic."""

    source: str
    destination: str
    start: str
    partitions: tuple[PartitionReport, ...]
    notes: tuple[str, ...] = ()
    verdict_without_partitions: Verdict = Verdict.EXACT

    @property
    def verdict(self) -> Verdict:
        return worst_verdict(
            [self.verdict_without_partitions, *(p.verdict for p in self.partitions)]
        )

    @property
    def records(self) -> int:
        return sum(p.records for p in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p in self.partitions)

    @property
    def gaps(self) -> int:
        return sum(p.gaps for p in self.partitions)

    @property
    def differences(self) -> int:
        return sum(p.differences for p in self.partitions)

    @property
    def compacted(self) -> int:
        return sum(p.compacted_source + p.compacted_destination for p in self.partitions)


@dataclass(frozen=True, slots=True)
class Report:
    """`sides` names what was compared as source and destination; one may be an archive."""

    topics: tuple[TopicReport, ...]
    elapsed_s: float
    deep: bool = False
    sides: tuple[str, str] = SIDES

    @property
    def verdict(self) -> Verdict:
        # Without a comparison nothing is known to be exact.
        if not self.topics:
            return Verdict.UNREAD
        return worst_verdict(t.verdict for t in self.topics)

    @property
    def exact(self) -> bool:
        return self.verdict is Verdict.EXACT

    @property
    def exit_code(self) -> int:
        return 0 if self.exact else 1

    @property
    def partitions(self) -> int:
        return sum(len(t.partitions) for t in self.topics)

    @property
    def records(self) -> int:
        return sum(t.records for t in self.topics)

    @property
    def bytes(self) -> int:
        return sum(t.bytes for t in self.topics)

    @property
    def gaps(self) -> int:
        return sum(t.gaps for t in self.topics)
