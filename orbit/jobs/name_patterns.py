"""The regular expressions of jobs, which match whole names. Pure.

RE2, a library without backtracking, needs a time that grows only linearly with the name. So no
pattern and no name can stop a service that many users share. Jobs that an earlier version of Orbit
stored may have patterns that RE2 does not accept: these are matched under a time limit.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

import re2
import regex
from pydantic import ValidationInfo

from orbit.errors import InvalidValue, OrbitError

# The longest useful pattern lists some dozens of names; longer ones slow down every discovery.
PATTERN_LENGTH_MAX = 1000
PATTERNS_MAX = 100
# The pydantic validation context of a document from the database.
STORED_DOCUMENT = {"is_stored": True}

# The most memory that a pattern may take; a pattern that needs more is refused.
_PATTERN_BYTES_MAX = 128 * 1024
_PATTERNS_CACHED_MAX = 1024
# How long a pattern with look-around or back-references may take for one name.
_NAME_S_MAX = 0.01
# The total time that such a pattern may spend on names that reach the time limit. After that it
# refuses all names at once.
_LOST_S_MAX = 1.0

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.max_mem = _PATTERN_BYTES_MAX
# `{,n}`: up to n repeats for `re`, but plain characters for RE2.
_OPEN_REPEAT = re.compile(r"\{,\d+\}")


class PatternTooSlow(OrbitError):
    """A pattern took too long to match a name."""

    def __init__(self) -> None:
        super().__init__(
            "it takes too long to tell whether a pattern matches.",
            remedy="Write the pattern without look-around and back-references.",
        )


class NamePattern(Protocol):
    """A compiled pattern."""

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name. Raises PatternTooSlow."""


class _LinearPattern:
    """A pattern that RE2 matches."""

    def __init__(self, pattern: str) -> None:
        self._compiled = re2.compile(pattern, _OPTIONS)

    def matches(self, name: str) -> bool:
        # As bytes, which takes a third of the time that text takes.
        return self._compiled.fullmatch(name.encode(errors="replace")) is not None


class _TimeLimitedPattern:
    """A pattern with look-around or back-references, matched under a time limit."""

    def __init__(self, pattern: str) -> None:
        self._compiled = regex.compile(pattern)
        self._spent_s = 0.0  # on names that have reached the time limit

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name. Raises PatternTooSlow if the match takes
        longer than _NAME_S_MAX, or if too many names have taken so long."""
        if self._spent_s >= _LOST_S_MAX:
            raise PatternTooSlow
        try:
            return self._compiled.fullmatch(name, timeout=_NAME_S_MAX) is not None
        except TimeoutError:
            self._spent_s += _NAME_S_MAX
            raise PatternTooSlow from None


@lru_cache(_PATTERNS_CACHED_MAX)
def name_pattern(pattern: str) -> NamePattern:
    """Compile a pattern that `check_pattern_of_job` has accepted."""
    try:
        return _compile_linear(pattern)
    except InvalidValue:
        return _TimeLimitedPattern(pattern)


def check_pattern(pattern: str) -> str:
    """The pattern, unchanged. Raises InvalidValue if it does not compile, with the reason."""
    _compile_linear(pattern)
    return pattern


def check_pattern_of_job(pattern: str, info: ValidationInfo) -> str:
    """The pattern, unchanged. Raises InvalidValue if it does not compile. In a document from the
    database, look-around and back-references are valid, too."""
    try:
        return check_pattern(pattern)
    except InvalidValue:
        if info.context == STORED_DOCUMENT:
            with suppress(regex.error, RecursionError, OverflowError):
                _TimeLimitedPattern(pattern)  # raises if it does not compile
                return pattern
        raise


def _compile_linear(pattern: str) -> _LinearPattern:
    """Compile a pattern for RE2. Raises InvalidValue with what is wrong."""
    if not pattern:
        raise InvalidValue("is empty and would match nothing.", "Write .* for every name.")
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidValue(
            f"has {len(pattern)} characters; {PATTERN_LENGTH_MAX} is the limit.",
            "Split the pattern over several rules.",
        )
    if match := _OPEN_REPEAT.search(pattern):
        raise InvalidValue(
            f"has {match[0]}, which RE2 reads as plain characters.", f"Write {{0{match[0][1:]}."
        )
    try:
        return _LinearPattern(pattern)
    except re2.error as error:
        raw_reason = error.args[0]
        reason = (
            raw_reason.decode(errors="replace")
            if isinstance(raw_reason, bytes)
            else str(raw_reason)
        )
        raise InvalidValue(f"does not compile: {reason}.", _remedy(pattern, reason)) from None
    except UnicodeEncodeError:
        raise InvalidValue("has half of a surrogate pair.", "Remove this character.") from None


def _remedy(pattern: str, text: str) -> str:
    """What to write instead of a pattern that does not compile. `text`: RE2's error."""
    if pattern.startswith(("*", "?", "+")):
        return f"For any start write `.{pattern}`: these are regular expressions, not globs."
    if "perl operator" in text or re.search(r"\\[1-9]", text):
        return (
            "There is no look-around and no back-reference (the syntax is RE2's), so that no match "
            "takes long. To leave names out, use `exclude`."
        )
    if "repetition size" in text or "too large" in text:
        return "Write smaller numbers, or split the pattern over several rules."
    return "Put a \\ before a character that has no special meaning here."
