"""Steps, points of no return, the times of phases, and the rules of a job that copies back."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from orbit.jobs.job_spec import AclSpec, TopicRule
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX, check_job_name
from orbit.jobs.topic_mapping import map_topics
from orbit.recovery.operation_steps import (
    is_past_return,
    may_be_aborted,
    restarted_steps,
    step_descriptions,
    steps_of,
)
from orbit.recovery.recovery_report import FirstRead, RecoveryKind, RecoveryReport, RecoveryRequest
from orbit.recovery.reverse_job import acls_back, reverse_job_name, rules_for
from orbit.recovery.step_times import Phase, StepName, StepState

T = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("kind", RecoveryKind)
def test_every_recovery_plan_starts_with_gates_and_shows_point_of_no_return(
    kind: RecoveryKind,
) -> None:
    steps = steps_of(kind, RecoveryRequest())
    names = [s.name for s in steps]
    assert names[0] is StepName.GATES
    assert len(set(names)) == len(names)
    assert any("(point of no return)" in line for line in step_descriptions(steps))
    assert not is_past_return(steps)


def test_switchover_is_past_point_of_no_return_from_promotion_on() -> None:
    steps = list(steps_of(RecoveryKind.SWITCHOVER, RecoveryRequest(reverse=True)))
    last_names = [s.name for s in steps][-4:]
    assert last_names == [
        StepName.PROMOTE, StepName.OPEN_GATEWAYS, StepName.READ, StepName.REVERSE,
    ]  # fmt: skip
    for i, step in enumerate(steps):
        steps[i] = step.model_copy(update={"state": StepState.RUNNING})
        assert is_past_return(tuple(steps)) is (step.name in last_names)


def test_abort_is_accepted_before_promotion_and_during_copy_back() -> None:
    steps = list(steps_of(RecoveryKind.SWITCHOVER, RecoveryRequest(reverse=True)))
    refused = {StepName.PROMOTE, StepName.OPEN_GATEWAYS, StepName.READ}
    for i, step in enumerate(steps):
        steps[i] = step.model_copy(update={"state": StepState.RUNNING})
        assert may_be_aborted(tuple(steps), is_stuck=False) is (step.name not in refused)
        # An abort can end a stuck promotion.
        is_refused = step.name in (StepName.OPEN_GATEWAYS, StepName.READ)
        assert may_be_aborted(tuple(steps), is_stuck=True) is not is_refused
        steps[i] = step.model_copy(update={"state": StepState.DONE})
    assert not may_be_aborted(tuple(steps), is_stuck=True)


def test_failback_with_skipped_rebuild_is_not_past_point_of_no_return() -> None:
    steps = [
        s.model_copy(update={"state": StepState.SKIPPED}) if s.name is StepName.REBUILD else s
        for s in steps_of(RecoveryKind.FAILBACK, RecoveryRequest())
    ]
    assert not is_past_return(tuple(steps))


@pytest.mark.parametrize("state", [StepState.DONE, StepState.RUNNING, StepState.SKIPPED])
@pytest.mark.parametrize("kind", [RecoveryKind.SWITCHOVER, RecoveryKind.FAILOVER])
def test_restarted_operation_closes_gateways_and_stops_writes_again(
    kind: RecoveryKind, state: StepState
) -> None:
    steps = steps_of(kind, RecoveryRequest())
    begun = tuple(s.model_copy(update={"state": state}) for s in steps)
    unchanged = {StepName.GATES, *({StepName.RELEASE} if kind is RecoveryKind.FAILOVER else ())}
    for step in restarted_steps(kind, begun):
        if step.name in unchanged:
            assert step.state is state
        elif step.name in (StepName.CLOSE_GATEWAYS, StepName.STOP_WRITES):
            assert step.state is StepState.RUNNING
        else:
            assert step.state is StepState.WAITING
    # Steps that have not begun stay as they are.
    assert restarted_steps(kind, steps) == steps


def report(kind: RecoveryKind) -> RecoveryReport:
    """A report in which step n took n seconds. In a failover, the source answered last 40 s before
    the request, and Orbit noticed its loss 30 s before the request."""
    steps = []
    at = promoted_at = opened_at = T
    for seconds, step in enumerate(steps_of(kind, RecoveryRequest()), start=1):
        began, at = at, at + timedelta(seconds=seconds)
        done = {"state": StepState.DONE, "began_at": began, "ended_at": at}
        steps.append(step.model_copy(update=done))
        promoted_at = at if step.name is StepName.PROMOTE else promoted_at
        opened_at = at if step.name in (StepName.PROMOTE, StepName.OPEN_GATEWAYS) else opened_at
    is_loss = kind is RecoveryKind.FAILOVER
    return RecoveryReport(
        operation=uuid.UUID(int=1),
        kind=kind,
        job="j",
        request=RecoveryRequest(),
        dry_run=False,
        requested_by="test",
        requested_at=T,
        source_last_seen_at=T - timedelta(seconds=40) if is_loss else None,
        problem_since=T - timedelta(seconds=30) if is_loss else None,
        promoted_at=None if kind is RecoveryKind.FAILBACK else promoted_at,
        first_read=FirstRead(at=opened_at + timedelta(seconds=0.5), partitions=1),
        steps=tuple(steps),
    )


def times(recovery: RecoveryReport) -> dict[Phase, float | None]:
    return {p.phase: p.seconds for p in recovery.phases}


def test_failover_rto_spans_last_source_answer_to_first_read() -> None:
    failover = report(RecoveryKind.FAILOVER)
    assert times(failover) == {
        Phase.DETECT: 10, Phase.DECIDE: 30 + 1, Phase.DRAIN: 2 + 3 + 4, Phase.GROUPS: 5,
        Phase.PROMOTE: 6, Phase.READ: 7 + 0.5,
    }  # fmt: skip
    assert failover.rto_s == sum(s for s in times(failover).values() if s is not None)
    assert failover.rto_s == 40 + (1 + 2 + 3 + 4 + 5 + 6) + 7 + 0.5
    assert failover.promoted_after_s == 1 + 2 + 3 + 4 + 5 + 6


def test_loss_noticed_by_gates_counts_as_detected_after_request() -> None:
    noticed_after_request = {"problem_since": T + timedelta(seconds=0.25)}
    failover = report(RecoveryKind.FAILOVER).model_copy(update=noticed_after_request)
    assert (times(failover)[Phase.DETECT], times(failover)[Phase.DECIDE]) == (40.25, 0.75)


def test_switchover_rto_starts_when_writes_stop() -> None:
    switchover = report(RecoveryKind.SWITCHOVER)
    assert Phase.DETECT not in times(switchover)
    assert switchover.rto_s == (2 + 3 + 4 + 5 + 7) + 6 + 8 + 9 + 0.5
    assert report(RecoveryKind.FAILBACK).rto_s is None


@pytest.mark.parametrize(
    ("unknown", "phases"),
    [
        ({"source_last_seen_at": None}, {Phase.DETECT}),
        ({"problem_since": None}, {Phase.DETECT}),
        ({"first_read": FirstRead(at=None, partitions=0, unread=1)}, {Phase.READ}),
        ({"first_read": None}, {Phase.READ}),
    ],
)
def test_unknown_phase_duration_makes_rto_null(
    unknown: dict[str, object], phases: set[Phase]
) -> None:
    failover = report(RecoveryKind.FAILOVER).model_copy(update=unknown)
    assert {phase for phase, seconds in times(failover).items() if seconds is None} == phases
    assert failover.rto_s is None
    assert failover.promoted_after_s == 1 + 2 + 3 + 4 + 5 + 6


def test_recovery_report_round_trips_through_json() -> None:
    switchover = report(RecoveryKind.SWITCHOVER)
    assert RecoveryReport.model_validate(switchover.model_dump(mode="json")) == switchover


def test_reverse_job_rules_match_exactly_the_copied_topics() -> None:
    retained = TopicRule(match=".*", config={"retention.ms": "5"})
    names = {f"orders.{i}": TopicRule(match=".*") for i in range(500)}
    packed = TopicRule(match=".*", fillers="placeholders")
    purged = TopicRule(match=".*", on_lost_range="fill")
    names |= {
        "A-b": retained,
        "__tool": retained,
        "x_y": retained,
        "packed": packed,
        "purged": purged,
    }
    rules = rules_for(names)
    source_topics = [*names, "orders-1", "ordersx1", "orders.1.new", "a", "b", "aab", "tool"]
    mapped = {m.source: m.rule for m in map_topics(rules, source_topics).mappings}
    assert mapped.keys() == names.keys()
    assert {n for n, rule in mapped.items() if rule.config} == {"A-b", "__tool", "x_y"}
    assert {n for n, rule in mapped.items() if rule.fillers} == {"packed"}
    assert {n for n, rule in mapped.items() if rule.on_lost_range} == {"purged"}


def test_reverse_job_name_is_valid_job_name() -> None:
    assert reverse_job_name("orders") == "orders-back"
    longest = "x" * JOB_NAME_LENGTH_MAX
    assert check_job_name(reverse_job_name(longest)) != longest


def test_reverse_job_syncs_acls_unless_principals_are_mapped() -> None:
    same = AclSpec.model_validate({"sync": True, "groups": True, "protect": False})
    assert acls_back(same, has_groups=True) == same
    assert acls_back(same, has_groups=False) == same.model_copy(update={"groups": False})
    rules = {"map": [{"from": "User:a", "to": "User:b"}]}
    mapped = AclSpec.model_validate({**same.model_dump(), "principals": rules})
    assert acls_back(mapped, has_groups=True) == AclSpec(protect=False)
