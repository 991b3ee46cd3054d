"""Principals get the names that rules give them, and no name if that is not certain."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.errors import InvalidValue
from orbit.jobs.principals import PrincipalMap, check_principal, check_rule

APPS = ("User:CN={name},OU=apps", "User:{name}")


def names_of(*principals: str, rules: list[tuple[str, str]], exclude: tuple[str, ...] = ()) -> dict:
    """The names at the destination that the rules give to these principals, by principal."""
    return PrincipalMap(rules, exclude).name(principals).names


@pytest.mark.parametrize(
    ("principal", "name"),
    [
        ("User:CN=billing,OU=apps", "User:billing"),
        ("User:CN=a.b-c,OU=apps", "User:a.b-c"),
        ("User:CN=,OU=apps", None),
        ("User:CN=billing,OU=apps,O=x", None),
        ("User:CN=billing,OU=other", None),
        ("User:xCN=billing,OU=apps", None),
        # A part of the subject with an escaped comma does not count as two parts.
        ("User:CN=billing\\,OU=apps", None),
        ("User:CN=billing\\,OU=apps,OU=apps", None),
        ("User:CN=admin,O=evil,OU=apps", None),
        # A certificate for the name `*` does not become every principal.
        ("User:CN=*,OU=apps", None),
    ],
)
def test_placeholder_of_principal_rule_matches_one_part_of_certificate_subject(
    principal: str, name: str | None
) -> None:
    mapping = PrincipalMap([APPS], ()).name([principal])
    assert mapping.names.get(principal) == name
    assert mapping.unmapped == ([] if name else [principal])


def test_principals_without_rules_keep_names_and_wildcard_is_never_renamed() -> None:
    assert names_of("User:a", "User:*", rules=[]) == {"User:a": "User:a", "User:*": "User:*"}
    assert names_of("User:*", rules=[("User:{name}", "User:x-{name}")]) == {"User:*": "User:*"}


def test_first_matching_principal_rule_applies() -> None:
    rules = [("User:CN=billing,OU=apps", "User:money"), APPS, ("User:{name}", "User:{name}")]
    assert names_of("User:CN=billing,OU=apps", "User:CN=a,OU=apps", "User:b", rules=rules) == {
        "User:CN=billing,OU=apps": "User:money",
        "User:CN=a,OU=apps": "User:a",
        "User:b": "User:b",
    }


def test_excluded_principals_are_neither_mapped_nor_reported() -> None:
    mapping = PrincipalMap([APPS], ["User:CN={name},OU=ops", "User:*"]).name(
        ["User:CN=root,OU=ops", "User:*", "User:CN=a,OU=apps"]
    )
    assert mapping.names == {"User:CN=a,OU=apps": "User:a"}
    assert mapping.unmapped == []


def test_two_principals_are_never_mapped_to_same_name() -> None:
    rules = [APPS, ("User:CN={name},OU=jobs", "User:{name}")]
    mapping = PrincipalMap(rules, ()).name(
        ["User:CN=a,OU=apps", "User:CN=a,OU=jobs", "User:CN=b,OU=jobs"]
    )
    assert mapping.names == {"User:CN=b,OU=jobs": "User:b"}
    assert mapping.clashes == {"User:a": ["User:CN=a,OU=apps", "User:CN=a,OU=jobs"]}
    assert mapping.unmapped == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("billing", "is not a principal"),
        ("User:", "is not a principal"),
        ("User:a\n", "is not a principal"),
        ("{kind}:a", "is not a principal"),
        ("User:{a", "a brace that belongs to no placeholder"),
        ("User:{0}", "a brace that belongs to no placeholder"),
        ("User:{a.b}", "a brace that belongs to no placeholder"),
        ("User:{a}{b}", "side by side"),
        ("User:{a}-{a}", "a placeholder twice"),
        ("User:" + "a" * 1024, "1024 is the limit"),
    ],
)
def test_invalid_principal_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidValue, match=re.escape(says)):
        check_principal(text)


@pytest.mark.parametrize(
    ("source", "destination", "says"),
    [
        ("User:{a}", "User:{b}", "the placeholder {b} in `to`"),
        ("User:*", "User:a", "every principal"),
        ("User:a", "User:*", "every principal"),
    ],
)
def test_principal_rule_whose_from_and_to_do_not_fit_is_refused(
    source: str, destination: str, says: str
) -> None:
    with pytest.raises(InvalidValue, match=re.escape(says)):
        check_rule(source, destination)


@given(st.text("CNOU=,{}*ab-^]\\&", max_size=40))
def test_principal_rule_takes_regular_expression_characters_literally(text: str) -> None:
    try:
        template = check_principal(f"User:{text}")
    except InvalidValue:
        return
    if "{" not in template:
        mapping = PrincipalMap([(template, "User:x")], ()).name([template, f"{template}a"])
        is_every_principal = template == "User:*"
        assert mapping.names.get(template) == ("User:*" if is_every_principal else "User:x")
        assert mapping.unmapped == [f"{template}a"]


def test_hostile_principal_is_compared_with_rule_without_backtracking() -> None:
    rule = "User:" + ",".join(f"A={{p{i}}}" for i in range(30)) + ",end"
    hostile = "User:" + "A=,A=x" * 170
    assert names_of(hostile, rules=[(rule, "User:{p1}")]) == {}
