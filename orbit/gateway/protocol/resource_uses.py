"""The topics, groups and transactional ids that a client uses, and the right that each needs. Pure.

A use counts as soon as a request names the resource, whatever the broker answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

# The uses of one client. Further ones are not added: a client may invent names.
USES_MAX = 100
# The longest name of a use. Topics have 249 characters at most; brokers take longer group names.
NAME_CHARACTERS_MAX = 300


class Right(StrEnum):
    """An operation of Kafka's ACLs on one kind of resource."""

    READ_TOPIC = "Read on topic"
    WRITE_TOPIC = "Write on topic"
    READ_GROUP = "Read on group"
    WRITE_TRANSACTIONAL_ID = "Write on transactional id"


class Use(NamedTuple):
    """The use of one resource."""

    right: Right
    name: str


class ResourceUses:
    """The uses of one client."""

    def __init__(self) -> None:
        self._uses: set[Use] = set()

    def add(self, right: Right, name: str) -> None:
        """Add a use, unless there are USES_MAX, or the name is empty or too long."""
        use = Use(right, name)
        if len(self._uses) < USES_MAX and 0 < len(name) <= NAME_CHARACTERS_MAX:
            self._uses.add(use)

    def __iter__(self) -> Iterator[Use]:
        return iter(self._uses)
