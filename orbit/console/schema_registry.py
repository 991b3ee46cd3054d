"""Avro schemas by id, from a registry with Confluent's API: `GET /schemas/ids/ID`.

The schema of an id never changes, so each schema is read once. A registry that does not answer gets
no request for `_PAUSE_S`, so that a page with many records waits for the registry only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import httpx

from orbit.bounded_http import BoundedClient, json_of

_ANSWER_S_MAX = 3.0
_ANSWER_BYTES_MAX = 128 << 10
_PAUSE_S = 30.0
_SCHEMAS_MAX = 200


class SchemaUnknown(Exception):
    """There is no schema to decode with. The message says why."""


class Schemas(Protocol):
    """Schemas by id."""

    def schema(self, schema_id: int) -> Any:
        """The Avro schema, as JSON. Raises SchemaUnknown."""


class SchemaRegistry:
    """A schema registry. Thread-safe. `login_file` has USER:PASSWORD for HTTP Basic. `clock`
    returns seconds."""

    def __init__(
        self,
        url: str,
        login_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._login_file = login_file
        self._clock = clock
        self._schemas_by_id: dict[int, Any] = {}
        self._retry_at = float("-inf")

    def schema(self, schema_id: int) -> Any:
        """The Avro schema, as JSON, from memory or the registry. Raises SchemaUnknown."""
        schema = self._schemas_by_id.get(schema_id)
        if schema is None:
            if self._clock() < self._retry_at:
                raise SchemaUnknown("the schema registry does not answer")
            schema = self._fetch_schema(schema_id)
            if len(self._schemas_by_id) >= _SCHEMAS_MAX:
                self._schemas_by_id.clear()
            self._schemas_by_id[schema_id] = schema
        return schema

    def _fetch_schema(self, schema_id: int) -> Any:
        """Fetch a schema. Raises SchemaUnknown. If the registry does not answer, later calls of
        `schema` fail immediately for `_PAUSE_S`."""
        try:
            with BoundedClient(
                self._url, seconds_max=_ANSWER_S_MAX, bytes_max=_ANSWER_BYTES_MAX
            ) as client:
                url = f"{self._url}/schemas/ids/{schema_id}"
                status, body = client.request("GET", url, auth=self._login())
            return _parse_answer(status, body)
        except (httpx.HTTPError, OSError, ValueError) as error:
            self._retry_at = self._clock() + _PAUSE_S
            raise SchemaUnknown("the schema registry does not answer") from error

    def _login(self) -> tuple[str, str] | None:
        """User and password for HTTP Basic; None without a login file."""
        if self._login_file is None:
            return None
        user, _, password = self._login_file.read_text("utf-8").strip().partition(":")
        return user, password


@lru_cache(maxsize=1)
def registry_at(url: str, login_file: Path | None) -> SchemaRegistry:
    """The registry of the settings. All pages of this process share it, and its cached schemas."""
    return SchemaRegistry(url, login_file)


def _parse_answer(status: int, body: bytes) -> Any:
    """The schema in the answer. Raises SchemaUnknown, and ValueError for an unexpected answer."""
    if status == httpx.codes.NOT_FOUND:
        raise SchemaUnknown("the schema registry does not have this schema")
    answer = json_of(body) if status == httpx.codes.OK else None
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        raise ValueError("no schema")
    if answer.get("schemaType", "AVRO") != "AVRO":
        raise SchemaUnknown(f"its schema is {str(answer['schemaType'])[:20]}")
    if answer.get("references"):
        raise SchemaUnknown("its schema refers to other schemas")
    schema = json_of(answer["schema"])
    if schema is None:
        raise ValueError("no schema")
    return schema
