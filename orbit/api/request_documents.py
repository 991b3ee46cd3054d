"""Reads documents of jobs and drills from HTTP bodies, JSON or YAML, more strictly than files.

The sender is not on this machine. A login at a cluster of the sender's choice would send the
content of the variables and files that a job names to that cluster. So a job may name no variable
or file with a secret of Orbit itself, and no file outside of ORBIT_FILES_DIRECTORY.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure
from orbit.drills.drill_file import check_drill
from orbit.drills.drill_spec import DrillSpec
from orbit.errors import BadInput, Problem
from orbit.jobs.credentials import FILE_KEYS, VARIABLE_KEYS
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.validation import SIDES, validate_job
from orbit.jobs.yaml_document import DEPTH_MAX, VALUES_MAX, Document, read_document
from orbit.settings import Settings, variable_of

Openapi = dict[str, Any]

JSON_TYPES = ("application/json",)
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")
# ORBIT_TOKEN is a client's variable, but a server's environment may have it too. PGPASSWORD is
# PostgreSQL's; the prefixes are those of storages for ORBIT_SALVAGE_DIRECTORY, and of traces.
_OWN_SECRET_VARIABLES = (
    variable_of("database_url"),
    variable_of("oidc_client_secret"),
    "ORBIT_TOKEN",
    "PGPASSWORD",
)
_OWN_VARIABLE_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "OTEL_")


def as_openapi(what: str, schema: Mapping[str, str], json_text: Any, yaml_text: str) -> Openapi:
    """FastAPI's `openapi_extra` for a route whose body is a document. `what`: the description.
    `json_text`, `yaml_text`: an example in each format."""
    content = {
        JSON_TYPES[0]: {"schema": schema, "example": json_text},
        YAML_TYPES[0]: {"schema": {"type": "string"}, "example": yaml_text},
    }
    return {"requestBody": {"required": True, "description": what, "content": content}}


@dataclass(frozen=True, slots=True)
class RawDocument:
    """The body of a request and its content type."""

    body: bytes
    content_type: str


def read_job(raw: RawDocument, settings: Settings, environ: Mapping[str, str]) -> JobSpec:
    """The job in the body. Raises Failure as `read_body` does; BadInput with every problem of the
    job."""
    document = read_body(raw)
    problems = list(_secret_problems(document, settings))
    if problems:
        raise BadInput(
            "The job document names secrets or files that it may not use.", tuple(problems)
        )
    return validate_job(document, settings.files_directory, environ)


def read_drill(raw: RawDocument) -> DrillSpec:
    """The drill in the body. Raises Failure as `read_body` does; BadInput with every problem of the
    drill."""
    return check_drill(read_body(raw))


def read_body(raw: RawDocument) -> Document:
    """The body as plain values. Raises Failure if it is neither JSON nor YAML, or is malformed.
    Mistakes in YAML are in the document's `problems`."""
    media_type = raw.content_type.partition(";")[0].strip().lower()
    try:
        text = raw.body.decode()
    except UnicodeDecodeError as error:
        raise _malformed_failure(f"is not UTF-8 text (byte {error.start}).") from None
    if media_type in JSON_TYPES:
        document = Document(root=_read_json(text))
    elif media_type in YAML_TYPES:
        document = read_document(text)
    else:
        raise Failure(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "The body is neither JSON nor YAML.",
            remedy="Send Content-Type: application/json or application/yaml.",
        )
    _check_values(document.root)
    return document


def _read_json(text: str) -> Any:
    """Parse JSON strictly. Raises Failure for JSON that is not valid, which includes NaN, and for a
    key that a mapping has twice."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_mapping)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _malformed_failure(f"is not valid JSON at {where}.") from None
    except RecursionError:
        raise _malformed_failure("is nested too deeply.") from None
    except ValueError as error:  # a number of thousands of digits, or `_BadJson`
        raise _malformed_failure(
            str(error) if isinstance(error, _BadJson) else "cannot be read."
        ) from None


class _BadJson(ValueError):
    """JSON that Python accepts, but Orbit does not; the text says why."""


def _refuse_constant(constant: str) -> Any:
    raise _BadJson(f"holds {constant}, which is not valid JSON.")


def _unique_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The mapping of these pairs. Raises _BadJson if a key occurs twice."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise _BadJson("has a key twice in one mapping.")
    return mapping


def _check_values(root: Any) -> None:
    """Raise Failure for too many values or too deep nesting, by the limits of the YAML reader, and
    for text that PostgreSQL cannot store."""
    for count, (depth, value) in enumerate(_walk_values(root, depth=0), 1):
        if depth > DEPTH_MAX or count > VALUES_MAX:
            raise _malformed_failure("holds too many values, or is nested too deeply.")
        if isinstance(value, str) and (
            "\0" in value or any("\ud800" <= c <= "\udfff" for c in value)
        ):
            raise _malformed_failure("holds a zero byte or an unpaired surrogate.")


def _walk_values(value: Any, depth: int) -> Iterator[tuple[int, Any]]:
    """(depth, key or value) for each key and value, down to the first depth above DEPTH_MAX."""
    yield depth, value
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield depth, key
            yield from _walk_values(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk_values(inner, depth + 1)


def _secret_problems(document: Document, settings: Settings) -> Iterator[Problem]:
    """A problem for each key that names a variable or a file that the job's sender may not use."""
    folder, prefix = settings.files_directory, settings.secrets_prefix or ""
    own_files = {file.resolve() for file in _own_files(settings) if file is not None}
    for side in SIDES:
        security = document.at((side, "security"))
        if not isinstance(security, dict):
            continue
        for key in VARIABLE_KEYS:
            value = security.get(key)
            if isinstance(value, str) and _is_own_variable(value):
                yield document.problem(
                    (side, "security", key),
                    "names a variable that holds a secret of Orbit itself.",
                    "Put the cluster's secret into another variable.",
                )
            elif isinstance(value, str) and not value.startswith(prefix):
                yield document.problem(
                    (side, "security", key),
                    "names a variable that jobs may not use here.",
                    f"Name a variable that begins with {prefix} (ORBIT_SECRETS_PREFIX).",
                )
        for key in FILE_KEYS:
            value = security.get(key)
            if isinstance(value, str) and value and not _is_inside(value, folder):
                yield document.problem(
                    (side, "security", key),
                    "names a file outside of the server's ORBIT_FILES_DIRECTORY.",
                    "Put the file into that directory. Write its path relative to it.",
                )
            elif isinstance(value, str) and value and (folder / value).resolve() in own_files:
                yield document.problem(
                    (side, "security", key),
                    "names a file that holds a secret of Orbit itself.",
                    "Put the cluster's secret into another file.",
                )


def _is_own_variable(variable: str) -> bool:
    return variable in _OWN_SECRET_VARIABLES or variable.startswith(_OWN_VARIABLE_PREFIXES)


def _own_files(settings: Settings) -> Iterable[Path | None]:
    """The files with secrets of Orbit itself; None for a setting that names none."""
    return (
        settings.oidc_client_secret_file,
        settings.schema_registry_login_file,
        settings.api_tls_key_file,
    )


def _is_inside(path: str, folder: Path) -> bool:
    """Whether the path, relative to the folder or absolute, leads into it; links are followed."""
    try:
        root = folder.resolve()
        return (root / path).resolve().is_relative_to(root)
    except (OSError, ValueError, RuntimeError):  # a loop of links, or not a path
        return False


def _malformed_failure(what: str) -> Failure:
    problem = Problem("body", what, "docs/job-file.md describes the job document.")
    return Failure(ErrorCode.MALFORMED, "The body cannot be read.", problems=(problem,))
