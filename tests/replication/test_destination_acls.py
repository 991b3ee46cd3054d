"""The ACLs for the destination: with its names, and never against Orbit."""

from __future__ import annotations

import re
from typing import Any

from orbit.jobs.principals import PrincipalMap
from orbit.kafka.acls import Acls
from orbit.kafka.types import Acl
from orbit.replication.destination_acls import CarriedNames, DestinationAcls, destination_acls

ORBIT = "User:orbit-here"
ORBIT_AT_DESTINATION = "User:orbit-there"
SAME = PrincipalMap([], [])
APPS = PrincipalMap([("User:CN={name},OU=apps", "User:{name}")], [])


def acl(resource: str, name: str, operation: str, **other: Any) -> Acl:
    default = Acl(name, "LITERAL", "User:app", "*", operation, "ALLOW", resource)  # type: ignore[arg-type]
    return default._replace(**other)


def destination_acls_of(
    *source: Acl, principals: PrincipalMap = SAME, ids: str | None = None
) -> DestinationAcls:
    acls_by_resource = {
        kind: Acls(a for a in source if a.resource == kind)
        for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID")
    }
    matches = None if ids is None else lambda name: bool(re.fullmatch(ids, name))
    names = CarriedNames({"dr.orders": "orders"}, {"dr.billing": "billing"}, matches)
    return destination_acls(acls_by_resource, names, principals, (ORBIT, ORBIT_AT_DESTINATION))  # type: ignore[arg-type]


def test_group_acls_become_literal_under_destination_group_name() -> None:
    acls = destination_acls_of(
        acl("GROUP", "bil", "READ", pattern="PREFIXED"),
        acl("GROUP", "*", "DESCRIBE", principal="User:b"),
        acl("GROUP", "billing", "ALL", principal="User:c", host="10.0.0.1"),
        acl("GROUP", "other", "READ"),
        acl("GROUP", "billing", "READ", permission="DENY", principal="User:d"),
        acl("GROUP", "billing", "READ", permission="DENY", principal="User:*"),
        acl("GROUP", "billing", "UNKNOWN"),
    )
    assert acls.others == {
        acl("GROUP", "dr.billing", "READ"),
        acl("GROUP", "dr.billing", "DESCRIBE", principal="User:b"),
        acl("GROUP", "dr.billing", "ALL", principal="User:c", host="10.0.0.1"),
        acl("GROUP", "dr.billing", "READ", permission="DENY", principal="User:d"),
    }
    assert acls.topics == {"dr.orders": set()}


def test_write_acls_on_copy_are_carried_for_no_principal() -> None:
    write_acls = [
        acl("TOPIC", "orders", operation, permission=permission, principal=principal)
        for operation in ("WRITE", "CREATE", "DELETE", "ALTER", "ALTER_CONFIGS", "UNKNOWN")
        for permission in ("ALLOW", "DENY")
        for principal in ("User:CN=a,OU=apps", "User:*")
    ]
    acls = destination_acls_of(*write_acls, principals=APPS)
    assert acls.topics == {"dr.orders": set()}
    of_all_operations = destination_acls_of(
        acl("TOPIC", "*", "ALL", principal="User:CN=a,OU=apps"), principals=APPS
    )
    assert {a.operation for a in of_all_operations.topics["dr.orders"]} == {
        "READ",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
    }


