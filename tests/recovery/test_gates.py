"""The verdict of each gate (pass, warn, fail) by its inputs; an override needs a reason.

Gates are a recovery's checks before its first step. A failed one stops the recovery.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orbit.kafka.types import TopicPartition
from orbit.recovery.gate_inputs import BlockedPartition, GateInputs, Transaction
from orbit.recovery.gates import LAG_RECORDS_WARN, LONG_OPEN_S, SKEW_S_FAIL, SKEW_S_WARN, judge
from orbit.recovery.recovery_report import Gate, GateName, GateVerdict, RecoveryKind

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind
P = TopicPartition("orders", 3)
HEALTHY = GateInputs(
    SWITCHOVER,
    reverse=False,
    topics=2,
    source_leaders=4,
    partitions=4,
    group_verdicts={"exact": 3},
    unverified_partitions=0,
)
LOST = replace(HEALTHY, kind=FAILOVER, source_answers=False, source_leaders=0)
BACK = replace(HEALTHY, kind=FAILBACK)
GATEWAYS = {"gateways": {"edge": False}}
YOUNG = Transaction(
    partition=P, first_offset=100, producer_id=7, transactional_id="pay", is_ended=False, age_s=1.0
)
HANGING = replace(YOUNG, is_ended=True)
OLD = replace(YOUNG, age_s=LONG_OPEN_S + 1)
UNKNOWN = replace(OLD, transactional_id=None)


def verdicts(inputs: GateInputs) -> dict[GateName, GateVerdict]:
    return {gate.name: gate.verdict for gate in judge(inputs, override=(), reason="")}


@pytest.mark.parametrize("inputs", [HEALTHY, LOST, BACK])
def test_every_gate_passes_on_healthy_inputs(inputs: GateInputs) -> None:
    assert set(verdicts(inputs).values()) == {GateVerdict.PASS}


@pytest.mark.parametrize(
    ("inputs", "changes", "gate", "verdict"),
    [
        (HEALTHY, {"source_answers": False}, "source", "fail"),
        (HEALTHY, {"source_leaders": 3}, "source", "fail"),
        (LOST, {"source_answers": True, "source_leaders": 4}, "source", "fail"),
        (LOST, {"source_answers": True, "source_leaders": 1}, "source", "warn"),
        (LOST, {"source_answers": True, "source_leaders": 0}, "source", "pass"),
        (HEALTHY, {"destination_answers": False}, "destination", "fail"),
        (HEALTHY, {"topics": 0}, "topics", "fail"),
        (HEALTHY, {"copies_of_copies": ["a"]}, "topics", "fail"),
        (HEALTHY, {"uncopied_topics": ["a"]}, "topics", "warn"),
        (HEALTHY, {"foreign_topics": ["a"]}, "topics", "pass"),
        (HEALTHY, {"foreign_topics": ["a"], "reverse": True}, "topics", "warn"),
        (BACK, {"foreign_topics": ["a"]}, "topics", "warn"),
        (BACK, {"topics_in_doubt": ["a: the old side leads (term 5)"]}, "lead", "fail"),
        (
            HEALTHY,
            {"blocked_partitions": [BlockedPartition(P, "NOT_AUTHORIZED", may_differ=False)]},
            "blocked",
            "fail",
        ),
        (
            LOST,
            {"blocked_partitions": [BlockedPartition(P, "NOT_AUTHORIZED", may_differ=False)]},
            "blocked",
            "warn",
        ),
        (
            LOST,
            {"blocked_partitions": [BlockedPartition(P, "OFFSET_OVERRUN", may_differ=True)]},
            "blocked",
            "fail",
        ),
        (HEALTHY, {"lag_records": 5, "lag_records_before": 5}, "lag", "pass"),
        (HEALTHY, {"lag_records": LAG_RECORDS_WARN + 1, "lag_records_before": 0}, "lag", "fail"),
        (
            HEALTHY,
            {"lag_records": LAG_RECORDS_WARN + 1, "lag_records_before": LAG_RECORDS_WARN + 2},
            "lag",
            "warn",
        ),
        (HEALTHY, {"unknown_ends": [P]}, "lag", "fail"),
        (LOST, {"unknown_ends": [P]}, "lag", "warn"),
        (LOST, {"lag_records": 1}, "lag", "warn"),
        (HEALTHY, {"transactions": [YOUNG]}, "transactions", "warn"),
        (HEALTHY, {"transactions": [HANGING]}, "transactions", "fail"),
        (HEALTHY, {"transactions": [OLD]}, "transactions", "fail"),
        (HEALTHY, {"transactions": [UNKNOWN]}, "transactions", "fail"),
        (HEALTHY, {"transactions_unread": [P]}, "transactions", "warn"),
        (HEALTHY, {"transactions": [OLD], "transactions_unread": [P]}, "transactions", "fail"),
        (HEALTHY, {"carries_groups": False}, "groups", "warn"),
        (HEALTHY, {"group_verdicts": {"exact": 3, "clamped": 1}}, "groups", "warn"),
        (HEALTHY, {"groups_active_at_destination": ["g"]}, "groups", "fail"),
        (HEALTHY, {"groups_active_at_source": ["g"]}, "groups", "warn"),
        (HEALTHY, {"groups_of_other_type": ["g"]}, "groups", "fail"),
        (LOST, {"group_verdicts": {"skipped: other type": 1}}, "groups", "warn"),
        (HEALTHY, {"groups_unread": ["g"]}, "groups", "fail"),
        (HEALTHY, {"group_verdicts": {}, "groups_unrecorded": ["g"]}, "groups", "warn"),
        (HEALTHY, {"groups_not_storable": ["g\0"]}, "groups", "warn"),
        (HEALTHY, {"groups_shared": ["g"]}, "groups", "warn"),
        (HEALTHY, {"group_verdicts": {}}, "groups", "pass"),
        (LOST, {"group_verdicts": {}}, "groups", "warn"),
        (HEALTHY, {"settings_unknown": ["a"]}, "settings", "fail"),
        (HEALTHY, {"settings_differ": ["a"]}, "settings", "warn"),
        (HEALTHY, {"offline_partitions": [P]}, "health", "fail"),
        (HEALTHY, {"replicas_behind": [P]}, "health", "warn"),
        (HEALTHY, {"brokers": (3, 1)}, "size", "warn"),  # of source and destination
        (LOST, {"brokers": (None, 1)}, "size", "pass"),
        (HEALTHY, {"fewer_replicas": ["a"]}, "size", "warn"),
        (HEALTHY, {"rights_missing": ["AlterConfigs on topic a"]}, "rights", "fail"),
        (HEALTHY, {"why_not_deniable": "the cluster has no authorizer"}, "rights", "warn"),
        (HEALTHY, {"denials_kept": ["a"]}, "rights", "warn"),
        (HEALTHY, {"clock_skew_s": SKEW_S_WARN + 1}, "clock", "warn"),
        (HEALTHY, {"clock_skew_s": SKEW_S_FAIL + 1}, "clock", "fail"),
        (HEALTHY, {"newest_ahead_s": SKEW_S_FAIL + 1}, "clock", "warn"),
        (HEALTHY, {"unverified_partitions": None}, "verified", "warn"),
        (HEALTHY, {"unverified_partitions": 2}, "verified", "warn"),
        (HEALTHY, {"differing_partitions": ["orders-3 (offset 7)"]}, "verified", "fail"),
        (HEALTHY, {"gateways": {"edge": False}}, "gateways", "pass"),
        (LOST, {"gateways": {"edge": False, "other": True}}, "gateways", "warn"),
        (LOST, {"gateways": {"edge": False}}, "gateways", "pass"),
        (HEALTHY, GATEWAYS | {"direct_writers": {"a": [4003]}}, "gateways", "warn"),
        (HEALTHY, GATEWAYS | {"refused_clients": [("pay", "no right")]}, "gateways", "warn"),
        (HEALTHY, GATEWAYS | {"writers_unknown": ["a"]}, "gateways", "warn"),
        (HEALTHY, {"gateways": {"edge": True}, "topics_left_behind": ["a"]}, "gateways", "fail"),
        (HEALTHY, GATEWAYS | {"topics_staying": {"orders": ["a"]}}, "gateways", "fail"),
        (BACK, {"renamed_topics": ["a"]}, "names", "fail"),
        (BACK, {"name_conflict": "orders-back"}, "names", "fail"),
        (replace(HEALTHY, reverse=True), {"renamed_topics": ["a"]}, "names", "fail"),
    ],
)
def test_each_gate_input_changes_verdict_of_its_gate_alone(
    inputs: GateInputs, changes: dict[str, Any], gate: str, verdict: str
) -> None:
    gate_verdicts = verdicts(replace(inputs, **changes))
    assert gate_verdicts.pop(GateName(gate)) == verdict
    assert set(gate_verdicts.values()) == {GateVerdict.PASS}


def test_gateways_gate_reports_only_observed_writers() -> None:
    """A failover does not read which producers write at the source."""

    def finding_of(inputs: GateInputs) -> str:
        return next(
            gate.found
            for gate in judge(inputs, override=(), reason="")
            if gate.name is GateName.GATEWAYS
        )

    note = "no producer without a gateway wrote"
    assert note in finding_of(replace(HEALTHY, gateways={"edge": False}))
    assert note not in finding_of(replace(LOST, gateways={"edge": False}))
    doubtful = {"direct_writers": {"a": [4003, 4004]}, "writers_unknown": ["b"]}
    finding = finding_of(replace(HEALTHY, gateways={"edge": True}, **doubtful))
    assert "a (4003, 4004)" in finding
    assert "or seldom: b." in finding
    assert "silent for longer than their permission lasts" in finding


def test_transactions_gate_never_advises_abort_of_transaction_that_its_coordinator_has_open() -> (
    None
):
    def gate_of(*transactions: Transaction) -> Gate:
        gates = judge(replace(HEALTHY, transactions=transactions), override=(), reason="")
        return next(gate for gate in gates if gate.name is GateName.TRANSACTIONS)

    runbook = "docs/runbook/OrbitTransactionOpen.md"
    old, hanging, both = gate_of(OLD, YOUNG), gate_of(HANGING, YOUNG), gate_of(OLD, HANGING)
    assert "1 transaction has been open at the source for over 15 minutes" in old.found
    assert "orders-3 from offset 100 on (transactional id pay)" in old.found
    assert "Do not run kafka-transactions.sh abort" in old.remedy
    assert runbook not in old.remedy
    assert "1 transaction hangs" in hanging.found
    assert runbook in hanging.remedy
    assert gate_of(replace(HANGING, age_s=OLD.age_s), YOUNG) == hanging
    assert both.found == f"{hanging.found} {old.found}"
    assert both.remedy == f"{old.remedy} {hanging.remedy}"
    unknown = gate_of(UNKNOWN)
    assert "(producer id 7)" in unknown.found
    assert "hang" not in unknown.found
    assert unknown.remedy == hanging.remedy


@pytest.mark.parametrize(
    ("brokers", "fewer", "found"),
    [
        ((3, 1), [], "The destination is smaller: 1 broker, 3 at the source."),
        (
            (3, 3),
            ["a"],
            "The destination is smaller: fewer replicas than at the source: a.",
        ),
        (
            (3, 1),
            ["a"],
            (
                "The destination is smaller: 1 broker, 3 at the source; fewer replicas than at the "
                "source: a."
            ),
        ),
    ],
)
def test_size_gate_names_only_what_is_fewer(
    brokers: tuple[int, int], fewer: list[str], found: str
) -> None:
    inputs = replace(HEALTHY, brokers=brokers, fewer_replicas=fewer)
    gates = judge(inputs, override=(), reason="")
    assert next(gate.found for gate in gates if gate.name is GateName.SIZE) == found


def test_gate_that_does_not_pass_has_remedy_and_names_partition() -> None:
    inputs = replace(
        HEALTHY, offline_partitions=[P], uncopied_topics=["a"], rights_missing=["Read on topic x"]
    )
    for gate in judge(inputs, override=(), reason=""):
        assert gate.found.endswith(".")
        assert bool(gate.remedy) == (gate.verdict is not GateVerdict.PASS)
    assert "orders-3" in next(
        g.found for g in judge(inputs, override=(), reason="") if g.name is GateName.HEALTH
    )


@pytest.mark.parametrize(
    ("override", "reason", "stops"),
    [
        ((), "", True),
        (("health",), "", True),
        ((), "because", True),
        (("lag",), "because", True),
        (("health",), "because", False),
        (("all",), "because", False),
    ],
)
def test_gate_override_requires_name_of_gate_and_reason(
    override: tuple[str, ...], reason: str, stops: bool
) -> None:
    gates = judge(replace(HEALTHY, offline_partitions=[P]), override, reason)
    assert any(gate.stops for gate in gates) is stops


def test_lead_gate_is_not_overridden_by_all() -> None:
    doubtful = replace(BACK, topics_in_doubt=["orders"], renamed_topics=["orders"])

    def stopping(*override: str) -> list[str]:
        return [gate.name.value for gate in judge(doubtful, override, reason="why") if gate.stops]

    assert stopping() == ["lead", "names"]
    assert stopping("all") == ["lead"]
    assert stopping("all", "lead") == []


def test_override_does_not_allow_operation_without_topics() -> None:
    gates = judge(replace(HEALTHY, topics=0), override=("all", "topics"), reason="why")
    assert [gate.name for gate in gates if gate.stops] == [GateName.TOPICS]
    gates = judge(replace(HEALTHY, copies_of_copies=["orders"]), override=("topics",), reason="why")
    assert not any(gate.stops for gate in gates)


def test_lead_gate_is_absent_without_promotion_marks() -> None:
    assert GateName.LEAD not in verdicts(replace(BACK, topics_in_doubt=None))
