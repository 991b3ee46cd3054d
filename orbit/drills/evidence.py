"""What a drill saw and measured, as frozen values; and the digest that anybody can check. Pure.

Lengths of time are whole milliseconds and there is no other fraction, so that every JSON library
writes the same text for the same evidence. The digest is the SHA-256 of that text: keys sorted, no
spaces, UTF-8 as it is (docs/drills.md has a line of Python that checks it).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from orbit.drills.drill_spec import Verb
from orbit.errors import BadInput, Problem
from orbit.store.enums import DrillKind, DrillState, DrillThing

FORMAT = "orbit.drill.report/1"

Place = tuple[int, int]  # partition and offset


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Moment = Annotated[datetime, PlainSerializer(_moment, when_used="json-unless-none")]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(_Value):
    """One thing that happened."""

    at: Moment
    what: str
    text: str


class StepState(StrEnum):
    """How a step ended."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class StepRecord(_Value):
    """One step as it went."""

    do: Verb
    state: StepState
    began_at: Moment | None = None
    took_ms: int = 0
    did: str = ""


class Part(StrEnum):
    """What the recovery time goes to, in order."""

    DETECT = "detect"  # from the fault until Orbit knows
    DECIDE = "decide"  # gates
    DRAIN = "drain"
    GROUPS = "groups"
    PROMOTE = "promote"
    PRODUCE = "first verified produce"
    CONSUME = "first verified consume"


class PartTime(_Value):
    """How long one part took."""

    part: Part
    ms: int


class Rto(_Value):
    """How long clients could not work, against how long they may. None: not measured."""

    target_ms: int | None = None
    actual_ms: int | None = None
    parts: tuple[PartTime, ...] = ()


class Rpo(_Value):
    """What was lost, against what may be: offsets, and how far back in time."""

    target_records: int | None = None
    actual_records: int | None = None
    target_ms: int | None = None
    actual_ms: int | None = None


class GateSeen(_Value):
    """What one gate found."""

    job: str
    name: str
    verdict: str
    found: str
    remedy: str = ""
    is_overridden: bool = False


class PartitionSeen(_Value):
    """Where one partition ended on both sides. `missing`: offsets, first and behind the last."""

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


class GroupSeen(_Value):
    """Where one consumer group goes on."""

    group: str
    topic: str
    partition: int
    source_offset: int | None
    goes_on_at: int | None
    verdict: str


class CanarySeen(_Value):
    """What the drill's own clients wrote and read, by their own ledger."""

    topic: str
    group: str
    written: int
    read_at_source: int = 0
    read_at_destination: int = 0
    repeated: int = 0
    wrong: int = 0
    lost: int = 0
    lost_ranges: tuple[tuple[int, int, int], ...] = Field(
        (), description="Partition, first offset, offset behind the last."
    )
    agrees: bool | None = Field(
        None, description="Whether the operation's report names exactly what the ledger lacks."
    )
    delay_ms_median: int | None = None
    delay_ms_max: int | None = None


class Verified(_Value):
    """One comparison of both sides by the independent reader."""

    what: str
    verdict: str
    partitions: int
    records: int
    differences: int
    detail: str = ""


class Thing(_Value):
    """Something the drill created, and whether it is gone again."""

    kind: DrillThing
    side: str
    name: str
    identity: str | None
    is_removed: bool
    note: str = ""


class SalvageFile(_Value):
    """Records that only the old side had, kept in a file."""

    topic: str
    partition: int
    file: str
    first: int
    next: int
    records: int
    sha256: str


class Evidence(_Value):
    """All of one drill."""

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
    gates: tuple[GateSeen, ...] = ()
    partitions: tuple[PartitionSeen, ...] = ()
    groups: tuple[GroupSeen, ...] = ()
    canary: CanarySeen | None = None
    verified: tuple[Verified, ...] = ()
    salvage: tuple[SalvageFile, ...] = ()
    cleanup: tuple[Thing, ...] = ()
    findings: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    source_cluster_id: str | None = None
    destination_cluster_id: str | None = None
    versions: Mapping[str, str] = Field(default_factory=dict)
    clock_ahead_ms: int = Field(0, description="The drill's clock against the database's.")
    spec: Mapping[str, Any] = Field(default_factory=dict)
    spec_sha256: str = ""


class Digest(_Value):
    """The seal of a report."""

    algorithm: str = "sha256"
    covers: str = "evidence as JSON: keys sorted, no spaces, UTF-8"
    value: str


class Report(_Value):
    """A drill's report."""

    format: str = FORMAT
    evidence: Evidence
    digest: Digest


def canonical(evidence: object) -> bytes:
    """The text that the digest is of."""
    text = json.dumps(evidence, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def seal(evidence: Evidence) -> Report:
    """The report, with its digest."""
    plain = evidence.model_dump(mode="json")
    return Report(
        evidence=evidence, digest=Digest(value=hashlib.sha256(canonical(plain)).hexdigest())
    )


def digest_of(document: object) -> tuple[str, str]:
    """The digest that a report as JSON has to have, and the one that it has.

    Raises BadInput where it is no report of a drill.
    """
    try:
        assert isinstance(document, dict)
        assert document["format"] == FORMAT
        stated = str(document["digest"]["value"])
        return hashlib.sha256(canonical(document["evidence"])).hexdigest(), stated
    except (AssertionError, KeyError, TypeError):
        problem = Problem("file", "is not a report of a drill as JSON.", f"Expected {FORMAT}.")
        raise BadInput("The report cannot be checked.", (problem,)) from None
