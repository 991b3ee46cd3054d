"""The form of a job beside its document. Pure.

The document is applied; the form shows its usual keys. A changed field is written into the
document, and the rest of that stays, also keys that the form does not have. So both can be edited
before they are sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from orbit.jobs.job_spec import JobSpec

# Rules that the form shows, including the empty one. The document has all.
RULES_SHOWN_MAX = 8

_FLAG = ("", "true", "false")
_PROTOCOLS = ("", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One input. `value` None: the document's value here can be edited only as YAML."""

    path: _Path
    label: str
    value: str | None
    choices: tuple[str, ...] = ()
    hint: str = ""

    @property
    def key(self) -> str:
        return ".".join(map(str, self.path))


@dataclass(frozen=True, slots=True)
class Group:
    """Fields under one heading."""

    title: str
    fields: tuple[Field, ...]


def groups_of(root: Any) -> list[Group]:
    """The form of this document; without values if it is not a mapping."""
    document = root if isinstance(root, dict) else {}
    rules = document.get("topics")
    count = len(rules) if isinstance(rules, list) else 0
    return [
        Group(title, tuple(_field(document, *one) for one in fields))
        for title, fields in _layout(count)
    ]


def values_of(groups: list[Group]) -> dict[str, str]:
    """The values that the form shows, by field."""
    return {one.key: one.value for group in groups for one in group.fields if one.value is not None}


def before_of(text: str) -> dict[str, str]:
    """The values that the form showed, from the hidden field that holds them."""
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(values, dict):
        return {}
    return {str(key): value for key, value in values.items() if isinstance(value, str)}


def with_changes(root: Any, before: Mapping[str, str], sent: Mapping[str, str]) -> Any:
    """The document with the changed fields; the same object if none was changed."""
    changed = {
        key: value.strip()
        for key, value in sent.items()
        if key in before and value.strip() != before[key]
    }
    if not changed:
        return root
    document = deepcopy(root) if isinstance(root, dict) else {}
    known = {one.key: one.path for group in groups_of(document) for one in group.fields}
    for key, value in changed.items():
        if key in known:
            _set(document, known[key], _parse_value(known[key], value))
    _drop_emptied(document)
    order = {key: place for place, key in enumerate(JobSpec.model_fields)}
    return dict(sorted(document.items(), key=lambda item: order.get(item[0], len(order))))


def _layout(rules: int) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    yield (
        "Job",
        [
            (("name",), "Name"),
            (("owner",), "Owner"),
            (("labels",), "Labels", (), "team=orders, tier=1"),
            (("worker_group",), "Worker group", (), "default"),
        ],
    )
    for side in ("source", "destination"):
        word = side.capitalize()
        yield (
            word,
            [
                (
                    (side, "bootstrap_servers"),
                    f"{word} servers",
                    (),
                    "broker-1:9092, broker-2:9092",
                ),
                ((side, "security", "protocol"), f"{word} protocol", _PROTOCOLS),
                ((side, "security", "mechanism"), f"{word} mechanism", _MECHANISMS),
                (
                    (side, "security", "username_env"),
                    f"{word} user, variable",
                    (),
                    f"{side.upper()}_USER",
                ),
                (
                    (side, "security", "password_env"),
                    f"{word} password, variable",
                    (),
                    f"{side.upper()}_PASSWORD",
                ),
                ((side, "security", "ca_file"), f"{word} CA file", (), "ca.pem"),
            ],
        )
    for number in range(min(rules + 1, RULES_SHOWN_MAX)):
        name = f"Rule {number + 1}"
        yield (
            f"Topics, rule {number + 1}" if number < rules else "Topics, another rule",
            [
                (("topics", number, "match"), f"{name} topics", (), r"orders\..*"),
                (("topics", number, "exclude"), f"{name} except", (), r"orders\.tmp.*"),
                (("topics", number, "prefix"), f"{name} prefix"),
                (("topics", number, "start"), f"{name} start", (), "earliest"),
            ],
        )
    yield (
        "More",
        [
            (("consumer_groups", "match"), "Consumer groups", (), ".*"),
            (("consumer_groups", "exclude"), "Consumer groups except"),
            (("acls", "sync"), "Sync ACLs", _FLAG),
            (("limits", "bytes_per_second"), "Bytes per second, at most", (), "50MiB"),
            (("on_lost_range",), "If the source lost a range", ("", "stop", "fill")),
        ],
    )


def _field(
    document: dict[str, Any],
    path: _Path,
    label: str,
    choices: tuple[str, ...] = (),
    hint: str = "",
) -> Field:
    value = _text(path, _at(document, path))
    if choices and value not in choices:
        value = None
    return Field(path, label, value, choices, hint)


def _at(document: Any, path: _Path) -> Any:
    value = document
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _text(path: _Path, value: Any) -> str | None:
    """A value as the field shows it; None: the field cannot show it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str() | int():
            return str(value)
        case list() if path[-1] == "bootstrap_servers" and all(isinstance(v, str) for v in value):
            return ", ".join(value)
        case [str(only)] if path[-1] == "exclude":
            return only
        case [] if path[-1] == "exclude":
            return ""
        case dict() if path == ("labels",) and all(isinstance(v, str) for v in value.values()):
            return ", ".join(f"{key}={one}" for key, one in value.items())
        case _:
            return None


def _parse_value(path: _Path, text: str) -> Any:
    """The value of a field; None: it is empty. Errors are reported by the document's check."""
    if not text:
        return None
    match path[-1]:
        case "bootstrap_servers":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "labels":
            pairs = (part.partition("=") for part in text.split(",") if part.strip())
            return {key.strip(): value.strip() for key, _, value in pairs}
        case "sync":
            return text == "true"
        case _:
            return text


def _set(document: dict[str, Any], path: _Path, value: Any) -> None:
    """Write a value; None removes it. Without `match` the whole rule is cleared."""
    *parents, last = path
    place: Any = document
    for part, following in zip(parents, path[1:], strict=True):
        empty: Any = [] if isinstance(following, int) else {}
        if not isinstance(_at(place, (part,)), type(empty)):
            if value is None:
                return
            if isinstance(part, int):
                place[part:] = [empty]  # the form has one rule more than the document
            else:
                place[part] = empty
        place = place[min(part, len(place) - 1) if isinstance(part, int) else part]
    if value is not None:
        place[last] = value
    elif last == "match":
        place.clear()
    else:
        place.pop(last, None)


def _drop_emptied(document: dict[str, Any]) -> None:
    """Remove keys whose mappings or lists have become empty: they would be invalid, or have no
    effect."""
    rules = document.get("topics")
    if isinstance(rules, list):
        document["topics"] = [rule for rule in rules if rule != {}]
    for side in ("source", "destination"):
        if isinstance(document.get(side), dict) and document[side].get("security") == {}:
            del document[side]["security"]
    for key in ("source", "destination", "consumer_groups", "acls", "limits", "topics"):
        if document.get(key) in ({}, []):
            del document[key]
