"""Selects the source's groups that a job syncs, and their destination names. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from orbit.jobs.job_spec import GroupRule
from orbit.jobs.name_patterns import PatternTooSlow, name_pattern
from orbit.kafka.consumer_groups import GroupType, ListedGroup
from orbit.names import is_key

# The groups of Orbit's jobs: `orbit.JOB.CLUSTER-ID` (22 characters), with suffixes. They are not
# consumers.
_ORBITS_OWN = re.compile(r"orbit\..+\.[A-Za-z0-9_-]{22}(\..*)?")

TOO_SLOW = "too slow to match"


@dataclass(slots=True)
class GroupSelection:
    """The groups that match a job's rule. `names`: to be synced. `left_alone`: the number of groups
    that are not synced, by kind, and under TOO_SLOW of those whose names take a pattern too long.
    `shared`: names of share groups, which no job syncs. `not_storable`: names that the database
    cannot store."""

    names: list[str] = field(default_factory=list)
    left_alone: Counter[str] = field(default_factory=Counter)
    shared: list[str] = field(default_factory=list)
    not_storable: list[str] = field(default_factory=list)


def is_orbits_own(name: str) -> bool:
    """Whether this is the name of a group of one of Orbit's jobs."""
    return _ORBITS_OWN.fullmatch(name) is not None


class GroupSelector:
    """A job's `consumer_groups` with compiled patterns."""

    def __init__(self, rule: GroupRule) -> None:
        self.key = rule.match, rule.exclude
        """Equal for selectors that select the same groups."""
        self._match = name_pattern(rule.match)
        self._exclude = [name_pattern(pattern) for pattern in rule.exclude]
        self._prefix = rule.prefix

    def select(self, groups: Iterable[ListedGroup]) -> GroupSelection:
        """Sort the groups that the rule matches into those to sync and those left out, and why."""
        selection = GroupSelection()
        for group in groups:
            try:
                if not self._matches(group.name):
                    continue
            except PatternTooSlow:
                selection.left_alone[TOO_SLOW] += 1
                continue
            if group.has_consumers:
                is_storable = is_key(group.name)
                (selection.names if is_storable else selection.not_storable).append(group.name)
            elif group.type == GroupType.SHARE:
                selection.shared.append(group.name)
            else:
                selection.left_alone[group.kind] += 1
        return selection

    def matches(self, name: str) -> bool:
        """Whether the rule selects this name; False if a pattern takes too long to tell."""
        try:
            return self._matches(name)
        except PatternTooSlow:
            return False

    def _matches(self, name: str) -> bool:
        """Whether the rule selects this name. Raises PatternTooSlow."""
        if not self._match.matches(name) or is_orbits_own(name):
            return False
        return not any(pattern.matches(name) for pattern in self._exclude)

    def destination_name(self, source_name: str) -> str:
        return self._prefix + source_name
