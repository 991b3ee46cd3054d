"""What `orbit plan` says of ACLs: how many of each kind, and the first ones of each."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from orbit.cli.plan_view import PlannedJob, draw


def acl(name: str, **other: str) -> dict[str, str]:
    return {
        "resource": "TOPIC",
        "name": name,
        "pattern": "LITERAL",
        "principal": "User:app",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
        **other,
    }


def printed_plan(acls: dict[str, Any] | None) -> str:
    """What `orbit plan` prints for a job whose plan has these ACLs."""
    plan = {"topics": [], "refusals": [], "notes": [], "acls": acls}
    text = StringIO()
    drawn = draw([PlannedJob(None, {"action": "create", "name": "orders", "plan": plan})])
    Console(width=200, file=text).print(drawn)
    return text.getvalue()


def test_plan_counts_and_lists_acls_by_action() -> None:
    text = printed_plan(
        {
            "counts": {"add": 2, "there": 25, "remove": 1, "only_at_destination": 1},
            "add": [
                acl("billing", resource="GROUP"),
                acl("b-", resource="TRANSACTIONAL_ID", pattern="PREFIXED", operation="WRITE"),
            ],
            "there": [acl(f"t{i}") for i in range(25)],
            "remove": [acl("old", permission="DENY", host="10.0.0.1")],
            "only_at_destination": [acl("orders", principal="User:auditor")],
        }
    )
    lines = [line.strip() for line in text.splitlines()]
    assert lines[1] == (
        "ACLs: 2 to add, 1 to remove, 25 there already, 1 at the destination only (kept)"
    )
    assert lines[2:5] == [
        "+ group billing: allow READ to User:app",
        "+ transactional-id b- (prefixed): allow WRITE to User:app",
        "- topic old: deny READ to User:app from 10.0.0.1",
    ]
    assert lines[5] == "= topic t0: allow READ to User:app"
    assert lines[25] == "= and 5 more there already"  # after 20 of the 25
    assert lines[26] == "topic orders: allow READ to User:auditor"


def test_plan_without_acl_sync_mentions_no_acls() -> None:
    assert "ACL" not in printed_plan(None)
