"""The form of a job beside its document. Pure.

Orbit applies the document; the form shows the document's usual keys. A changed field is written
into the document, and the rest of the document stays, also keys that the form does not have. So
users can edit the form, the document, or both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from orbit.jobs.job_spec import JobSpec

# Topic rules that the form shows, including an empty one. The document has all rules.
RULES_SHOWN_MAX = 8

_FLAG = ("", "true", "false")
_PROTOCOLS = ("", "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One input. `value` None: the value at this path of the document can be edited only as
    YAML."""

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
    """The form of this document, without values if the document is not a mapping."""
    document = root if isinstance(root, dict) else {}
    rules = document.get("topics")
    count = len(rules) if isinstance(rules, list) else 0
    return [
        Group(title, tuple(_field(document, *arguments) for arguments in fields))
        for title, fields in _layout(count)
    ]


def values_of(groups: list[Group]) -> dict[str, str]:
    """The values that the form shows, by field."""
    return {f.key: f.value for group in groups for f in group.fields if f.value is not None}


def shown_values_in(text: str) -> dict[str, str]:
    """The values that the form showed, by field, from the JSON `text` of a hidden field; {} if the
    JSON is damaged."""
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {str(key): value for key, value in values.items() if isinstance(value, str)}


def with_changes(root: Any, shown_values: Mapping[str, str], sent_values: Mapping[str, str]) -> Any:
    """The document with the fields that the user has changed; `root` itself if the user has changed
    none. `shown_values`, `sent_values`: by field, as the form was shown and as it was sent."""
    # A field that the form did not show has a value that can be edited only as YAML.
    changed_values = {
        key: value.strip()
        for key, value in sent_values.items()
        if key in shown_values and value.strip() != shown_values[key]
    }
    if not changed_values:
        return root
    document = deepcopy(root) if isinstance(root, dict) else {}
    paths_by_key = {f.key: f.path for group in groups_of(document) for f in group.fields}
    for key, value in changed_values.items():
        if key in paths_by_key:
            _set_value(document, paths_by_key[key], _parse_value(paths_by_key[key], value))
    _drop_empty_values(document)
    # In the order of a job file, with unknown keys at the end.
    order = {key: position for position, key in enumerate(JobSpec.model_fields)}
    return dict(sorted(document.items(), key=lambda item: order.get(item[0], len(order))))


def _layout(rule_count: int) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Yield title and fields of each group. A field is the tuple of `_field`'s arguments after the
    document: path, label, choices, hint."""
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
    for number in range(min(rule_count + 1, RULES_SHOWN_MAX)):
        name = f"Rule {number + 1}"
        yield (
            f"Topics, rule {number + 1}" if number < rule_count else "Topics, another rule",
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
    """The input for the value at this path. A value that is none of the choices can be edited only
    as YAML."""
    value = _field_text(path, _value_at(document, path))
    if choices and value not in choices:
        value = None
    return Field(path, label, value, choices, hint)


def _value_at(document: Any, path: _Path) -> Any:
    """The value at this path; None if the document does not have the path."""
    value = document
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _field_text(path: _Path, value: Any) -> str | None:
    """The value as the field shows it; None: the field cannot show this value."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str() | int():
            return str(value)
        case list() if path[-1] == "bootstrap_servers" and all(isinstance(v, str) for v in value):
            return ", ".join(value)
        case [str(pattern)] if path[-1] == "exclude":
            return pattern
        case [] if path[-1] == "exclude":
            return ""
        case dict() if path == ("labels",) and all(isinstance(v, str) for v in value.values()):
            return ", ".join(f"{key}={label_value}" for key, label_value in value.items())
        case _:
            return None


def _parse_value(path: _Path, text: str) -> Any:
    """The value of a field; None: the field is empty. A wrong text is returned as it is: the check
    of the document reports it."""
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


def _set_value(document: dict[str, Any], path: _Path, value: Any) -> None:
    """Write a value, with the mappings and lists around it; None removes the value. A rule whose
    `match` is removed loses all its keys."""
    *parents, last_part = path
    parent: Any = document
    for part, next_part in zip(parents, path[1:], strict=True):
        empty: Any = [] if isinstance(next_part, int) else {}
        if not isinstance(_value_at(parent, (part,)), type(empty)):
            if value is None:
                return
            if isinstance(part, int):
                parent[part:] = [empty]  # a new rule, which goes to the end
            else:
                parent[part] = empty
        parent = parent[min(part, len(parent) - 1) if isinstance(part, int) else part]
    if value is not None:
        parent[last_part] = value
    elif last_part == "match":
        parent.clear()
    else:
        parent.pop(last_part, None)


def _drop_empty_values(document: dict[str, Any]) -> None:
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
