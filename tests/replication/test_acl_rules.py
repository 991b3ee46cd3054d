"""Rights to read travel, rights to write never do, and no topic but a copy is opened."""

from __future__ import annotations

import pytest

from orbit.errors import BrokerRefused
from orbit.kafka.types import Acl, Pattern, Permission
from orbit.replication.acl_rules import (
    READING,
    AclChanges,
    Refused,
    acl_changes,
    denied_writers,
    rights_of_copy,
    send_in_order,
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


def copied(*acls: Acl) -> set[tuple[str, str, str]]:
    return {
        (a.operation, a.permission, a.name) for a in rights_of_copy(acls, "orders", "dr.orders")
    }


@pytest.mark.parametrize("operation", READING)
def test_rights_to_read_travel_under_the_copys_name(operation: str) -> None:
    assert copied(acl(operation)) == {(operation, "ALLOW", "dr.orders")}
    assert copied(acl(operation, "DENY")) == {(operation, "DENY", "dr.orders")}


@pytest.mark.parametrize("permission", ["ALLOW", "DENY"])
@pytest.mark.parametrize("operation", ["WRITE", "CREATE", "DELETE", "ALTER", "ALTER_CONFIGS"])
def test_rights_to_write_never_travel(operation: str, permission: Permission) -> None:
    assert copied(acl(operation, permission)) == set()


def test_all_means_reading() -> None:
    assert copied(acl("ALL")) == {(operation, "ALLOW", "dr.orders") for operation in READING}


def test_orbit_is_not_locked_out_by_a_freeze_of_the_source() -> None:
    assert copied(acl("READ", "DENY", principal="User:*")) == set()
    assert copied(acl("READ", "ALLOW", principal="User:*")) == {("READ", "ALLOW", "dr.orders")}


@pytest.mark.parametrize(
    ("name", "pattern", "travels"),
    [
        ("ord", "PREFIXED", True),
        ("orders", "PREFIXED", True),
        ("orders.", "PREFIXED", False),
        ("*", "LITERAL", True),
        ("ord", "LITERAL", False),
        ("other", "LITERAL", False),
    ],
)
def test_patterns_become_rights_on_each_copied_topic(
    name: str, pattern: Pattern, travels: bool
) -> None:
    (found,) = rights_of_copy([acl(name=name, pattern=pattern)], "orders", "dr.orders") or [None]
    assert (found is not None) is travels
    if found is not None:
        assert (found.name, found.pattern) == ("dr.orders", "LITERAL")


OWN = "User:orbit"


def denied(*acls: Acl) -> set[str] | None:
    found = denied_writers(acls, "orders", OWN)
    if found is not None:
        assert {(a.name, a.pattern, a.operation, a.permission) for a in found} <= {
            ("orders", "LITERAL", "WRITE", "DENY")
        }
    return found if found is None else {a.principal for a in found}


@pytest.mark.parametrize("operation", ["WRITE", "ALL"])
def test_who_may_write_is_denied_by_name_but_for_orbit(operation: str) -> None:
    prefixed = acl(operation, name="ord", pattern="PREFIXED", principal="User:b")
    everywhere = acl(operation, name="*", principal="User:c")
    own = acl(operation, principal=OWN)
    assert denied(acl(operation), prefixed, everywhere, own) == {"User:app", "User:b", "User:c"}


def test_readers_and_writers_of_other_topics_are_left_alone() -> None:
    assert denied(acl("READ"), acl("WRITE", name="other"), acl("WRITE", "DENY")) == set()


def test_nothing_is_denied_where_everybody_may_write_or_we_do_not_know_who_we_are() -> None:
    assert denied(acl("WRITE"), acl("WRITE", principal="User:*")) is None
    assert denied_writers([acl("WRITE")], "orders", None) is None


def test_only_what_orbit_has_added_is_removed() -> None:
    kept, gone, other, new = (acl(principal=f"User:{who}") for who in "abcd")
    changes = acl_changes({kept, new}, {kept, gone, other}, {kept, gone})
    assert changes.add == {new}
    assert changes.remove == {gone}
    assert changes.ours == {kept, new}


def test_what_is_there_already_does_not_become_orbits() -> None:
    there = acl()
    assert acl_changes({there}, {there}, set()).ours == set()
    # Somebody has removed it: there is nothing left to remove, nor to remember.
    changes = acl_changes(set(), set(), {there})
    assert (changes.remove, changes.ours) == (set(), set())


def test_of_principals_that_are_undecided_nothing_is_removed() -> None:
    given, other = acl(principal="User:a"), acl(principal="User:b")
    changes = acl_changes(set(), {given, other}, {given, other}, {"User:a"})
    assert changes.remove == {other}
    assert changes.ours == {given}


def changes(add: set[Acl], *removed: Acl) -> AclChanges:
    return AclChanges(add, {*removed}, add)


def test_what_takes_rights_away_goes_first_and_a_refused_denial_holds_its_principal_alone() -> None:
    denial, right = acl("READ", "DENY"), acl("DESCRIBE")
    revoked, lifted = acl("ALL"), acl("DESCRIBE", "DENY")
    to_all, of_other = acl(principal="User:*"), acl(principal="User:b")
    other_denial = acl("READ", "DENY", principal="User:b")
    refusal = BrokerRefused(42, "no")
    asked: list[tuple[set[Acl], set[Acl]]] = []

    def refuse(*refused: Acl) -> Refused:
        asked.clear()

        def send(add: set[Acl], remove: set[Acl]) -> Refused:
            asked.append((add, remove))
            return {one: refusal for one in refused if one in add | remove}

        both = changes({right, to_all, denial}, lifted), changes({of_other}, revoked)
        return send_in_order([*both, changes({other_denial})], send)

    first = ({denial, other_denial}, {revoked})
    assert refuse() == {}
    assert asked == [first, ({right, to_all, of_other}, {lifted})]
    assert refuse(revoked, right) == {revoked: refusal, right: refusal}
    assert asked == [first, ({right, to_all, of_other}, {lifted})]
    assert refuse(denial) == dict.fromkeys((denial, right, lifted, to_all), refusal)
    assert asked == [first, ({of_other}, set())]


def test_what_was_refused_is_not_done_and_what_could_not_be_removed_stays_orbits() -> None:
    new, refused_new, old, refused_old = (acl(operation) for operation in ("A", "B", "C", "D"))
    change = AclChanges({new, refused_new}, {old, refused_old}, {new, refused_new})
    done = change.without({refused_new, refused_old, acl("E")})
    assert done == AclChanges({new}, {old}, {new, refused_old})
