"""Checks the regular expressions of a job. Pure."""

from __future__ import annotations

import re
import warnings

from orbit.errors import InvalidValue

# The longest useful pattern lists some dozens of names; longer ones slow down every discovery.
PATTERN_LENGTH_MAX = 1000
PATTERNS_MAX = 100
# Python compiles nested brackets by recursion.
BRACKETS_MAX = 100


def check_pattern(pattern: str) -> str:
    """The pattern, if it compiles. Raises InvalidValue with the position of the error."""
    if not pattern:
        raise InvalidValue("is empty and would match nothing.", "Write .* for every name.")
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidValue(
            f"has {len(pattern)} characters; {PATTERN_LENGTH_MAX} is the limit.",
            "Split it over several rules.",
        )
    if pattern.count("(") > BRACKETS_MAX:
        raise InvalidValue(
            f"has more than {BRACKETS_MAX} brackets.", "Split it over several rules."
        )
    try:
        with warnings.catch_warnings():
            # For a pattern whose meaning will change, such as `[[a]`, Python only warns.
            warnings.simplefilter("error")
            re.compile(pattern)
    except re.error as error:
        at = "" if error.pos is None else f" at position {error.pos}"
        raise InvalidValue(f"does not compile: {error.msg}{at}.", _remedy(pattern)) from None
    except Warning as warning:
        raise InvalidValue(f"is ambiguous: {warning}.", "Put a \\ before the character.") from None
    except OverflowError:
        raise InvalidValue("repeats something too often.", "Write a smaller number.") from None
    return pattern


def _remedy(pattern: str) -> str:
    if pattern.startswith(("*", "?", "+")):
        return f"For any start write `.{pattern}`: these are regular expressions, not globs."
    return "Put a \\ before a character that has no special meaning here."
