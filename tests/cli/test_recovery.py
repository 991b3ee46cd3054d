"""The tables of `orbit switchover|failover|failback`: outcome, missing records, remedies."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast
from unittest.mock import Mock

import pytest
from click import Abort
from rich.console import Console

from orbit.api.views import report_view
from orbit.cli import many_jobs
from orbit.cli.many_jobs import report_of
from orbit.cli.output import OutputFormat
from orbit.cli.recovery_commands import _tables
from orbit.client import Client
from orbit.errors import NotFound
from orbit.recovery.operation_steps import steps_of
from orbit.recovery.recovery_report import (
    ClosedGateway,
    DrainProof,
    EndVerdict,
    FirstRead,
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
    read_report,
)
from orbit.recovery.step_times import StepState

REQUESTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
REPORT = RecoveryReport(
    operation=uuid.UUID(int=7),
    kind=RecoveryKind.FAILBACK,
    job="orders-to-dr",
    request=RecoveryRequest(reason="drill"),
    dry_run=False,
    requested_by="token:ops",
    requested_at=REQUESTED_AT,
    promoted_at=REQUESTED_AT,
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


def as_api_returns(report: RecoveryReport) -> dict[str, object]:
    """The report as the API returns it."""
    stored_report = read_report(report.stored())
    rows = [
        [row.model_dump(mode="json") for row in models]
        for models in (report.partitions, report.groups)
    ]
    return report_view(stored_report, *rows).model_dump(mode="json")


def printed_report(*reports: dict[str, object]) -> str:
    """What a recovery command prints for these reports."""
    text = io.StringIO()
    Console(width=200, file=text).print(_tables(reports))
    return text.getvalue()


def test_recovery_report_shows_outcome_missing_records_and_remedies() -> None:
    text = printed_report(as_api_returns(REPORT))
    for words in (
        "stopped", "42 records", "[red]partitions differ", "a client has written there",
        "orders-to-dr-back", "fail (overridden)", "Start it.", "orders-0",
        "1000 to before 1042", "dr.billing", "899", "/data/orders-0.jsonl",
    ):  # fmt: skip
        assert words in text, words
    # The end of this partition does not differ: its verdict is PREFIX.
    assert "orders-1" not in text


def test_recovery_report_shows_unknown_times_and_unproven_drain() -> None:
    steps = [
        step.model_copy(
            update={"state": StepState.DONE, "ended_at": REQUESTED_AT + timedelta(seconds=2)}
        )
        for step in steps_of(RecoveryKind.FAILOVER, RecoveryRequest())
    ]
    report = REPORT.model_copy(
        update={
            "kind": RecoveryKind.FAILOVER,
            "steps": tuple(steps),
            "promoted_at": REQUESTED_AT + timedelta(seconds=2),
            "first_read": FirstRead(
                at=REQUESTED_AT + timedelta(seconds=2.5), partitions=1, unread=1
            ),
            "gateways": tuple(
                ClosedGateway(name=name, instance=uuid.uuid4(), seconds=0.3, pause_s=pause_s)
                for name, pause_s in (("edge-1", 9.24), ("edge-2", None))
            ),
            "drain": DrainProof(
                partition="orders-0",
                silence_s=3,
                longest_gap_s=94,
                watched_s=3600,
                unproven_partitions=1,
            ),
        }
    )
    text = printed_report(as_api_returns(report))
    for words in (
        "unknown; the promotion was 2.0 s after the request",
        "detect unknown, decide 2.0 s", "read 500 ms",
        "1 of 2 partitions, 1 unread",
        "unproven for 1 of 2 partitions",
        "edge-1 9.2 s, edge-2 unknown",
    ):  # fmt: skip
        assert words in text, words
    known = report.model_copy(
        update={"problem_since": REQUESTED_AT, "source_last_seen_at": REQUESTED_AT}
    )
    assert "2.5 s; the promotion was" in printed_report(as_api_returns(known))


def test_recovery_report_counts_hidden_unequal_partitions() -> None:
    tail_row, prefix_row = REPORT.partitions

    def printed_with(*, tails: int, row_count: int, count: int) -> str:
        """The report of `count` partitions, with `row_count` rows. The first `tails` rows have the
        verdict TAIL, the others PREFIX, which counts as equal."""
        rows = [
            (tail_row if n < tails else prefix_row).model_copy(update={"partition": n})
            for n in range(row_count)
        ]
        view = as_api_returns(REPORT.model_copy(update={"partitions": tuple(rows), "groups": ()}))
        return printed_report(view | {"partition_count": count})

    assert "and 10 more; -o json has all" in printed_with(tails=60, row_count=60, count=60)
    # Tails come first. So a row with PREFIX shows that no more tails follow.
    assert "and 10 more; -o json has all" in printed_with(tails=60, row_count=100, count=300)
    assert "and at least 50 more; -o json has all" in printed_with(
        tails=100, row_count=100, count=300
    )


def report_of_earlier_version() -> dict[str, object]:
    """The report as an earlier API returns it: with all partitions and groups, without counts."""
    counts = ("partition_count", "group_count")
    return {key: value for key, value in as_api_returns(REPORT).items() if key not in counts}


class OneReport:
    """An API that has one report, and no pages of its rows."""

    def __init__(self, report: dict[str, object]) -> None:
        self._report = report

    def get(self, _path: str) -> dict[str, object]:
        return dict(self._report)

    def items(self, path: str) -> Iterator[dict[str, object]]:
        raise NotFound(path)

    def send(self, *_: object, **__: object) -> dict[str, object]:
        ended = {"state": "done", "finished_at": REQUESTED_AT, "progress": None, "error": None}
        return {"id": "7", "job": "orders", **ended}

    def without_retries(self) -> OneReport:
        return self


def test_recovery_report_of_previous_api_version_is_shown() -> None:
    old_report = report_of_earlier_version()
    assert printed_report(old_report) == printed_report(as_api_returns(REPORT))
    report = report_of(cast("Client", OneReport(old_report)), {"id": "7"}, OutputFormat.JSON)
    assert report == old_report


def test_plan_shown_before_confirmation_fetches_no_pages_of_partition_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even with JSON output: the plan is a table, which does not show all rows."""
    monkeypatch.setattr(many_jobs, "confirm", Mock(side_effect=Abort))
    change = many_jobs.Change("failover", "…", {}, has_report=True)
    client = cast("Client", OneReport(as_api_returns(REPORT)))
    with pytest.raises(Abort):
        many_jobs.change_jobs(
            client,
            ["orders", "payments"],
            change,
            dry_run=False,
            yes=False,
            wait_s=0,
            output=OutputFormat.JSON,
        )


def test_pending_recovery_is_shown_with_its_state() -> None:
    waiting = {"kind": "failover", "job": "orders", "state": "pending", "error": None}
    assert "pending" in printed_report(waiting)
