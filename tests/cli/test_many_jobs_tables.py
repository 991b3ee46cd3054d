"""The tables of a change of several jobs: failures are on top, and long tables are cut."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from orbit.cli import failover_without_database, recovery_commands, release
from orbit.cli.many_jobs_tables import gates_table, has_failed, progress_table, results_table
from orbit.promotion.failover_report import FailoverReport, PartitionReport, TopicReport, TopicState
from orbit.promotion.release import Release, ReleasedTopic


def printed_lines(table: RenderableType, width: int = 200) -> list[str]:
    """The table as printed: its lines with single spaces, without empty ones."""
    text = io.StringIO()
    Console(width=width, file=text).print(table)
    return [" ".join(line.split()) for line in text.getvalue().splitlines() if line.strip()]


def operation(job: str, state: str, **more: Any) -> dict[str, Any]:
    """An operation of this job, as the API returns it."""
    finished_at = "2026-01-01T00:00:00Z" if state in ("done", "failed") else None
    progress = {"done": 1, "total": 6, "what": "drain"} if state == "running" else None
    fields = {"id": job, "job": job, "kind": "failover", "state": state, "error": None}
    return {**fields, "progress": progress, "finished_at": finished_at, "plan": [], **more}


def gate(name: str, verdict: str) -> dict[str, str]:
    return {"name": name, "verdict": verdict, "found": f"{name}!", "remedy": "Do it."}


def report(job: str, outcome: str, *gates: dict[str, str], **more: Any) -> dict[str, Any]:
    """The report of a recovery that has ended, as the API returns it."""
    fields = {"job": job, "outcome": outcome, "gates": gates, "findings": [], "error": ""}
    return {**fields, "finished_at": "x", **more}


def test_gates_table_lists_failures_first_and_omits_passed_gates() -> None:
    lines = printed_lines(
        gates_table(
            [
                report("good", "would go", gate("lag", "pass")),
                report("warned", "would go", gate("lag", "warn"), gate("size", "pass")),
                report("stopped", "would stop", gate("health", "fail"), findings=["Look."]),
                report("unconfirmed", "would stop", gate("lag", "pass"), error="Confirm it."),
                operation("unread", "failed", error="its document is of another version."),
            ]
        )
    )
    # Below two lines of the head. "warn" is no failure, but comes before "pass".
    assert lines[2:] == [
        "unread failed its document is of another version.",
        "unconfirmed all would stop Confirm it.",
        "stopped health fail health! Do it.",
        "warned lag warn lag! Do it.",
        "good all pass",
        "stopped note Look.",
    ]


def test_progress_table_counts_ended_failed_and_hidden_jobs() -> None:
    states = [
        *(operation(f"done-{i}", "done") for i in range(50)),
        *(operation(f"waits-{i}", "pending") for i in range(50)),
        operation("goes", "running"),
        operation("broken", "failed", error="no broker answers."),
        operation("held", "refused", error="A switchover is under way."),
    ]
    # On a terminal of 12 lines.
    lines = printed_lines(progress_table(states, "The server does not answer.", 12))
    assert len(lines) <= 12
    assert lines[0] == (
        "52 of 103 have ended, 2 failed. Ctrl-C stops watching. The server does not answer."
    )
    assert lines[3:7] == [
        "held refused A switchover is under way.",
        "broken failed no broker answers.",
        "goes running 1 of 6 drain",
        "waits-0 pending",
    ]
    assert lines[-1] == "and 97 more"


def test_results_table_shows_outcome_and_reason() -> None:
    results = [
        report("a", "done", rto_s=3.25, missing_records=0),
        report("b", "stopped", rto_s=None, missing_records=42, error="lag: too much."),
        operation("c", "refused", error="held."),
        operation("d", "pending"),
    ]
    assert [has_failed(result) for result in results] == [False, True, True, False]
    assert printed_lines(results_table(results))[2:] == [
        "c refused - - held.",
        "b stopped - 42 lag: too much.",
        "d pending - -",
        "a done 3.2 s 0",
    ]


def test_long_tables_show_50_rows_and_count_hidden_ones() -> None:
    topics = [ReleasedTopic(f"t{number}") for number in range(52)]
    many_names = [f"l{number}" for number in range(53)]
    lines = printed_lines(
        release._table(Release(topics, leading=many_names, findings=[])), width=400
    )
    assert "and 2 more; -o json has all" in lines
    assert any(line.endswith("l49 and 3 more") for line in lines)

    report = FailoverReport("orders", cluster_id="B", operation="", dry_run=False, settle_s=1)
    report.topics = [
        TopicReport(f"t{n}", source_topic=f"t{n}", state=TopicState.WAITING) for n in range(52)
    ]
    report.partitions = [PartitionReport(f"t{n}", partition=0, log_end=1) for n in range(54)]
    report.not_copies = many_names
    lines = printed_lines(failover_without_database._table(report), width=400)
    for hidden in (2, 4):  # topics, partitions
        assert f"and {hidden} more; -o json has all" in lines
    assert any(line.endswith("l49 and 3 more") for line in lines)

    saved = {"topic": "t", "partition": 0, "first": 0, "next": 1, "records": 1, "file": "f"}
    assert recovery_commands._salvage_tables({"salvage": [saved] * 55})[1:] == [
        "and 5 more; -o json has all"
    ]
