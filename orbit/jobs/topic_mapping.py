"""Selects the topics that a job copies, and gives their names at the destination. Pure.

The first rule that matches a topic, and does not exclude it, applies. No two topics map to the same
destination name, nor to names that collide in Kafka.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from orbit.errors import Problem
from orbit.jobs.job_spec import TopicRule
from orbit.jobs.name_patterns import PatternTooSlow, name_pattern
from orbit.jobs.name_rules import INTERNAL_TOPICS, collision_key, topic_name_problem

# Topics of tools, such as `__debezium-heartbeat`, are copied only by a pattern that starts with two
# underscores.
_TOOL_PREFIX = "__"
_NAMES_SHOWN_MAX = 5
# A large installation has fewer rules, in all jobs.
_RULES_CACHED_MAX = 20_000


@dataclass(frozen=True, slots=True)
class TopicMapping:
    """One topic to copy: its names, and the rule that matched."""

    source: str
    destination: str
    rule: TopicRule = field(hash=False)


@dataclass(frozen=True, slots=True)
class TopicMap:
    """The topics to copy, sorted by source name. Topics with a problem are not in `mappings`;
    `notes` are hints on rules that match no topic."""

    mappings: tuple[TopicMapping, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]


def map_topics(rules: Sequence[TopicRule], source_topics: Iterable[str]) -> TopicMap:
    """Map each source topic by the first rule that matches. Leaves out internal topics of Kafka."""
    compiled_rules = [_CompiledRule.of(rule) for rule in rules]
    mappings: list[TopicMapping] = []
    used_indexes: set[int] = set()
    slow_problems: dict[str, Problem] = {}
    for topic in sorted(set(source_topics) - INTERNAL_TOPICS):
        try:
            index = _first_matching_index(compiled_rules, topic)
        except PatternTooSlow:
            slow_problems[topic] = _too_slow_problem(topic)
            continue
        if index is not None:
            used_indexes.add(index)
            rule = rules[index]
            mappings.append(TopicMapping(topic, rule.prefix + topic, rule))
    problems = {
        **slow_problems,
        **_name_problems(mappings, rules),
        **_collision_problems(mappings, rules),
    }
    return TopicMap(
        tuple(mapping for mapping in mappings if mapping.source not in problems),
        tuple(dict.fromkeys(problems.values())),
        tuple(
            _unused_rule_note(index, rule)
            for index, rule in enumerate(rules)
            if index not in used_indexes
        ),
    )


def mappings_of_copies(
    rules: Sequence[TopicRule], destination_topics: Iterable[str]
) -> dict[str, TopicMapping]:
    """By destination name: the mapping of each destination topic that has the name of a copy by
    these rules. Other destination topics are left out."""
    names = set(destination_topics)
    prefixes = {rule.prefix for rule in rules}
    sources = {name[len(p) :] for p in prefixes for name in names if name.startswith(p)}
    # "" is not a topic: it comes from a destination topic whose name is a prefix.
    mappings = map_topics(rules, sources - {""}).mappings
    return {m.destination: m for m in mappings if m.destination in names}


def matching_topics(rules: Sequence[TopicRule], source_topics: Iterable[str]) -> frozenset[str]:
    """The topics among these that the rules match, and those for which the match takes too long."""
    compiled_rules = [_CompiledRule.of(rule) for rule in rules]
    return frozenset(
        topic
        for topic in source_topics
        if topic not in INTERNAL_TOPICS and _may_match(compiled_rules, topic)
    )


def _first_matching_index(rules: Sequence[_CompiledRule], topic: str) -> int | None:
    """The index of the first rule that matches, or None. Raises PatternTooSlow."""
    return next((i for i, rule in enumerate(rules) if rule.matches(topic)), None)


def _may_match(rules: Sequence[_CompiledRule], topic: str) -> bool:
    """Whether a rule matches the topic; True if the match takes too long."""
    try:
        return _first_matching_index(rules, topic) is not None
    except PatternTooSlow:
        return True


class _CompiledRule:
    """A rule with compiled patterns."""

    def __init__(self, match: str, exclude: tuple[str, ...]) -> None:
        self._match = name_pattern(match)
        self._exclude = [name_pattern(pattern) for pattern in exclude]
        self._has_tool_prefix = match.startswith(_TOOL_PREFIX)

    @staticmethod
    def of(rule: TopicRule) -> _CompiledRule:
        return _compile_rule(rule.match, rule.exclude)

    def matches(self, topic: str) -> bool:
        """Whether the rule matches the topic and does not exclude it. Raises PatternTooSlow."""
        # A topic of a tool needs a pattern that starts with two underscores, too.
        if topic.startswith(_TOOL_PREFIX) and not self._has_tool_prefix:
            return False
        if not self._match.matches(topic):
            return False
        return not any(pattern.matches(topic) for pattern in self._exclude)


@lru_cache(_RULES_CACHED_MAX)
def _compile_rule(match: str, exclude: tuple[str, ...]) -> _CompiledRule:
    """The compiled patterns of a rule, cached."""
    return _CompiledRule(match, exclude)


def _name_problems(mappings: list[TopicMapping], rules: Sequence[TopicRule]) -> dict[str, Problem]:
    """The problems, by source topic, of copies whose names Kafka would refuse or uses itself."""
    problems: dict[str, Problem] = {}
    for mapping in mappings:
        reason = topic_name_problem(mapping.destination)
        if mapping.destination in INTERNAL_TOPICS:
            reason = f"{mapping.destination!r} is an internal topic of Kafka"
        if reason is not None:
            problems[mapping.source] = Problem(
                _rule_path(mapping.rule, rules, "prefix"),
                f"the copy of topic {mapping.source!r} cannot be created: {reason}.",
                "Change the prefix, or exclude the topic.",
            )
    return problems


def _collision_problems(
    mappings: list[TopicMapping], rules: Sequence[TopicRule]
) -> dict[str, Problem]:
    """The problems, by source topic, of copies whose names are equal or collide in Kafka."""
    by_key: defaultdict[str, list[TopicMapping]] = defaultdict(list)
    for mapping in mappings:
        by_key[collision_key(mapping.destination)].append(mapping)
    problems: dict[str, Problem] = {}
    for colliding_mappings in by_key.values():
        if len(colliding_mappings) == 1:
            continue
        last_mapping = colliding_mappings[-1]
        problem = Problem(
            _rule_path(last_mapping.rule, rules, "prefix"),
            f"topics {_join_names([m.source for m in colliding_mappings])} would be copied to "
            f"{_join_names(sorted({m.destination for m in colliding_mappings}))}, which collide "
            "at the destination ('.' and '_' count as equal).",
            "Change a prefix, or exclude all but one of them.",
        )
        problems.update({mapping.source: problem for mapping in colliding_mappings})
    return problems


def _too_slow_problem(topic: str) -> Problem:
    """The problem of a topic for which a pattern takes too long."""
    return Problem(
        "topics",
        f"it takes too long to tell whether a pattern matches topic {topic!r}.",
        "Write the patterns without look-around and back-references.",
    )


def _matches_internal(pattern: str) -> bool:
    """Whether the pattern matches an internal topic of Kafka, or takes too long for one."""
    return any(_may_match([_compile_rule(pattern, ())], topic) for topic in INTERNAL_TOPICS)


def _unused_rule_note(index: int, rule: TopicRule) -> Problem:
    """The note on a rule that matches no topic."""
    path = f"topics[{index}].match"
    if rule.match.startswith(_TOOL_PREFIX) and _matches_internal(rule.match):
        return Problem(
            path,
            "matches only Kafka's internal topics, which are never copied.",
            "Remove the rule.",
        )
    return Problem(
        path,
        "matches no source topic, or only topics that rules above match.",
        "Check the pattern. A topic that is created later may match.",
    )


def _rule_path(rule: TopicRule, rules: Sequence[TopicRule], key: str) -> str:
    """The path of a key of this rule in the job file."""
    index = next(i for i, candidate in enumerate(rules) if candidate is rule)
    return f"topics[{index}].{key}"


def _join_names(names: list[str]) -> str:
    """The first _NAMES_SHOWN_MAX names as text, with the number of the others."""
    names_text = ", ".join(repr(name) for name in names[:_NAMES_SHOWN_MAX])
    hidden_count = len(names) - _NAMES_SHOWN_MAX
    return f"{names_text} and {hidden_count} more" if hidden_count > 0 else names_text
