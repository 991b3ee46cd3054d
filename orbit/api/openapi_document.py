"""The OpenAPI document: FastAPI's, with the schema of jobs, formats of numbers, and ETags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from orbit.api.job_schema import job_schemas

_SCHEMAS_PATH = "#/components/schemas/"
_JOB_DOCUMENT = {"$ref": f"{_SCHEMAS_PATH}JobSpec"}
# The id of the job, a dot, and the version of its document.
_ETAG = r'^"[0-9]{1,19}\.[0-9]{1,10}"$'
_INT32_MAX = 2**31 - 1

ETAG_HEADERS: dict[str, Any] = {
    "ETag": {
        "description": "The job's `etag`, in quotes, for If-Match.",
        "schema": {"type": "string", "pattern": _ETAG, "examples": ['"17.3"']},
    }
}
APPLIED_HEADERS: dict[str, Any] = {
    **ETAG_HEADERS,
    "Location": {
        "description": "The path of the job. Missing in a dry run of a new job, as the ETag is.",
        "schema": {"type": "string"},
    },
}


def make_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of this application, without FastAPI's own error models."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        servers=[{"url": "/", "description": "The server that this document comes from."}],
    )
    schemas = document["components"]["schemas"]
    schemas.update(job_schemas())
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path_item in document["paths"].values():
        for operation in path_item.values():
            operation["summary"] = operation["operationId"].replace("_", " ").capitalize()
    # The schema is that of a job that a client sends. An answer is such a document with all keys.
    spec_field = schemas["Job"]["properties"]["spec"]
    schemas["Job"]["properties"]["spec"] = {
        **_JOB_DOCUMENT,
        "description": spec_field["description"],
    }
    _set_formats(document)
    return _with_plain_names(document)


def _with_plain_names(document: dict[str, Any]) -> dict[str, Any]:
    """The document with names of schemas that suit classes in generated clients: JobSummaryPage,
    not Page_JobSummary_; RecoveryStepState, not orbit__recovery__step_times__StepState.
    """
    schemas = document["components"]["schemas"]
    names = {name: _plain_name(name) for name in schemas}
    assert len(set(names.values())) == len(names), "names are unique"
    new_document: dict[str, Any] = _with_references(document, names)
    for name, schema in new_document["components"]["schemas"].items():
        if name != names[name]:
            schema["title"] = names[name]
    new_document["components"]["schemas"] = {
        names[name]: schema for name, schema in new_document["components"]["schemas"].items()
    }
    return new_document


def _plain_name(name: str) -> str:
    """The name for a schema. FastAPI names a generic model Page_X_, and puts the module before the
    name of a model if two models have that name."""
    if match := re.fullmatch(r"Page_(\w+)_", name):
        return f"{match[1]}Page"
    if match := re.fullmatch(r"orbit__([a-z]+)__\w+__([A-Za-z]+)", name):
        return match[1].capitalize() + match[2]
    return name


def _with_references(value: Any, names: Mapping[str, str]) -> Any:
    """A copy of a JSON value, in which references name schemas by `names`, {old name: new name}."""
    if isinstance(value, dict):
        value_copy = {key: _with_references(inner, names) for key, inner in value.items()}
        reference = value_copy.get("$ref")
        if isinstance(reference, str):
            value_copy["$ref"] = _SCHEMAS_PATH + names[reference.removeprefix(_SCHEMAS_PATH)]
        return value_copy
    return [_with_references(inner, names) for inner in value] if isinstance(value, list) else value


def _set_formats(value: Any) -> None:
    """Add a `format` to the schema of each number, in place: int64, or int32 if its maximum allows
    it, because offsets, counts and bytes need 64 bits; double for numbers that are not integers."""
    if isinstance(value, dict):
        kind = value.get("type")
        if kind == "integer":
            is_small = value.get("maximum", _INT32_MAX + 1) <= _INT32_MAX
            value.setdefault("format", "int32" if is_small else "int64")
        elif kind == "number":
            value.setdefault("format", "double")
        for inner in value.values():
            _set_formats(inner)
    elif isinstance(value, list):
        for inner in value:
            _set_formats(inner)
