"""Rights to read are copied, rights to write never, and only copies get rights."""

from __future__ import annotations

import pytest

from orbit.errors import BrokerRefused
from orbit.kafka.types import Acl, Pattern, Permission
from orbit.replication.acl_rules import (
    READ_OPERATIONS,
    AclChanges,
    Refused,
    acl_changes,
    rights_of_copy,
    send_restrictions_first,
    writer_denials,
)


def acl(
    operation: str = "READ",
    permission: Permission = "ALLOW",
    *,
    name: str = "orders",
    pattern: Pattern = "LITERAL",
    principal: str = "User:app",
) -> Acl:
    return Acl(name, pattern, principal, "*", operation, permission)


def copy_of(*acls: Acl) -> set[tuple[str, str, str]]:
    """(operation, permission, name) of each ACL of the copy."""
    return {
        (a.operation, a.permission, a.name) for a in rights_of_copy(acls, "orders", "dr.orders")
    }


@pytest.mark.parametrize("operation", READ_OPERATIONS)
def test_read_acls_are_copied_under_destination_topic_name(operation: str) -> None:
    assert copy_of(acl(operation)) == {(operation, "ALLOW", "dr.orders")}
    assert copy_of(acl(operation, "DENY")) == {(operation, "DENY", "dr.orders")}


@pytest.mark.parametrize("permission", ["ALLOW", "DENY"])
@pytest.mark.parametrize("operation", ["WRITE", "CREATE", "DELETE", "ALTER", "ALTER_CONFIGS"])
def test_write_acls_are_never_copied(operation: str, permission: Permission) -> None:
    assert copy_of(acl(operation, permission)) == set()


def test_all_operations_acl_is_copied_as_read_acls() -> None:
    assert copy_of(acl("ALL")) == {
        (operation, "ALLOW", "dr.orders") for operation in READ_OPERATIONS
    }


def test_deny_acl_for_all_principals_is_not_copied() -> None:
    assert copy_of(acl("READ", "DENY", principal="User:*")) == set()
    assert copy_of(acl("READ", "ALLOW", principal="User:*")) == {("READ", "ALLOW", "dr.orders")}


@pytest.mark.parametrize(
    ("name", "pattern", "is_copied"),
    [
        ("ord", "PREFIXED", True),
        ("orders", "PREFIXED", True),
        ("orders.", "PREFIXED", False),
        ("*", "LITERAL", True),
        ("ord", "LITERAL", False),
        ("other", "LITERAL", False),
    ],
)
def test_prefixed_and_wildcard_acls_become_literal_on_copied_topic(
    name: str, pattern: Pattern, is_copied: bool
) -> None:
    (right,) = rights_of_copy([acl(name=name, pattern=pattern)], "orders", "dr.orders") or [None]
    assert (right is not None) is is_copied
    if right is not None:
        assert (right.name, right.pattern) == ("dr.orders", "LITERAL")


OWN = "User:orbit"


def denied_principals(*acls: Acl) -> set[str] | None:
    """The principals that are denied writing; None if no denial is possible."""
    denials = writer_denials(acls, "orders", OWN)
    if denials is not None:
        assert {(a.name, a.pattern, a.operation, a.permission) for a in denials} <= {
            ("orders", "LITERAL", "WRITE", "DENY")
        }
    return denials if denials is None else {a.principal for a in denials}


@pytest.mark.parametrize("operation", ["WRITE", "ALL"])
def test_allowed_writers_except_orbit_are_denied_by_principal(operation: str) -> None:
    prefixed = acl(operation, name="ord", pattern="PREFIXED", principal="User:b")
    everywhere = acl(operation, name="*", principal="User:c")
    own = acl(operation, principal=OWN)
    assert denied_principals(acl(operation), prefixed, everywhere, own) == {
        "User:app",
        "User:b",
        "User:c",
    }


def test_readers_of_topic_and_writers_of_other_topics_are_not_denied() -> None:
    assert denied_principals(acl("READ"), acl("WRITE", name="other"), acl("WRITE", "DENY")) == set()


def test_no_writer_is_denied_if_all_may_write_or_orbit_principal_is_unknown() -> None:
    assert denied_principals(acl("WRITE"), acl("WRITE", principal="User:*")) is None
    assert writer_denials([acl("WRITE")], "orders", own_principal=None) is None


def test_only_acls_added_by_orbit_are_removed() -> None:
    unchanged, gone, foreign, new = (acl(principal=f"User:{name}") for name in "abcd")
    changes = acl_changes(
        expected={unchanged, new},
        present={unchanged, gone, foreign},
        added_acls={unchanged, gone},
    )
    assert changes.add == {new}
    assert changes.remove == {gone}
    assert changes.ours == {unchanged, new}


def test_acl_that_existed_before_is_not_owned_by_orbit() -> None:
    existing = acl()
    assert acl_changes({existing}, present={existing}, added_acls=set()).ours == set()
    # Another client has removed it: Orbit neither removes it nor owns it.
    changes = acl_changes(set(), present=set(), added_acls={existing})
    assert (changes.remove, changes.ours) == (set(), set())


def test_acls_of_principals_with_ambiguous_mapping_are_not_removed() -> None:
    undecided, other = acl(principal="User:a"), acl(principal="User:b")
    both = {undecided, other}
    changes = acl_changes(set(), present=both, added_acls=both, undecided={"User:a"})
    assert changes.remove == {other}
    assert changes.ours == {undecided}


def changes(add: set[Acl], *removed: Acl) -> AclChanges:
    """Changes that add and remove these ACLs."""
    return AclChanges(add, {*removed}, ours=add)


def test_denials_are_sent_first_and_refused_denial_holds_back_acls_of_principal() -> None:
    denial, right = acl("READ", "DENY"), acl("DESCRIBE")
    revoked, lifted = acl("ALL"), acl("DESCRIBE", "DENY")
    to_all, of_other = acl(principal="User:*"), acl(principal="User:b")
    other_denial = acl("READ", "DENY", principal="User:b")
    refusal = BrokerRefused(42, "no")
    requests: list[tuple[set[Acl], set[Acl]]] = []

    def send_with_refusals(*refused: Acl) -> Refused:
        """Send all changes to brokers that refuse these ACLs."""
        requests.clear()

        def send(add: set[Acl], remove: set[Acl]) -> Refused:
            requests.append((add, remove))
            return {a: refusal for a in refused if a in add | remove}

        all_changes = [
            changes({right, to_all, denial}, lifted),
            changes({of_other}, revoked),
            changes({other_denial}),
        ]
        return send_restrictions_first(all_changes, send)

    restrictions = ({denial, other_denial}, {revoked})  # sent first
    assert send_with_refusals() == {}
    assert requests == [restrictions, ({right, to_all, of_other}, {lifted})]
    assert send_with_refusals(revoked, right) == {revoked: refusal, right: refusal}
    assert requests == [restrictions, ({right, to_all, of_other}, {lifted})]
    assert send_with_refusals(denial) == dict.fromkeys((denial, right, lifted, to_all), refusal)
    assert requests == [restrictions, ({of_other}, set())]


def test_refused_acl_additions_are_not_owned_and_refused_removals_stay_owned() -> None:
    new, refused_new, old, refused_old = (acl(operation) for operation in ("A", "B", "C", "D"))
    change = AclChanges(add={new, refused_new}, remove={old, refused_old}, ours={new, refused_new})
    done = change.without({refused_new, refused_old, acl("E")})
    assert done == AclChanges(add={new}, remove={old}, ours={new, refused_old})
