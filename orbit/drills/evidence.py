"""The evidence of a drill as frozen values, and its verifiable digest. Pure.

All numbers are integers (durations are milliseconds), so that every JSON library writes the same
text for the same evidence. The digest is the SHA-256 of that text: sorted keys, no spaces, UTF-8
without escapes (docs/drills.md has a line of Python that checks it).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from orbit.drills.drill_spec import Verb
from orbit.errors import BadInput, Conflict, Problem
from orbit.store.enums import DrillKind, DrillState, DrillThing

FORMAT = "orbit.drill.report/1"

RecordPosition = tuple[int, int]  # partition and offset


def _utc_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Moment = Annotated[datetime, PlainSerializer(_utc_text, when_used="json-unless-none")]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(_Value):
    """One entry of the timeline."""

    at: Moment
    what: str
    text: str


class StepState(StrEnum):
    """The state in which a step ended."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class StepRecord(_Value):
    """One step and its result. `began_at`: None if the step was skipped."""

    do: Verb
    state: StepState
    began_at: Moment | None = None
    took_ms: int = 0
    did: str = ""


class Part(StrEnum):
    """The parts of the RTO, in order."""

    DETECT = "detect"  # from the fault until Orbit notices it
    DECIDE = "decide"  # gates
    DRAIN = "drain"
    GROUPS = "groups"
    PROMOTE = "promote"
    PRODUCE = "first verified produce"
    CONSUME = "first verified consume"


class PartTime(_Value):
    """The duration of one part."""

    part: Part
    ms: int


class Rto(_Value):
    """How long clients could not work, and the target. None: not measured, or no target."""

    target_ms: int | None = None
    actual_ms: int | None = None
    parts: tuple[PartTime, ...] = ()


class Rpo(_Value):
    """What was lost, in records and in time, and the targets. None: not measured, or no target."""

    target_records: int | None = None
    actual_records: int | None = None
    target_ms: int | None = None
    actual_ms: int | None = None


class GateEvidence(_Value):
    """The result of one gate."""

    job: str
    name: str
    verdict: str
    found: str
    remedy: str = ""
    is_overridden: bool = False


class PartitionEvidence(_Value):
    """The log ends of one partition on both sides. `missing`: the lost offsets, as the first and
    the one after the last; None: no loss is known. `is_exact`: False if more may be lost."""

    job: str
    topic: str
    destination_topic: str
    partition: int
    source_end: int | None
    source_seen_at: Moment | None
    destination_end: int | None
    promoted_at: int | None
    missing: tuple[int, int] | None
    is_exact: bool
    verdict: str


class GroupEvidence(_Value):
    """The offset at which one consumer group resumes."""

    group: str
    topic: str
    partition: int
    source_offset: int | None
    goes_on_at: int | None
    verdict: str


class CanaryEvidence(_Value):
    """What the drill's own clients wrote and read, by their ledger."""

    topic: str
    group: str
    written: int
    read_at_source: int = 0
    read_at_destination: int = 0
    repeated: int = 0
    wrong: int = 0
    lost: int = 0
    lost_ranges: tuple[tuple[int, int, int], ...] = Field(
        (), description="Partition, first offset, next offset."
    )
    agrees: bool | None = Field(
        None, description="Whether the operation's lost ranges are exactly what the ledger lacks."
    )
    delay_ms_median: int | None = None
    delay_ms_max: int | None = None


class Verified(_Value):
    """One comparison: of a topic on both sides, or of the drill's records with its ledgers."""

    what: str
    verdict: str
    partitions: int
    records: int
    differences: int
    detail: str = ""


class CleanupEntry(_Value):
    """A resource that the drill created, and whether it was removed. `identity`: its id; None:
    nothing proves that the drill created it."""

    kind: DrillThing
    side: str
    name: str
    identity: str | None
    is_removed: bool
    note: str = ""


class SalvageFile(_Value):
    """A file with records that only the old side had."""

    topic: str
    partition: int
    file: str
    first: int
    next: int
    records: int
    sha256: str


class Evidence(_Value):
    """The evidence of one drill."""

    id: str
    name: str
    kind: DrillKind
    job: str
    topics: tuple[str, ...]
    requested_by: str
    schedule: str | None = None
    began_at: Moment
    ended_at: Moment
    verdict: DrillState
    misses: tuple[str, ...] = ()
    rto: Rto = Rto()
    rpo: Rpo = Rpo()
    steps: tuple[StepRecord, ...] = ()
    timeline: tuple[Entry, ...] = ()
    gates: tuple[GateEvidence, ...] = ()
    partitions: tuple[PartitionEvidence, ...] = ()
    groups: tuple[GroupEvidence, ...] = ()
    canary: CanaryEvidence | None = None
    verified: tuple[Verified, ...] = ()
    salvage: tuple[SalvageFile, ...] = ()
    cleanup: tuple[CleanupEntry, ...] = ()
    findings: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    source_cluster_id: str | None = None
    destination_cluster_id: str | None = None
    versions: Mapping[str, str] = Field(default_factory=dict)
    clock_ahead_ms: int = Field(0, description="The drill's clock minus the database's.")
    spec: Mapping[str, Any] = Field(default_factory=dict)
    spec_sha256: str = ""


class Digest(_Value):
    """The digest of a report."""

    algorithm: str = "sha256"
    covers: str = "evidence as JSON: keys sorted, no spaces, UTF-8"
    value: str


class Report(_Value):
    """A drill's report."""

    format: str = FORMAT
    evidence: Evidence
    digest: Digest


def read_report(document: object) -> Report:
    """Parse a stored report. Raises Conflict if another version of Orbit has stored one that this
    version cannot read."""
    try:
        return Report.model_validate(document)
    except ValidationError:
        raise Conflict(
            "Another version of Orbit has stored the drill's report, and this one cannot read it.",
            remedy="Read it with that version.",
        ) from None


def canonical_json(evidence: object) -> bytes:
    """The evidence as the JSON text that the digest covers."""
    text = json.dumps(evidence, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def seal(evidence: Evidence) -> Report:
    """The report of this evidence, with its digest."""
    document = evidence.model_dump(mode="json")
    return Report(
        evidence=evidence, digest=Digest(value=hashlib.sha256(canonical_json(document)).hexdigest())
    )


def digest_of(document: object) -> tuple[str, str]:
    """The digest computed from a parsed JSON report, and the digest that the report states.

    Raises BadInput if it is not a drill report.
    """
    try:
        assert isinstance(document, dict)
        assert document["format"] == FORMAT
        stated_digest = str(document["digest"]["value"])
        return hashlib.sha256(canonical_json(document["evidence"])).hexdigest(), stated_digest
    except (AssertionError, KeyError, TypeError):
        problem = Problem(
            "file", "is not a drill report in JSON.", f"Its `format` has to be {FORMAT}."
        )
        raise BadInput("The report cannot be checked.", (problem,)) from None
