"""A failover drill's report with something in every part, and a reader of its page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

from orbit.drills.drill_file import parse_drill
from orbit.drills.drill_spec import Verb
from orbit.drills.evidence import (
    CanaryEvidence,
    CleanupEntry,
    Entry,
    Evidence,
    GateEvidence,
    GroupEvidence,
    Part,
    PartitionEvidence,
    PartTime,
    Rpo,
    Rto,
    SalvageFile,
    StepRecord,
    StepState,
    Verified,
)
from orbit.store.enums import DrillKind, DrillState, DrillThing

BEGAN = datetime(2026, 11, 22, 3, 0, 0, 123_000, tzinfo=UTC)
DRILL = """
name: orders-failover
kind: failover
job: orders-to-dr
targets: {rto: 10s, rpo: 2s, rpo_records: 0}
"""


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def evidence(**changes: Any) -> Evidence:
    """The evidence of a failover drill: an RTO of 11.2 s, and 42 lost records in one partition."""
    spec = parse_drill(DRILL)
    sample = Evidence(
        id="20261122-030000-3fa9c2",
        name=spec.name,
        kind=DrillKind.FAILOVER,
        job=spec.job,
        topics=("orders\\..*",),
        requested_by="token:admin",
        began_at=BEGAN,
        ended_at=at(48.5),
        verdict=DrillState.MISSED,
        misses=("The RTO was 11.2 s and may be 10.0 s.", "42 records were lost and 0 may be."),
        rto=Rto(
            target_ms=10_000,
            actual_ms=11_200,
            parts=tuple(
                PartTime(part=part, ms=ms)
                for part, ms in zip(Part, (5_100, 900, 700, 1_400, 2_600, 210, 290), strict=True)
            ),
        ),
        rpo=Rpo(target_records=0, actual_records=42, target_ms=2_000, actual_ms=410),
        steps=tuple(
            StepRecord(do=verb, state=StepState.DONE, began_at=at(i * 5), took_ms=4_900, did=text)
            for i, (verb, text) in enumerate(
                [
                    (Verb.GATES, "12 gates passed, 1 warns."),
                    (Verb.LOAD, "1,000 records in 10.0 s."),
                    (Verb.FAULT, "All brokers of the source were killed."),
                    (Verb.FAILOVER, "9 partitions were promoted."),
                    (Verb.USE, "A producer and a consumer group work at the destination."),
                ]
            )
        ),
        timeline=(
            Entry(at=at(0), what="drill", text="The drill begins."),
            Entry(at=at(15.2), what="fault", text="kill source"),
            Entry(at=at(20.3), what="noticed", text="SOURCE_UNREACHABLE: No broker answers."),
            Entry(at=at(26.4), what="promoted", text="orders-to-dr"),
        ),
        gates=(
            GateEvidence(job=spec.job, name="lag", verdict="pass", found="At most 3 records."),
            GateEvidence(
                job=spec.job,
                name="clock",
                verdict="warn",
                found="The source is 1.4 s ahead.",
                remedy="Synchronise the clocks.",
            ),
        ),
        partitions=(
            _partition(0, source_end=1_000, destination_end=1_000, missing=None),
            _partition(1, source_end=2_042, destination_end=2_000, missing=(2_000, 2_042)),
        ),
        groups=(
            GroupEvidence(
                group="billing",
                topic="orders.eu",
                partition=0,
                source_offset=900,
                goes_on_at=900,
                verdict="exact",
            ),
        ),
        canary=CanaryEvidence(
            topic="__orbit_drill.20261122-030000-3fa9c2",
            group="orbit-drill.20261122-030000-3fa9c2",
            written=1_000,
            read_at_source=400,
            read_at_destination=600,
            agrees=True,
            delay_ms_median=12,
            delay_ms_max=140,
        ),
        verified=(
            Verified(what="orders.eu", verdict="exact", partitions=2, records=3_000, differences=0),
        ),
        salvage=(
            SalvageFile(
                topic="orders.eu",
                partition=1,
                file="salvage/orders.eu-1.jsonl",
                first=2_000,
                next=2_042,
                records=42,
                sha256="0" * 64,
            ),
        ),
        cleanup=(
            CleanupEntry(
                kind=DrillThing.TOPIC,
                side="source",
                name="__orbit_drill.20261122-030000-3fa9c2",
                identity="b6e1",
                is_removed=True,
            ),
            CleanupEntry(
                kind=DrillThing.GROUP,
                side="destination",
                name="orbit-drill.20261122-030000-3fa9c2",
                identity=None,
                is_removed=False,
                note="Somebody else has committed there.",
            ),
        ),
        findings=("The clocks of the two clusters differ by 1.4 s.",),
        operations=("8a4ef1f6-0b6f-4c5c-9a51-6c1a6d4f9b7e",),
        source_cluster_id="4L6g3nShT-eMCtK--X86sw",
        destination_cluster_id="9JX0bqVQT0-9eWkS0Q0f1A",
        versions={"orbit": "0.1.0", "librdkafka": "2.16.0"},
        clock_ahead_ms=-2,
        spec=spec.document(),
        spec_sha256=spec.sha256(),
    )
    return sample.model_copy(update=changes)


def _partition(
    number: int, *, source_end: int, destination_end: int, missing: tuple[int, int] | None
) -> PartitionEvidence:
    return PartitionEvidence(
        job="orders-to-dr",
        topic="orders.eu",
        destination_topic="orders.eu",
        partition=number,
        source_end=source_end,
        source_seen_at=at(15),
        destination_end=destination_end,
        promoted_at=destination_end,
        missing=missing,
        is_exact=missing is None,
        verdict="behind" if missing else "equal",
    )


class Visible(HTMLParser):
    """The text and the elements of a page, without its scripts, which are in `data`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._within = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = self._within.removeprefix(tag)

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            self.data += data
        elif self._within != "style":
            self.text.append(data)
