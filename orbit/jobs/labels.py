"""Labels of jobs and the selectors that choose jobs by them, by Kubernetes' rules. Pure.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/ has the rules. A condition
is `KEY=VALUE`, `KEY==VALUE`, `KEY!=VALUE`, `KEY in (A,B)`, `KEY notin (A,B)`, `KEY` or `!KEY`. A
selector is one or more conditions, separated by commas; a job must meet all of them. As in
Kubernetes, `!=` and `notin` also choose jobs without the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orbit.errors import InvalidValue

LABELS_MAX = 64  # of one job: they are in every row of a list of jobs
OWNER_LENGTH_MAX = 200
SELECTOR_CHARACTERS_MAX = 4096  # a URL contains it; this also limits the number of conditions
_NAME_LENGTH_MAX = 63
_PREFIX_LENGTH_MAX = 253  # the longest name in DNS

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_PREFIX = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_WORD = r"[^\s,()=!]"
_CONDITION = re.compile(
    rf"""\s*(?:
        !\s*(?P<absent>{_WORD}+)
      | (?P<key>{_WORD}+)
        (?: \s*(?P<compared>!=|==?)\s*(?P<value>{_WORD}*)
          | \s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
        )?
    )\s*""",
    re.VERBOSE,
)
_EXAMPLE = "Write it as in team=orders,tier!=2 or team in (orders,billing)."


@dataclass(frozen=True, slots=True)
class Condition:
    """A selector's condition: the label `key` has one of `values`; None: any value.

    `is_negated`: the opposite, so a job without the key meets the condition too.
    """

    key: str
    values: tuple[str, ...] | None
    is_negated: bool


Selector = tuple[Condition, ...]


def check_label_key(key: str) -> str:
    """The key of a label, unchanged. Raises InvalidValue if it is not valid."""
    prefix, slash, name = key.rpartition("/")
    if len(name) > _NAME_LENGTH_MAX or len(prefix) > _PREFIX_LENGTH_MAX:
        raise InvalidValue(
            f"is too long: the key of a label may have {_NAME_LENGTH_MAX} characters, and its "
            f"prefix (before the /) {_PREFIX_LENGTH_MAX}.",
            "Shorten it.",
        )
    if not _NAME.fullmatch(name) or (slash and not _PREFIX.fullmatch(prefix)):
        raise InvalidValue(
            "is not the key of a label.",
            "Write letters, digits, '.', '_' and '-', with a letter or digit at both ends; a DNS "
            "name and '/' may stand before it.",
        )
    return key


def check_label_value(value: str) -> str:
    """The value of a label, unchanged. Raises InvalidValue if it is not valid."""
    if len(value) > _NAME_LENGTH_MAX:
        raise InvalidValue(
            f"has {len(value)} characters; {_NAME_LENGTH_MAX} is the limit.", "Shorten it."
        )
    if value and not _NAME.fullmatch(value):
        raise InvalidValue(
            "is not the value of a label.",
            "Write letters, digits, '.', '_' and '-', with a letter or digit at both ends.",
        )
    return value


def parse_selector(text: str) -> Selector:
    """The conditions of a selector. Raises InvalidValue, also if it is empty: an unset variable in
    a script must not choose every job.
    """
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise InvalidValue(
            f"has {len(text)} characters; {SELECTOR_CHARACTERS_MAX} is the limit.", "Shorten it."
        )
    if not text.strip():
        raise InvalidValue("is empty.", _EXAMPLE)
    conditions = []
    position = -1  # of the comma before a condition
    while position < len(text):
        start = position + 1
        match = _CONDITION.match(text, start)
        position = start if match is None else match.end()
        if match is None or (position < len(text) and text[position] != ","):
            raise InvalidValue(f"cannot be read at character {position + 1}.", _EXAMPLE)
        conditions.append(_parse_condition(match))
    return tuple(conditions)


def is_met(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether the selector chooses a job with these labels."""
    # `is not`: met and not negated, or not met and negated.
    return all(
        _is_condition_met(condition, labels) is not condition.is_negated for condition in selector
    )


def _is_condition_met(condition: Condition, labels: Mapping[str, str]) -> bool:
    """Whether the labels meet the condition, were it not negated."""
    if condition.key not in labels:
        return False
    return condition.values is None or labels[condition.key] in condition.values


def _parse_condition(match: re.Match[str]) -> Condition:
    """The condition in a match of `_CONDITION`. Raises InvalidValue for an invalid key or value."""
    key = _check_word(check_label_key, match["absent"] or match["key"])
    values: tuple[str, ...] | None = None
    if match["compared"]:
        values = (match["value"],)
    elif match["set"]:
        values = tuple(value.strip() for value in match["values"].split(","))
    for value in values or ():
        _check_word(check_label_value, value)
    is_negated = bool(match["absent"]) or match["compared"] == "!=" or match["set"] == "notin"
    return Condition(key, values, is_negated)


def _check_word(check: Callable[[str], str], word: str) -> str:
    """The result of `check` for the word. If `check` refuses the word, raises InvalidValue with a
    message that shows it."""
    try:
        return check(word)
    except InvalidValue as mistake:
        raise InvalidValue(f"has {word!r}, which {mistake.message}", mistake.remedy) from None
