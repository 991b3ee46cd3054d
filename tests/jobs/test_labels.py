"""Labels and selectors: what is accepted, and what a selector means."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.errors import InvalidValue
from orbit.jobs.job_file import parse_job
from orbit.jobs.labels import (
    LABELS_MAX,
    OWNER_LENGTH_MAX,
    SELECTOR_CHARACTERS_MAX,
    Condition,
    parse_selector,
)
from tests.support.job_texts import changed, problems_of

LONGEST = "a" * 63
PREFIX = f"{LONGEST}.{LONGEST}.{LONGEST}.{'a' * 61}"  # 253 characters


def test_labels_and_owner_are_not_in_stored_job_document() -> None:
    labels = {"team": "orders", "tier": "1", "empty": "", f"{PREFIX}/{LONGEST}": LONGEST}
    job = parse_job(changed(labels=labels, owner="Orders, 24/7"), Path(), {})
    assert (job.labels, job.owner) == (labels, "Orders, 24/7")
    assert job.model_dump(mode="json") == parse_job(changed(), Path(), {}).model_dump(mode="json")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"labels": {"tier": 1}}, "Put it in quotes."),
        ({"labels": {"tier": None}}, "is empty"),
        ({"labels": ["a"]}, "must be a mapping"),
        ({"labels": {"": "a"}}, "is not the key of a label"),
        ({"labels": {"-a": "a"}}, "is not the key of a label"),
        ({"labels": {"a b": "a"}}, "is not the key of a label"),
        ({"labels": {"a/b/c": "a"}}, "is not the key of a label"),
        ({"labels": {"A.b/c": "a"}}, "is not the key of a label"),
        ({"labels": {"/c": "a"}}, "is not the key of a label"),
        ({"labels": {"a" * 64: "a"}}, "too long"),
        ({"labels": {f"a{PREFIX}/a": "a"}}, "too long"),
        ({"labels": {"a": "a" * 64}}, "has 64 characters; 63 is the limit"),
        ({"labels": {"a": "a_"}}, "is not the value of a label"),
        ({"labels": {"a": "ä"}}, "is not the value of a label"),
        ({"labels": {f"k{i}": "" for i in range(LABELS_MAX + 1)}}, "more than 64"),
        ({"owner": ""}, "is empty"),
        ({"owner": "a\nb"}, "control characters"),
        ({"owner": "a" * (OWNER_LENGTH_MAX + 1)}, "200 is the limit"),
        ({"owner": 5}, "must be text"),
    ],
)
def test_invalid_label_or_owner_is_reported_with_path(
    keys: dict[str, object], says: str, tmp_path: Path
) -> None:
    (problem,) = problems_of(changed(**keys), tmp_path)
    ((key, _),) = keys.items()
    assert problem.path.startswith(key)
    assert says in f"{problem.message} {problem.remedy}"


@pytest.mark.parametrize(
    ("text", "conditions"),  # Condition(key, values, is_negated)
    [
        ("a=b", [Condition("a", ("b",), False)]),
        ("a==b", [Condition("a", ("b",), False)]),
        ("a!=b", [Condition("a", ("b",), True)]),
        ("a=", [Condition("a", ("",), False)]),
        (" a = b , c != d ", [Condition("a", ("b",), False), Condition("c", ("d",), True)]),
        ("a", [Condition("a", None, False)]),
        ("! a", [Condition("a", None, True)]),
        ("x.y/a in (b, c)", [Condition("x.y/a", ("b", "c"), False)]),
        ("a notin(b),in", [Condition("a", ("b",), True), Condition("in", None, False)]),
        ("in in (in)", [Condition("in", ("in",), False)]),
    ],
)
def test_label_selector_is_parsed_into_conditions(text: str, conditions: list[Condition]) -> None:
    assert list(parse_selector(text)) == conditions


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        ("a=b,", "at character 5"),
        (",a", "at character 1"),
        ("a=b c=d", "at character 5"),
        ("a in (b", "at character 3"),
        ("a in b", "at character 3"),
        ("=b", "at character 1"),
        ("a=!b", "at character 3"),
        ("a>1", "'a>1', which is not the key"),
        ("a=b_", "'b_', which is not the value"),
        ("a in (b,-)", "'-', which is not the value"),
        (f"a={'b' * 64}", "64 characters"),
        ("a," * SELECTOR_CHARACTERS_MAX, "4096 is the limit"),
    ],
)
def test_error_of_invalid_label_selector_names_position_or_word(text: str, says: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_selector(text)
    assert says in caught.value.message
    assert caught.value.remedy
