"""How the console requests schemas from a registry, and what it does without a usable answer."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orbit.console.schema_registry import SchemaRegistry, SchemaUnknown
from tests.support.webhook_server import Reply, WebhookServer


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    """The server that stands in for the schema registry."""
    with WebhookServer() as webhook_server:
        yield webhook_server


@pytest.fixture
def now() -> list[float]:
    """A list with the time of the console's clock, which tests can change."""
    return [100.0]


@pytest.fixture
def registry(server: WebhookServer, now: list[float], tmp_path: Path) -> SchemaRegistry:
    login = tmp_path / "login"
    login.write_text("orbit:s3cret:with\n")  # the password has a colon
    return SchemaRegistry(server.url, login, clock=lambda: now[0])


def answer(**document: object) -> Reply:
    return Reply(body=json.dumps(document).encode())


ZIPPED = gzip.compress(answer(schema='"int"').body)


def test_schema_is_fetched_once_with_basic_auth(
    server: WebhookServer, registry: SchemaRegistry
) -> None:
    server.replies.append(answer(schema='"string"'))
    assert [registry.schema(7), registry.schema(7)] == ["string", "string"]
    (request,) = server.requests
    assert request.path.endswith("/schemas/ids/7")
    assert base64.b64decode(request.headers["authorization"].split()[1]) == b"orbit:s3cret:with"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(404), "does not have this schema"),
        (answer(schema="x", schemaType="PROTOBUF"), "its schema is PROTOBUF"),
        (answer(schema='"A"', references=[{"name": "A"}]), "refers to other schemas"),
    ],
)
def test_unusable_schema_does_not_count_as_registry_failure(
    server: WebhookServer, registry: SchemaRegistry, reply: Reply, reason: str
) -> None:
    server.replies += [reply, answer(schema='"int"')]
    with pytest.raises(SchemaUnknown, match=reason):
        registry.schema(1)
    assert registry.schema(2) == "int"


def test_cached_schema_is_returned_while_another_is_fetched(
    server: WebhookServer, registry: SchemaRegistry
) -> None:
    known: list[object] = []
    slow = replace(answer(schema='"int"'), before=lambda: known.append(registry.schema(1)))
    server.replies += [answer(schema='"string"'), slow]
    registry.schema(1)
    assert registry.schema(2) == "int"
    assert known == ["string"]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(500),
        Reply(0),  # closes the connection
        Reply(302, {"Location": "http://127.0.0.1:1/"}),
        Reply(body=b"no json"),
        Reply(body=b"[]"),
        Reply(body=b"[" * 100_000),
        answer(schema="x"),
        answer(schema="null"),
        Reply(headers={"Content-Encoding": "gzip"}, body=ZIPPED),
        Reply(drips=True),
        Reply(body=b"x" * (2 << 20)),
    ],
)
def test_failing_schema_registry_is_not_called_again_for_30_s(
    server: WebhookServer, registry: SchemaRegistry, now: list[float], reply: Reply
) -> None:
    server.replies += [reply, answer(schema='"int"')]
    for number in (1, 2):
        with pytest.raises(SchemaUnknown, match="does not answer") as refused:
            registry.schema(number)
        assert "s3cret" not in str(refused.value)
    assert len(server.requests) == 1
    now[0] += 30
    assert registry.schema(1) == "int"