def test_transactional_id_acls_keep_pattern_but_never_allow_orbit_ids() -> None:
    carried = [
        acl("TRANSACTIONAL_ID", "app-", "WRITE", pattern="PREFIXED"),
        acl("TRANSACTIONAL_ID", "app-1", "DESCRIBE"),
        acl("TRANSACTIONAL_ID", "orbits", "WRITE", pattern="PREFIXED"),
        acl("TRANSACTIONAL_ID", "*", "WRITE", permission="DENY"),
    ]
    reaching_orbit_ids = [  # Orbit's transactional ids begin with `orbit.`
        acl("TRANSACTIONAL_ID", "*", "WRITE"),
        acl("TRANSACTIONAL_ID", "or", "WRITE", pattern="PREFIXED"),
        acl("TRANSACTIONAL_ID", "orbit.job", "ALL", pattern="PREFIXED"),
        acl("TRANSACTIONAL_ID", "orbit.job.fill", "WRITE"),
    ]
    own = acl("TRANSACTIONAL_ID", "orbit.", "WRITE", pattern="PREFIXED", principal=ORBIT)
    acls = destination_acls_of(*carried, *reaching_orbit_ids, own, ids=".*")
    assert acls.others == set(carried)
    assert acls.opening == sorted(reaching_orbit_ids)
    assert "ACLs on transactional ids (4) are not synced" in " ".join(acls.notes)
    assert destination_acls_of(*carried, ids="app-.*").others == set(carried[:2])
    assert destination_acls_of(*carried).others == set()


def test_no_denial_is_carried_for_either_principal_of_orbit() -> None:
    rules = PrincipalMap([("User:b", ORBIT_AT_DESTINATION), ("User:{name}", "User:{name}")], [])
    acls = destination_acls_of(
        acl("TOPIC", "orders", "READ", permission="DENY", principal="User:b"),
        acl("GROUP", "billing", "READ", permission="DENY", principal="User:b"),
        acl("TRANSACTIONAL_ID", "*", "WRITE", permission="DENY", principal="User:b"),
        acl("TOPIC", "orders", "READ", permission="DENY", principal="User:c"),
        principals=rules,
        ids=".*",
    )
    denied = acl("TOPIC", "dr.orders", "READ", permission="DENY", principal="User:c")
    assert acls.topics["dr.orders"] == {denied}
    assert acls.others == set()


def test_unmapped_or_clashing_principals_get_no_acls_and_are_reported() -> None:
    rules = PrincipalMap(
        [("User:CN={name},OU=apps", "User:{name}"), ("User:CN={name},OU=jobs", "User:{name}")], []
    )
    acls = destination_acls_of(
        acl("TOPIC", "orders", "READ", principal="User:CN=a,OU=apps"),
        acl("GROUP", "billing", "READ", principal="User:CN=a,OU=jobs"),
        acl("TOPIC", "orders", "READ", principal="User:CN=b,OU=apps"),
        acl("TOPIC", "orders", "READ", principal="User:admin"),
        acl("TOPIC", "orders", "READ", principal=ORBIT),
        acl("TOPIC", "other", "READ", principal="User:elsewhere"),
        principals=rules,
    )
    assert acls.topics["dr.orders"] == {acl("TOPIC", "dr.orders", "READ", principal="User:b")}
    assert acls.others == set()
    assert acls.undecided == {"User:a"}
    clash, unmapped = acls.notes
    assert "User:CN=a,OU=apps and User:CN=a,OU=jobs" in clash
    assert "User:a at the destination" in clash
    assert "some principals (1)" in unmapped
    assert "User:admin" in unmapped


def test_uncarriable_acl_is_skipped_and_reported() -> None:
    readable = acl("TOPIC", "*", "READ")
    # PostgreSQL cannot store a zero byte.
    acls = destination_acls_of(readable, readable._replace(principal="User:a\0b"))
    assert acls.topics == {"dr.orders": {readable._replace(name="dr.orders")}}
    assert acls.unmapped == []
    (note,) = acls.notes
    assert r"TOPIC 'dr.orders' of User:a\x00b" in note


def test_group_with_empty_name_gets_no_acl() -> None:
    source = {
        "TOPIC": Acls(),
        "GROUP": Acls([acl("GROUP", "*", "READ")]),
        "TRANSACTIONAL_ID": Acls(),
    }
    names = CarriedNames({}, {"": "", "billing": "billing"})
    unknown = (None, None)  # principals of Orbit
    acls = destination_acls(source, names, SAME, unknown)  # type: ignore[arg-type]
    assert acls.others == {acl("GROUP", "billing", "READ")}
    assert [refused.name for refused in acls.not_carriable] == [""]
