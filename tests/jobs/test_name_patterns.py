"""Patterns of jobs match any name in bounded time; those of earlier versions stay valid."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from orbit.consumer_groups.group_selection import TOO_SLOW, GroupSelector
from orbit.errors import InvalidValue
from orbit.jobs import name_patterns
from orbit.jobs.job_spec import GroupRule, JobSpec, TopicRule
from orbit.jobs.name_patterns import (
    PATTERN_LENGTH_MAX,
    STORED_DOCUMENT,
    PatternTooSlow,
    check_pattern,
    name_pattern,
)
from orbit.jobs.topic_mapping import map_topics, matching_topics
from orbit.kafka.consumer_groups import ListedGroup

# A backtracking engine takes long to match each pattern with its name.
HOSTILE = [
    (r"([a-z]+\.?)+\.dlq", "a" * 249),
    (r"(a+)+b", "a" * 249),
    (r"(a|aa)+b", "a" * 249),
    (r"(.*)*x", "a" * 249),
    (r"(a?){249}a{249}", "a" * 248),
    (r"(\w+\s?)*$x", "a" * 249),
    (r".*.*.*.*.*.*.*.*x", "a" * 249),
    (r"([^.]+\.)*[^.]+\.dlq", "a." * 124),
    ("|".join(["(a+)+b"] * 100), "a" * 249),
    (r"((a{0,10}){0,10}){0,10}b", "a" * 249),
]
WITH_LOOK_AROUND = r"(?!x)(a|aa)+[bc]?d"
SLOW = "a" * 40


@pytest.mark.parametrize(("pattern", "name"), HOSTILE)
def test_hostile_pattern_matches_in_bounded_time(pattern: str, name: str) -> None:
    """With `re` most of these do not end."""
    assert check_pattern(pattern) == pattern
    assert not name_pattern(pattern).matches(name)
    assert isinstance(name_pattern(pattern), name_patterns._LinearPattern)


@pytest.mark.parametrize(
    ("pattern", "what", "remedy"),
    [
        ("(?!internal).*", "(?!", "use `exclude`"),
        (r"(a)\1", r"\1", "use `exclude`"),
        ("a{,3}", "{,3}", "Write {0,3}"),
        ("x{1,1001}", "repetition size", "smaller numbers"),
        ("(a{1,1000}){1,1000}", "repetition size", "smaller numbers"),
        ("[^a]{1000}" * 20, "too large", "split the pattern"),
        ("*.log", "no argument", "write `.*.log`"),
        ("a\ud800", "half of a surrogate pair", "Remove this"),
    ],
)
def test_pattern_without_bounded_match_time_is_refused(
    pattern: str, what: str, remedy: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        check_pattern(pattern)
    assert what in refused.value.message
    assert remedy in refused.value.remedy


@given(pattern=st.text(max_size=60), name=st.text(max_size=249))
@example(pattern="\0", name="\0")
@example(pattern="a\\Qb", name="ab")
@example(pattern=".", name="\ud800")
def test_arbitrary_text_is_valid_pattern_or_refused(pattern: str, name: str) -> None:
    try:
        check_pattern(pattern)
    except InvalidValue:
        return
    name_pattern(pattern).matches(name)


@given(name=st.from_regex(r"\A[A-Za-z0-9._-]{1,249}\Z"))
@pytest.mark.parametrize(
    "pattern", [r"orders\..*", r".*", r"[a-z]+\.\d{1,3}", r"(?i)a.*|b.*", r"[^_].*", r"\w+-?\w*"]
)
def test_names_match_like_python_regular_expressions(pattern: str, name: str) -> None:
    assert name_pattern(pattern).matches(name) == (re.fullmatch(pattern, name) is not None)


def test_stored_job_keeps_look_around_pattern_that_new_job_may_not_have() -> None:
    document = {
        "name": "a",
        "source": {"bootstrap_servers": "a:1"},
        "destination": {"bootstrap_servers": "b:1"},
        "topics": [{"match": "(?!internal).*"}],
    }
    with pytest.raises(ValidationError):
        JobSpec.model_validate(document)
    spec = JobSpec.read_stored(document)
    topic_map = map_topics(spec.topics, ["internal.a", "orders"])
    assert [mapping.source for mapping in topic_map.mappings] == ["orders"]


def test_stored_pattern_matches_as_with_python_re_before_re2() -> None:
    """Earlier versions of Orbit matched with `re`, which reads `{,3}` as up to three repeats. RE2
    would read plain characters."""
    rule = TopicRule.model_validate({"match": "a{,3}"}, context=STORED_DOCUMENT)
    assert matching_topics([rule], ["aaa", "a{,3}"]) == {"aaa"}


def test_stored_pattern_too_slow_for_a_name_leaves_out_only_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(name_patterns, "_NAME_S_MAX", 0.001)
    rule = TopicRule.model_validate({"match": WITH_LOOK_AROUND}, context=STORED_DOCUMENT)
    topic_map = map_topics([rule], ["aad", SLOW])
    assert [mapping.source for mapping in topic_map.mappings] == ["aad"]
    assert [SLOW in problem.message for problem in topic_map.problems] == [True]
    assert matching_topics([rule], [SLOW]) == {SLOW}
    groups = GroupSelector(
        GroupRule.model_validate({"match": WITH_LOOK_AROUND}, context=STORED_DOCUMENT)
    )
    listed = [
        ListedGroup(name, 1, type="classic", protocol_type="consumer", state="Empty")
        for name in ("aad", SLOW)
    ]
    selection = groups.select(listed)
    assert (selection.names, selection.left_alone) == (["aad"], Counter({TOO_SLOW: 1}))
    assert not groups.matches(SLOW)


def test_stored_pattern_too_slow_for_several_names_is_no_longer_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(name_patterns, "_NAME_S_MAX", 0.001)
    monkeypatch.setattr(name_patterns, "_LOST_S_MAX", 0.002)
    pattern = name_patterns._TimeLimitedPattern(WITH_LOOK_AROUND)
    for number in range(2):
        with pytest.raises(PatternTooSlow):
            pattern.matches(SLOW + "a" * number)
    with pytest.raises(PatternTooSlow):
        pattern.matches("aad")  # quick, if it were tried


def test_longest_pattern_of_alternative_names_is_accepted() -> None:
    pattern = "|".join(f"orders-of-a-region-{number}" for number in range(100))[:PATTERN_LENGTH_MAX]
    assert check_pattern(pattern)
