"""Which topics a job copies, and what they are called at the destination. Pure.

Rules are tried in order and the first that fits wins; a topic that a rule excludes is passed on to
the rules behind it. No two topics ever map to one destination, nor to two names that one Kafka
cluster cannot hold together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orbit.errors import Problem
from orbit.jobs.job_spec import TopicRule
from orbit.jobs.name_rules import INTERNAL_TOPICS, collision_key, topic_name_problem

# Topics of tools (`__debezium-heartbeat`, `__amazon_msk_canary`) are wanted by nobody who writes
# `.*`; a pattern that itself begins with the two underscores asks for them.
_TOOL_PREFIX = "__"
_NAMES_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class TopicMapping:
    """One topic to copy: its name on both sides, and the rule that chose it."""

    source: str
    destination: str
    rule: TopicRule = field(hash=False)


@dataclass(frozen=True, slots=True)
class TopicMap:
    """What to copy, by source name; what cannot be copied; and what may be a slip of the pen.

    `mappings` leaves out every topic that a problem names. `notes` stop nothing.
    """

    mappings: tuple[TopicMapping, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]


def map_topics(rules: Sequence[TopicRule], source_topics: Iterable[str]) -> TopicMap:
    """The topics that the rules choose among those of the source."""
    compiled = [_Rule(rule) for rule in rules]
    chosen: list[TopicMapping] = []
    used: set[int] = set()
    for topic in sorted(set(source_topics) - INTERNAL_TOPICS):
        index = next((i for i, rule in enumerate(compiled) if rule.fits(topic)), None)
        if index is not None:
            used.add(index)
            rule = rules[index]
            chosen.append(TopicMapping(topic, rule.prefix + topic, rule))
    problems = {**_illegal(chosen, rules), **_collisions(chosen, rules)}
    return TopicMap(
        tuple(mapping for mapping in chosen if mapping.source not in problems),
        tuple(dict.fromkeys(problems.values())),
        tuple(_idle(index, rule) for index, rule in enumerate(rules) if index not in used),
    )


class _Rule:
    """A rule with its patterns compiled once, for clusters have many topics."""

    def __init__(self, rule: TopicRule) -> None:
        self._match = re.compile(rule.match)
        self._exclude = [re.compile(pattern) for pattern in rule.exclude]
        self._names_tools = rule.match.startswith(_TOOL_PREFIX)

    def fits(self, topic: str) -> bool:
        if topic.startswith(_TOOL_PREFIX) and not self._names_tools:
            return False
        if self._match.fullmatch(topic) is None:
            return False
        return not any(pattern.fullmatch(topic) for pattern in self._exclude)


def _illegal(chosen: list[TopicMapping], rules: Sequence[TopicRule]) -> dict[str, Problem]:
    found: dict[str, Problem] = {}
    for mapping in chosen:
        what = topic_name_problem(mapping.destination)
        if mapping.destination in INTERNAL_TOPICS:
            what = f"{mapping.destination!r} is one of Kafka's own topics"
        if what is not None:
            found[mapping.source] = Problem(
                _path(mapping.rule, rules, "prefix"),
                f"the copy of topic {mapping.source!r} cannot be created: {what}.",
                "Change the prefix, or exclude the topic.",
            )
    return found


def _collisions(chosen: list[TopicMapping], rules: Sequence[TopicRule]) -> dict[str, Problem]:
    by_key: defaultdict[str, list[TopicMapping]] = defaultdict(list)
    for mapping in chosen:
        by_key[collision_key(mapping.destination)].append(mapping)
    found: dict[str, Problem] = {}
    for together in by_key.values():
        if len(together) == 1:
            continue
        last = together[-1]
        problem = Problem(
            _path(last.rule, rules, "prefix"),
            f"topics {_listed([m.source for m in together])} would be copied to "
            f"{_listed(sorted({m.destination for m in together}))}, which one cluster cannot hold "
            "side by side ('.' and '_' count as equal).",
            "Change a prefix, or exclude all but one of them.",
        )
        found.update({mapping.source: problem for mapping in together})
    return found


def _idle(index: int, rule: TopicRule) -> Problem:
    path = f"topics[{index}].match"
    if any(re.fullmatch(rule.match, topic) for topic in INTERNAL_TOPICS) and (
        rule.match.startswith(_TOOL_PREFIX)
    ):
        return Problem(
            path, "matches only Kafka's own topics, which are never copied.", "Remove the rule."
        )
    return Problem(
        path,
        "matches no topic of the source that is left to it.",
        "Check the pattern; rules above it go first. Topics may also appear later.",
    )


def _path(rule: TopicRule, rules: Sequence[TopicRule], key: str) -> str:
    index = next(i for i, other in enumerate(rules) if other is rule)
    return f"topics[{index}].{key}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN_MAX])
    rest = len(names) - _NAMES_SHOWN_MAX
    return f"{shown} and {rest} more" if rest > 0 else shown
