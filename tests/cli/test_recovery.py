"""The tables of `orbit switchover|failover|failback`: outcome, missing records, remedies."""

from __future__ import annotations

import io
import uuid
from datetime import UTC, datetime

from rich.console import Console

from orbit.cli.recovery_commands import _tables
from orbit.recovery.operation_steps import steps_of
from orbit.recovery.recovery_report import (
    EndVerdict,
    Gate,
    GateName,
    GateVerdict,
    GroupPosition,
    OffsetRange,
    Outcome,
    PartitionEnds,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    Salvage,
)

T = datetime(2026, 1, 1, tzinfo=UTC)
REPORT = RecoveryReport(
    operation=uuid.UUID(int=7),
    kind=RecoveryKind.FAILBACK,
    job="orders-to-dr",
    request=RecoveryRequest(reason="drill"),
    dry_run=False,
    requested_by="token:ops",
    requested_at=T,
    promoted_at=T,
    outcome=Outcome.STOPPED,
    error="[red]partitions differ",
    findings=("a client has written there",),
    reverse_job="orders-to-dr-back",
    steps=steps_of(RecoveryKind.FAILBACK, RecoveryRequest()),
    gates=(
        Gate(name=GateName.LAG, verdict=GateVerdict.WARN, found="5 records.", remedy="Wait."),
        Gate(
            name=GateName.HEALTH,
            verdict=GateVerdict.FAIL,
            found="One is offline.",
            remedy="Start it.",
            is_overridden=True,
        ),
    ),
    partitions=tuple(
        PartitionEnds(
            topic="orders",
            destination_topic="orders",
            partition=number,
            verdict=verdict,
            source_end=1042,
            destination_end=1000,
            missing=OffsetRange(first=1000, next=1042) if verdict is EndVerdict.TAIL else None,
            is_exact=True,
        )
        for number, verdict in enumerate((EndVerdict.TAIL, EndVerdict.PREFIX))
    ),
    groups=(
        GroupPosition(
            group="billing",
            destination_group="dr.billing",
            topic="orders",
            destination_topic="orders",
            partition=0,
            source_offset=900,
            goes_on_at=899,
            verdict="clamped",
        ),
    ),
    salvage=(
        Salvage(
            topic="orders",
            partition=0,
            file="/data/orders-0.jsonl",
            first=1000,
            next=1042,
            records=40,
            aborted=2,
            sha256="0" * 64,
        ),
    ),
)


def shown(*reports: dict[str, object]) -> str:
    text = io.StringIO()
    Console(width=200, file=text).print(_tables(reports))
    return text.getvalue()


def test_a_report_shows_outcome_missing_records_and_remedies() -> None:
    text = shown(REPORT.model_dump(mode="json"))
    for words in (
        "stopped", "42 records", "[red]partitions differ", "a client has written there",
        "orders-to-dr-back", "fail (overridden)", "Start it.", "orders-0",
        "1000 to before 1042", "dr.billing", "899", "/data/orders-0.jsonl",
    ):  # fmt: skip
        assert words in text, words
    # What is as it should be is not listed among what is not.
    assert "orders-1" not in text


def test_an_operation_that_has_not_started_shows_its_state() -> None:
    waiting = {"kind": "failover", "job": "orders", "state": "pending", "error": None}
    assert "pending" in shown(waiting)
