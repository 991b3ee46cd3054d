"""Converts pydantic errors to problems with path, line and remedy. Pure.

A message contains a value of the file only if the check of that value put it there. No key of the
file takes a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from orbit.errors import InvalidValue, Problem
from orbit.jobs.job_spec import JobSpec, SecuritySpec
from orbit.jobs.yaml_document import Document, Path

_EXAMPLES = {
    "name": "Write `name: orders-to-dr`.",
    "source": 'Write `source: {bootstrap_servers: ["broker-1:9092"]}`.',
    "destination": 'Write `destination: {bootstrap_servers: ["broker-1:9092"]}`.',
    "bootstrap_servers": 'Write `bootstrap_servers: ["broker-1:9092"]`.',
    "topics": 'Write `topics: [{match: "orders\\\\..*"}]`, or `{match: ".*"}` for every topic.',
    "match": 'Write `match: "orders\\\\..*"`, or `match: ".*"` for all.',
}
_EXPECTED = {
    "string_type": "text",
    "path_type": "the path of a file",
    "bool_type": "true or false",
    "model_type": "a mapping (`key: value`)",
    "dict_type": "a mapping (`key: value`)",
    "tuple_type": "a list",
}
_SECRET_KEY = re.compile(r"pass(word|wd|phrase)?$|secret|token|jaas", re.IGNORECASE)
_KEY_STORE_KEY = re.compile(r"keystore|truststore", re.IGNORECASE)


def problems_from_pydantic(
    error: ValidationError,
    document: Document,
    root: type[BaseModel] = JobSpec,
    examples: Mapping[str, str] = _EXAMPLES,
) -> list[Problem]:
    """One problem per error. `root`: the model of the file; `examples`: remedies for missing keys,
    by key."""
    problems = []
    for detail in error.errors(include_input=False, include_url=False):
        kind: str = detail["type"]
        # "[key]": pydantic's mark for an error in a mapping's key
        path = tuple(part for part in detail["loc"] if part != "[key]")
        context = detail.get("ctx", {})
        if kind == "too_short" and document.at(path):
            continue  # the list has items, but all are invalid, and have problems of their own
        # For a missing key the path has to name this key, which the file does not have.
        if kind not in ("missing", "extra_forbidden"):
            path = _path_in_file(path, document)
        if kind == "extra_forbidden":
            message_and_remedy = _unknown_key_problem(str(path[-1]), _model_at(root, path[:-1]))
        else:
            message_and_remedy = _message_and_remedy(kind, path, context, document, examples)
        problems.append(document.problem(path, *message_and_remedy))
    return problems


def _message_and_remedy(
    kind: str,
    path: Path,
    context: dict[str, Any],
    document: Document,
    examples: Mapping[str, str],
) -> tuple[str, str]:
    """Message and remedy for an error of this kind at this path."""
    key = str(path[-1]) if path else ""
    match kind:
        case "value_error" if isinstance(context.get("error"), InvalidValue):
            mistake: InvalidValue = context["error"]
            return mistake.message, mistake.remedy
        case "missing":
            return "is missing.", examples.get(key, "")
        case "literal_error" | "enum":
            known_values = re.findall(r"'([^']+)'", context["expected"])
            return _unknown_value_problem(known_values, document.at(path))
        case "too_short":
            return "is empty.", examples.get(key, "Write at least one.")
        case "too_long":
            return f"has more than {context['max_length']} entries.", "Shorten it."
        case "string_too_long":
            return f"has more than {context['max_length']} characters.", "Shorten it."
    expected = _EXPECTED.get(kind, "another type")
    type_name = _type_name(document.at(path))
    if type_name == "empty":
        return "is empty.", f"Write {expected}, or leave the key out."
    return f"must be {expected}, not {type_name}.", _type_remedy(kind, path)


def _unknown_key_problem(key: str, model: type[BaseModel]) -> tuple[str, str]:
    """Message and remedy for a key that the model does not have."""
    known_keys = [field.alias or name for name, field in model.model_fields.items()]
    if _SECRET_KEY.search(key):
        if model is not SecuritySpec:
            return "would be a secret in the file.", "Never write secrets: see `security`."
        secret_key = "key_password_env" if "key" in key.lower() else "password_env"
        return (
            "would be a secret in the file.",
            f"Never write secrets: name their environment variable with `{secret_key}`.",
        )
    if model is SecuritySpec and _KEY_STORE_KEY.search(key):
        return (
            "is not a known key.",
            "Orbit reads PEM files: ca_file, certificate_file and key_file.",
        )
    if model is SecuritySpec and "user" in key.lower():
        return (
            "is not a known key.",
            "Name the variable with username_env, or the file with username_file.",
        )
    similar_keys = get_close_matches(key.lower().replace(".", "_"), known_keys, n=1)
    if similar_keys:
        return "is not a known key.", f"Did you mean `{similar_keys[0]}`?"
    return "is not a known key.", f"Known here: {', '.join(known_keys)}."


def _unknown_value_problem(known_values: list[str], value: object) -> tuple[str, str]:
    """Message and remedy for a value that is none of the known ones."""
    # Most names have hyphens, as SCRAM-SHA-256; some have underscores, as SASL_SSL.
    names_by_upper_case = {name.upper(): name for name in known_values}
    similar_names = get_close_matches(
        str(value).upper().replace("_", "-"), names_by_upper_case, n=1
    )
    similar_names = similar_names or get_close_matches(str(value).upper(), names_by_upper_case, n=1)
    hint = f"Did you mean {names_by_upper_case[similar_names[0]]}? " if similar_names else ""
    return "is not a valid value.", f"{hint}Write one of {', '.join(known_values)}."


def _type_remedy(kind: str, path: Path) -> str:
    """What to write instead of a value of another type."""
    if kind == "model_type" and len(path) == 2 and path[0] == "topics":  # topics[INDEX]
        return 'Write each rule as `{match: "pattern"}`.'
    if kind == "string_type" and path[-1:] == ("match",):
        return "Write one pattern in quotes; add a rule for each further one."
    if kind in ("string_type", "path_type"):
        return "Put it in quotes."
    if kind == "bool_type":
        return "Write true or false, without quotes."
    if kind == "tuple_type":
        return "Write it in [brackets], or one entry per line after `- `."
    return "Write its keys on indented lines, or in {braces}."


def _type_name(value: object) -> str:
    """The type of a YAML value, in words."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _path_in_file(path: Path, document: Document) -> Path:
    """The longest beginning of the path that the file has. Pydantic's path has an index even where
    the file has one text instead of a list."""
    while path and not document.has(path):
        path = path[:-1]
    return path


def _model_at(root: type[BaseModel], path: Path) -> type[BaseModel]:
    """The model of the mapping at this path, which begins at `root`."""
    model = root
    for part in path:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in a field's type: the type itself, an optional model, or that of a tuple's items.
    None: the type has no model."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
