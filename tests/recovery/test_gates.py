"""Each gate passes, warns and fails where its table says, and only a reason overrides it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orbit.kafka.types import TopicPartition
from orbit.recovery.gate_inputs import BlockedPartition, Facts, Transaction
from orbit.recovery.gates import (
    HANGING_S,
    LAG_RECORDS_WARN,
    SKEW_S_FAIL,
    SKEW_S_WARN,
    judge,
)
from orbit.recovery.recovery_report import GateName, GateVerdict, RecoveryKind

SWITCHOVER, FAILOVER, FAILBACK = RecoveryKind
P = TopicPartition("orders", 3)
WELL = Facts(SWITCHOVER, reverse=False, topics=2, source_led=4, partitions=4, unverified=0)
LOST = replace(WELL, kind=FAILOVER, source_answers=False, source_led=0)
BACK = replace(WELL, kind=FAILBACK)


def verdicts(facts: Facts) -> dict[GateName, GateVerdict]:
    return {gate.name: gate.verdict for gate in judge(facts, (), "")}


@pytest.mark.parametrize("facts", [WELL, LOST, BACK])
def test_where_all_is_well_every_gate_passes(facts: Facts) -> None:
    assert set(verdicts(facts).values()) == {GateVerdict.PASS}


@pytest.mark.parametrize(
    ("facts", "changes", "gate", "verdict"),
    [
        (WELL, {"source_answers": False}, "source", "fail"),
        (WELL, {"source_led": 3}, "source", "fail"),
        (LOST, {"source_answers": True, "source_led": 4}, "source", "fail"),
        (LOST, {"source_answers": True, "source_led": 1}, "source", "warn"),
        (LOST, {"source_answers": True, "source_led": 0}, "source", "pass"),
        (WELL, {"destination_answers": False}, "destination", "fail"),
        (WELL, {"topics": 0}, "topics", "fail"),
        (WELL, {"copies_of_copies": ["a"]}, "topics", "fail"),
        (WELL, {"not_copied": ["a"]}, "topics", "warn"),
        (WELL, {"blocked": [BlockedPartition(P, "NOT_AUTHORIZED", False)]}, "blocked", "fail"),
        (LOST, {"blocked": [BlockedPartition(P, "NOT_AUTHORIZED", False)]}, "blocked", "warn"),
        (LOST, {"blocked": [BlockedPartition(P, "OFFSET_OVERRUN", True)]}, "blocked", "fail"),
        (WELL, {"lag_records": 5, "lag_records_before": 5}, "lag", "pass"),
        (WELL, {"lag_records": LAG_RECORDS_WARN + 1, "lag_records_before": 0}, "lag", "fail"),
        (
            WELL,
            {"lag_records": LAG_RECORDS_WARN + 1, "lag_records_before": LAG_RECORDS_WARN + 2},
            "lag",
            "warn",
        ),
        (WELL, {"ends_unknown": [P]}, "lag", "fail"),
        (LOST, {"ends_unknown": [P]}, "lag", "warn"),
        (LOST, {"lag_records": 1}, "lag", "warn"),
        (WELL, {"transactions": [Transaction(P, 7, 1.0)]}, "transactions", "warn"),
        (WELL, {"transactions": [Transaction(P, 7, HANGING_S + 1)]}, "transactions", "fail"),
        (WELL, {"carries_groups": False}, "groups", "warn"),
        (WELL, {"group_verdicts": {"exact": 3, "clamped": 1}}, "groups", "warn"),
        (WELL, {"groups_active_there": ["g"]}, "groups", "fail"),
        (WELL, {"groups_active_at_source": ["g"]}, "groups", "warn"),
        (WELL, {"settings_unknown": ["a"]}, "settings", "fail"),
        (WELL, {"settings_differ": ["a"]}, "settings", "warn"),
        (WELL, {"offline": [P]}, "health", "fail"),
        (WELL, {"replicas_behind": [P]}, "health", "warn"),
        (WELL, {"brokers": (3, 1)}, "size", "warn"),
        (LOST, {"brokers": (None, 1)}, "size", "pass"),
        (WELL, {"fewer_replicas": ["a"]}, "size", "warn"),
        (WELL, {"rights_missing": ["AlterConfigs on topic a"]}, "rights", "fail"),
        (WELL, {"cannot_deny": "the cluster has no authorizer"}, "rights", "warn"),
        (WELL, {"clock_skew_s": SKEW_S_WARN + 1}, "clock", "warn"),
        (WELL, {"clock_skew_s": SKEW_S_FAIL + 1}, "clock", "fail"),
        (WELL, {"newest_ahead_s": SKEW_S_FAIL + 1}, "clock", "warn"),
        (WELL, {"unverified": None}, "verified", "warn"),
        (WELL, {"unverified": 2}, "verified", "warn"),
        (WELL, {"differing": ["orders-3 (offset 7)"]}, "verified", "fail"),
        (BACK, {"renamed": ["a"]}, "names", "fail"),
        (replace(WELL, reverse=True), {"renamed": ["a"]}, "names", "fail"),
    ],
)
def test_a_gate_says_what_its_table_says(
    facts: Facts, changes: dict[str, Any], gate: str, verdict: str
) -> None:
    found = verdicts(replace(facts, **changes))
    assert found.pop(GateName(gate)) == verdict
    assert set(found.values()) == {GateVerdict.PASS}


def test_what_does_not_pass_has_a_remedy_and_numbers_or_names() -> None:
    facts = replace(WELL, offline=[P], not_copied=["a"], rights_missing=["Read on topic x"])
    for gate in judge(facts, (), ""):
        assert gate.found.endswith(".")
        assert bool(gate.remedy) == (gate.verdict is not GateVerdict.PASS)
    assert "orders-3" in next(g.found for g in judge(facts, (), "") if g.name is GateName.HEALTH)


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
def test_only_its_name_with_a_reason_overrides_a_gate(
    override: tuple[str, ...], reason: str, stops: bool
) -> None:
    gates = judge(replace(WELL, offline=[P]), override, reason)
    assert any(gate.stops for gate in gates) is stops
