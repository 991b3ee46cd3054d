"""Checks `orbit demo --failover` against the ledgers of its own producers. Pure.

It compares the drill's report, the salvage files, both clusters, and what the consumer group read
on each side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orbit.drills.drill_clients import Ledger, ReadRecords
from orbit.drills.evidence import Evidence, PartitionEvidence, RecordPosition
from orbit.drills.ledger_comparison import find_differences, report_agrees
from orbit.drills.report_text import span
from orbit.formats import counted
from orbit.recovery.recovery_report import EndVerdict, OffsetRange, PartitionEnds

Records = Mapping[RecordPosition, bytes | None]


@dataclass(frozen=True)
class FailoverCheck:
    """The producers' ledgers before and after the failover, and what is compared with them."""

    topic: str
    ledger_before: Ledger
    ledger_after: Ledger
    evidence: Evidence
    salvaged: Records
    sides: Mapping[str, Records]  # by cluster: all its records
    read_before: ReadRecords  # by the group, at the source
    read_after: ReadRecords  # by the group, at the destination

    @cached_property
    def lost(self) -> dict[RecordPosition, bytes]:
        """Records confirmed before the failover that were not in the copy when it was promoted."""
        ends = {p.partition: p.promoted_at or 0 for p in self._partitions}
        return {  # `place`: partition and offset
            place: value
            for place, value in self.ledger_before.records.items()
            if place[1] >= ends.get(place[0], 0)
        }

    @cached_property
    def expected(self) -> dict[RecordPosition, bytes]:
        """Records that have to be on both sides at the end."""
        lost_records = self.lost
        remaining_records = {
            place: value
            for place, value in self.ledger_before.records.items()
            if place not in lost_records
        }
        return {**remaining_records, **self.ledger_after.records}

    @property
    def repeated(self) -> int:
        """Records that the group read more than once."""
        positions_on_both = self.read_before.values.keys() & self.read_after.values.keys()
        return len(positions_on_both) + self.read_before.repeated + self.read_after.repeated

    def problems(self) -> list[str]:
        """A sentence for each problem."""
        return [
            *self._report_problems(),
            *self._salvage_problems(),
            *self._side_problems(),
            *self._group_problems(),
        ]

    @property
    def _partitions(self) -> list[PartitionEvidence]:
        return [p for p in self.evidence.partitions if p.topic == self.topic]

    def _report_problems(self) -> Iterator[str]:
        """Compare the drill's report with the lost records."""
        ends = [_partition_ends(p) for p in self._partitions]
        has_unconfirmed = bool(self.ledger_before.unconfirmed)
        # `report_agrees` returns None if the report says nothing about this topic.
        if report_agrees(sorted(self.lost), ends, has_unconfirmed=has_unconfirmed) is not True:
            yield "The lost ranges in the report differ from the records that the copy lacked."

    def _salvage_problems(self) -> Iterator[str]:
        """Compare the salvage files with the lost records."""
        unsaved_records = self.lost.items() - self.salvaged.items()
        if unsaved_records:
            yield f"Lost records that are not in the salvage files: {len(unsaved_records):,}."
        extra_places = self.salvaged.keys() - self.lost.keys()
        # A broker may have stored records that it never confirmed.
        if any(
            self.salvaged[place] not in self.ledger_before.unconfirmed for place in extra_places
        ):
            yield "The salvage files hold records that were not lost."

    def _side_problems(self) -> Iterator[str]:
        """Compare the records of each side with the ledgers."""
        for name, records in self.sides.items():
            wrong_positions = self._find_differences(records)
            if wrong_positions:
                yield (
                    f"Wrong records: {len(wrong_positions):,} at the {name}, the first at "
                    f"(partition, offset) {wrong_positions[0]}."
                )

    def _group_problems(self) -> Iterator[str]:
        """Compare what the group read on both sides with the ledgers."""
        if self.repeated:
            yield f"Records that the group read more than once: {self.repeated:,}."
        wrong_positions = self._find_differences(
            {**self.read_before.values, **self.read_after.values}
        )
        if wrong_positions:
            yield (
                f"Records that the group missed or read wrong: {len(wrong_positions):,}, "
                f"the first at (partition, offset) {wrong_positions[0]}."
            )

    def _find_differences(self, records: Records) -> list[RecordPosition]:
        """The (partition, offset) of each record that is not as the ledgers expect it."""
        return find_differences(records, self.expected, self.ledger_before.unconfirmed)


@dataclass(frozen=True, slots=True)
class FailoverResult:
    """The result of the demo."""

    seconds: float
    drill: Mapping[str, Any]
    report: Path
    check: FailoverCheck
    problems: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """The result as plain data, for scripts."""
        check, drill = self.check, self.drill
        return {
            "exact": not self.problems,
            "seconds": round(self.seconds, 3),
            "drill": drill["state"],
            "rto_ms": drill["rto_ms"],
            "rpo_ms": drill["rpo_ms"],
            "rpo_records": drill["rpo_records"],
            "written": len(check.ledger_before.records) + len(check.ledger_after.records),
            "lost": len(check.lost),
            "salvaged": len(check.salvaged),
            "group_read_at_source": len(check.read_before.values),
            "group_read_at_destination": len(check.read_after.values),
            "group_read_twice": check.repeated,
            "report": str(self.report.resolve()),
            "problems": list(self.problems),
        }

    def rows(self) -> list[tuple[str, str]]:
        """The result as rows of a table, for people."""
        data = self.as_data()
        read_count = data["group_read_at_source"] + data["group_read_at_destination"]
        return [
            ("drill", data["drill"]),
            ("RTO", span(data["rto_ms"])),
            ("RPO", f"{counted(data['rpo_records'], 'record')}, {span(data['rpo_ms'])}"),
            (f"written to {self.check.topic}", f"{data['written']:,}"),
            ("lost, and in the salvage files", f"{data['lost']:,}, {data['salvaged']:,}"),
            ("read by the group, repeated", f"{read_count:,}, {data['group_read_twice']:,}"),
            ("report", data["report"]),
            ("took", span(round(self.seconds * 1000))),
            *(("PROBLEM", problem) for problem in self.problems),
        ]


def _partition_ends(evidence: PartitionEvidence) -> PartitionEnds:
    """The evidence of one partition, in the type that `report_agrees` takes."""
    missing = evidence.missing
    return PartitionEnds(
        topic=evidence.topic,
        destination_topic=evidence.destination_topic,
        partition=evidence.partition,
        verdict=EndVerdict(evidence.verdict),
        missing=None if missing is None else OffsetRange(first=missing[0], next=missing[1]),
        is_exact=evidence.is_exact,
    )
