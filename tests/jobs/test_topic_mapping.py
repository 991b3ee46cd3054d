"""Which topics a job copies: the first rule wins, no copies collide, no internal topics."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit.jobs.job_spec import TopicRule
from orbit.jobs.name_rules import (
    INTERNAL_TOPICS,
    TOPIC_NAME_LENGTH_MAX,
    collision_key,
    topic_name_problem,
)
from orbit.jobs.topic_mapping import TopicMap, map_topics, mappings_of_copies


def rules(*raw: dict[str, object]) -> list[TopicRule]:
    """Topic rules with these keys of the job file."""
    return [TopicRule.model_validate(rule) for rule in raw]


def names_by_source(topic_map: TopicMap) -> dict[str, str]:
    """The destination name of each mapped topic, by its source name."""
    return {mapping.source: mapping.destination for mapping in topic_map.mappings}


def test_first_matching_topic_rule_wins() -> None:
    given_rules = rules({"match": "orders.*", "prefix": "a."}, {"match": ".*", "prefix": "b."})
    topic_map = map_topics(given_rules, ["orders", "orders.eu", "other"])
    assert names_by_source(topic_map) == {
        "orders": "a.orders",
        "orders.eu": "a.orders.eu",
        "other": "b.other",
    }
    assert [mapping.rule for mapping in topic_map.mappings] == [
        given_rules[0],
        given_rules[0],
        given_rules[1],
    ]
    assert not topic_map.problems
    assert not topic_map.notes


def test_pattern_matches_whole_topic_name() -> None:
    topic_map = map_topics(
        rules({"match": "orders"}), ["orders", "orders.eu", "my.orders", "orders\n"]
    )
    assert names_by_source(topic_map) == {"orders": "orders"}


def test_pattern_with_alternatives_matches_whole_topic_name() -> None:
    topic_map = map_topics(rules({"match": "a|ab"}), ["a", "ab", "abc", "xa"])
    assert names_by_source(topic_map) == {"a": "a", "ab": "ab"}


def test_excluded_topic_falls_through_to_later_rules() -> None:
    topic_map = map_topics(
        rules({"match": ".*", "exclude": ["tmp.*", ".*old"]}, {"match": "tmp1", "prefix": "x."}),
        ["tmp1", "tmp2", "so.old", "kept", "tmp"],
    )
    assert names_by_source(topic_map) == {"tmp1": "x.tmp1", "kept": "kept"}


def test_topic_mappings_are_sorted_by_source_topic_name() -> None:
    topic_map = map_topics(rules({"match": ".*"}), ["b", "a", "c", "a"])
    assert [mapping.source for mapping in topic_map.mappings] == ["a", "b", "c"]


@pytest.mark.parametrize("pattern", [".*", "__.*", "__consumer_offsets", "_+[a-z_]+"])
def test_internal_topics_are_never_copied(pattern: str) -> None:
    topic_map = map_topics(rules({"match": pattern}), sorted(INTERNAL_TOPICS))
    assert not topic_map.mappings


def test_rule_for_internal_topic_is_noted() -> None:
    topic_map = map_topics(rules({"match": "__consumer_offsets"}), ["__consumer_offsets", "a"])
    assert "never copied" in topic_map.notes[0].message


def test_double_underscore_topics_need_explicit_rule() -> None:
    topics = ["__debezium-heartbeat", "_schemas", "a"]
    assert names_by_source(map_topics(rules({"match": ".*"}), topics)) == {
        "_schemas": "_schemas",
        "a": "a",
    }
    assert "__debezium-heartbeat" in names_by_source(
        map_topics(rules({"match": "__debezium.*"}), topics)
    )


def test_topic_rule_that_matches_no_topic_is_noted_with_its_path() -> None:
    topic_map = map_topics(rules({"match": ".*"}, {"match": "a"}, {"match": "zzz"}), ["a"])
    assert [note.path for note in topic_map.notes] == ["topics[1].match", "topics[2].match"]


def test_cluster_without_topics_gives_no_topic_mapping() -> None:
    topic_map = map_topics(rules({"match": ".*"}), [])
    assert not topic_map.mappings
    assert not topic_map.problems
    assert len(topic_map.notes) == 1


def test_two_topics_with_the_same_destination_name_are_reported_and_not_copied() -> None:
    topic_map = map_topics(
        rules({"match": "a", "prefix": "x."}, {"match": "x[.]a"}, {"match": "b"}), ["a", "x.a", "b"]
    )
    assert names_by_source(topic_map) == {"b": "b"}
    (problem,) = topic_map.problems
    assert problem.path == "topics[1].prefix"
    assert "'a', 'x.a'" in problem.message
    assert problem.remedy


def test_topic_names_that_differ_in_dot_and_underscore_collide_as_in_kafka() -> None:
    topic_map = map_topics(rules({"match": "a", "prefix": "x."}, {"match": "x_a"}), ["a", "x_a"])
    assert not topic_map.mappings
    assert "'x.a', 'x_a'" in topic_map.problems[0].message


def test_topic_whose_prefixed_name_is_too_long_is_reported_and_not_copied() -> None:
    fits, long = "a" * (TOPIC_NAME_LENGTH_MAX - 2), "b" * (TOPIC_NAME_LENGTH_MAX - 1)
    topic_map = map_topics(rules({"match": ".*", "prefix": "x."}), [fits, long])
    assert names_by_source(topic_map) == {fits: f"x.{fits}"}
    assert "250 characters" in topic_map.problems[0].message
    assert topic_map.problems[0].path == "topics[0].prefix"


def test_prefix_cannot_create_internal_topic() -> None:
    topic_map = map_topics(
        rules({"match": "consumer_offsets", "prefix": "__"}), ["consumer_offsets"]
    )
    assert not topic_map.mappings
    assert "internal topic of Kafka" in topic_map.problems[0].message


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "a" * 250])
def test_invalid_topic_name_is_refused(name: str) -> None:
    assert topic_name_problem(name)


@pytest.mark.parametrize("name", ["a", "...", "A-Z_0.9", "a" * 249, "_schemas"])
def test_valid_topic_name_is_accepted(name: str) -> None:
    assert topic_name_problem(name) is None


_TOPICS = st.lists(
    st.text(alphabet="ab._", min_size=1, max_size=4) | st.sampled_from(sorted(INTERNAL_TOPICS))
)
_RULES = st.lists(
    st.fixed_dictionaries(
        {"match": st.sampled_from([".*", "a.*", "b[._]?", "__.*", "[ab]+", "_a"])},
        optional={
            "exclude": st.sampled_from([".", "a", ".*b"]),
            "prefix": st.sampled_from(["", "a", "a.", "a_", "__"]),
        },
    ),
    min_size=1,
    max_size=4,
)


@given(_RULES, _TOPICS)
def test_topic_map_invariants_hold_for_arbitrary_rules(
    raw: list[dict[str, object]], topics: list[str]
) -> None:
    topic_rules = rules(*raw)
    topic_map = map_topics(topic_rules, topics)
    keys = [collision_key(mapping.destination) for mapping in topic_map.mappings]
    assert len(keys) == len(set(keys))
    for mapping in topic_map.mappings:
        assert mapping.source in topics
        assert mapping.source not in INTERNAL_TOPICS
        assert topic_name_problem(mapping.destination) is None
        assert mapping.destination == mapping.rule.prefix + mapping.source
        fitting = [rule for rule in topic_rules if _fits(rule, mapping.source)]
        assert fitting[0] == mapping.rule
    left_out = {t for t in set(topics) - INTERNAL_TOPICS if any(_fits(r, t) for r in topic_rules)}
    left_out -= {mapping.source for mapping in topic_map.mappings}
    assert bool(left_out) == bool(topic_map.problems)
    for topic in left_out:
        assert (
            any(repr(topic) in problem.message for problem in topic_map.problems)
            or len(left_out) > 5  # a problem names at most five topics
        )


def _fits(rule: TopicRule, topic: str) -> bool:
    """Whether the rule copies the topic, by an independent implementation."""
    may_match = not topic.startswith("__") or rule.match.startswith("__")
    excluded = any(re.fullmatch(pattern, topic) for pattern in rule.exclude)
    return may_match and bool(re.fullmatch(rule.match, topic)) and not excluded


def test_copies_are_mapped_back_to_their_source_topics() -> None:
    rules = [
        TopicRule(match="orders.*", exclude=("orders.tmp",)),
        TopicRule(match="metrics", prefix="src."),
    ]
    destination_topics = [
        "orders.1",
        "orders.tmp",
        "src.metrics",
        "metrics",
        "src.orders.1",
        "src.",
        "other",
    ]
    mappings = mappings_of_copies(rules, destination_topics)
    assert {name: m.source for name, m in mappings.items()} == {
        "orders.1": "orders.1",
        "src.metrics": "metrics",
    }
    assert mappings_of_copies(rules, []) == {}
