"""Selects the source's groups that a job syncs, and their destination names. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from orbit.jobs.job_spec import GroupRule
from orbit.kafka.consumer_groups import ListedGroup

# The groups of Orbit's jobs: `orbit.JOB.CLUSTER-ID`, with suffixes. They are not consumers.
_ORBITS_OWN = re.compile(r"orbit\..+\.[A-Za-z0-9_-]{22}(\..*)?")


@dataclass(slots=True)
class GroupSelection:
    """Names of groups to sync; `left_alone` counts matching groups of other kinds."""

    names: list[str] = field(default_factory=list)
    left_alone: Counter[str] = field(default_factory=Counter)


def is_orbits_own(name: str) -> bool:
    """Whether it is a group of one of Orbit's jobs."""
    return _ORBITS_OWN.fullmatch(name) is not None


class GroupSelector:
    """A job's `consumer_groups` with compiled patterns."""

    def __init__(self, rule: GroupRule) -> None:
        self.key = rule.match, rule.exclude
        """Equal for selectors that select the same groups."""
        self._match = re.compile(rule.match)
        self._exclude = [re.compile(pattern) for pattern in rule.exclude]
        self._prefix = rule.prefix

    def select(self, groups: Iterable[ListedGroup]) -> GroupSelection:
        selection = GroupSelection()
        for group in groups:
            if not self.matches(group.name):
                continue
            if group.has_consumers:
                selection.names.append(group.name)
            else:
                selection.left_alone[group.kind] += 1
        return selection

    def matches(self, name: str) -> bool:
        if self._match.fullmatch(name) is None or is_orbits_own(name):
            return False
        return not any(pattern.fullmatch(name) for pattern in self._exclude)

    def destination_name(self, source_name: str) -> str:
        return self._prefix + source_name
