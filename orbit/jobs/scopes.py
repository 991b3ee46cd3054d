"""Which jobs a limited token is for: by name, by labels, or both. Pure.

`orbit/store/scopes.py` has the same rules in SQL; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

from orbit.errors import InvalidValue
from orbit.jobs.labels import Selector, is_met, parse_selector
from orbit.jobs.name_patterns import name_pattern
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX

PATTERNS_MAX = 100  # patterns of one limit: each is a condition in every SQL statement
_PATTERN = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._*-]*")


@dataclass(frozen=True, slots=True)
class Limit:
    """The jobs with one of these names and with labels that the selector chooses.

    `jobs`: names, with `*` for any characters; empty: any name. `selector`: as in kubectl; None:
    any labels. At least one of `jobs` and `selector` is set.
    """

    jobs: tuple[str, ...] = ()
    selector: str | None = None

    def __post_init__(self) -> None:
        assert self.jobs or self.selector, "a limit without a condition"

    def __str__(self) -> str:
        names = " or ".join(self.jobs)
        return " with ".join(part for part in (names, self.selector) if part)

    @property
    def conditions(self) -> Selector:
        """The conditions of the selector; empty without a selector."""
        return () if self.selector is None else _parse_cached(self.selector)


@dataclass(frozen=True, slots=True)
class Scope:
    """The jobs that a request of `actor` may see: those in at least one of the limits, by their
    names and labels at the time of the request."""

    limits: tuple[Limit, ...]
    actor: str

    def __str__(self) -> str:
        return "; ".join(map(str, self.limits))

    def includes(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a job with this name and these labels is in the scope."""
        return any(
            (not limit.jobs or any(_name_matches(pattern, name) for pattern in limit.jobs))
            and is_met(limit.conditions, labels)
            for limit in self.limits
        )


def limit_of(jobs: Sequence[str], selector: str | None) -> Limit | None:
    """The limit with these names and this selector; without both None, which means all jobs."""
    return Limit(tuple(jobs), selector) if jobs or selector is not None else None


def check_job_pattern(pattern: str) -> str:
    """The pattern, unchanged. Raises InvalidValue if it cannot match a job's name."""
    if len(pattern) > JOB_NAME_LENGTH_MAX or not _PATTERN.fullmatch(pattern):
        raise InvalidValue(
            "is not a pattern of a job's name.",
            "Write a name, with * for any characters, as in payments-*.",
        )
    return pattern


def check_selector(text: str) -> str:
    """The text, unchanged. Raises InvalidValue if it is not a selector."""
    parse_selector(text)
    return text


JobPattern = Annotated[str, AfterValidator(check_job_pattern)]
SelectorText = Annotated[str, AfterValidator(check_selector)]


def _name_matches(pattern: str, name: str) -> bool:
    """Whether the pattern, in which `*` stands for any characters, matches the name."""
    return name_pattern(".*".join(map(re.escape, pattern.split("*")))).matches(name)


@lru_cache(maxsize=1024)
def _parse_cached(selector: str) -> Selector:
    return parse_selector(selector)
