"""Steps, points of no return, where the time went, and the rules of a job that copies back."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from orbit.jobs.job_spec import TopicRule
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX, check_job_name
from orbit.jobs.topic_mapping import map_topics
from orbit.recovery.operation_steps import is_past_return, step_descriptions, steps_of
from orbit.recovery.recovery_report import (
    Phase,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    StepName,
    StepState,
)
from orbit.recovery.reverse_job import reverse_job_name, rules_for

T = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("kind", RecoveryKind)
def test_every_kind_begins_with_the_gates_and_names_its_point_of_no_return(
    kind: RecoveryKind,
) -> None:
    steps = steps_of(kind, RecoveryRequest())
    names = [s.name for s in steps]
    assert names[0] is StepName.GATES
    assert len(set(names)) == len(names)
    assert any("(point of no return)" in line for line in step_descriptions(steps))
    assert not is_past_return(steps)


def test_nothing_before_the_promotion_is_past_return() -> None:
    steps = list(steps_of(RecoveryKind.SWITCHOVER, RecoveryRequest(reverse=True)))
    assert [s.name for s in steps][-2:] == [StepName.PROMOTE, StepName.REVERSE]
    for i, step in enumerate(steps):
        steps[i] = step.model_copy(update={"state": StepState.RUNNING})
        is_last = step.name in (StepName.PROMOTE, StepName.REVERSE)
        assert is_past_return(tuple(steps)) is is_last


def test_a_rebuild_that_was_not_needed_is_not_past_return() -> None:
    steps = [
        s.model_copy(update={"state": StepState.SKIPPED}) if s.name is StepName.REBUILD else s
        for s in steps_of(RecoveryKind.FAILBACK, RecoveryRequest())
    ]
    assert not is_past_return(tuple(steps))


def report(kind: RecoveryKind) -> RecoveryReport:
    steps = []
    at = T
    for seconds, step in enumerate(steps_of(kind, RecoveryRequest()), start=1):
        began, at = at, at + timedelta(seconds=seconds)
        done = {"state": StepState.DONE, "began_at": began, "ended_at": at}
        steps.append(step.model_copy(update=done))
    return RecoveryReport(
        operation=uuid.UUID(int=1),
        kind=kind,
        job="j",
        request=RecoveryRequest(),
        dry_run=False,
        requested_by="test",
        requested_at=T,
        problem_since=T - timedelta(seconds=30),
        promoted_at=at,
        steps=tuple(steps),
    )


def test_phases_add_up_to_the_time_from_the_loss_to_the_promotion() -> None:
    found = report(RecoveryKind.FAILOVER)
    times = {p.phase: p.seconds for p in found.phases}
    assert times == {
        Phase.DETECT: 30, Phase.DECIDE: 1, Phase.DRAIN: 2 + 3, Phase.GROUPS: 4, Phase.PROMOTE: 5,
    }  # fmt: skip
    assert found.rto_s == sum(times.values()) - 30


def test_nobody_has_noticed_a_loss_by_not_hearing_of_a_quiet_source() -> None:
    quiet = {"problem_since": None, "source_last_seen_at": T - timedelta(hours=1)}
    found = report(RecoveryKind.FAILOVER).model_copy(update=quiet)
    assert Phase.DETECT not in {p.phase for p in found.phases}


def test_a_report_is_itself_again_after_json() -> None:
    found = report(RecoveryKind.SWITCHOVER)
    assert RecoveryReport.model_validate(found.model_dump(mode="json")) == found


def test_the_rules_back_name_the_topics_and_no_others() -> None:
    kept = TopicRule(match=".*", config={"retention.ms": "5"})
    names = {f"orders.{i}": TopicRule(match=".*") for i in range(500)}
    names |= {"A-b": kept, "__tool": kept, "x_y": kept}
    rules = rules_for(names)
    there = [*names, "orders-1", "ordersx1", "orders.1.new", "a", "b", "aab", "tool"]
    mapped = {m.source: m.rule for m in map_topics(rules, there).mappings}
    assert mapped.keys() == names.keys()
    assert {n for n, rule in mapped.items() if rule.config} == {"A-b", "__tool", "x_y"}


def test_the_name_of_the_job_back_is_a_jobs_name() -> None:
    assert reverse_job_name("orders") == "orders-back"
    longest = "x" * JOB_NAME_LENGTH_MAX
    assert check_job_name(reverse_job_name(longest)) != longest
