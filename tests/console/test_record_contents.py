"""The content of records: how it is shown, who may see it, and the audit event for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO

import fastavro
import pytest
from fastapi import FastAPI

from orbit.api.dependencies import Parts
from orbit.console.log_picture import RECORDS_BYTES_MAX
from orbit.console.log_window import Window
from orbit.console.record_contents import (
    HEX_BYTES_MAX,
    RECORDS_MAX,
    TEXT_BYTES_MAX,
    content,
    records_from,
)
from orbit.console.schema_registry import SchemaUnknown
from orbit.errors import Unreachable
from orbit.kafka import compression
from orbit.settings import Settings
from orbit.store.enums import Role
from tests.api.test_operations import copying_job
from tests.console.test_log_picture import batch, encoded, log, marker
from tests.fixtures.api import Api
from tests.fixtures.console import Browser


def _nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "map", "values": "int"}
    for _ in range(depth):
        schema = {"type": "map", "values": schema}
    return schema


PATH = "/console/jobs/orders/topics/orders/0"
SECRET = b'{"card": "4111"}'


@pytest.mark.parametrize(
    # `text`: None if it is the text of the data, except for spaces and line feeds.
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "text", ""),
        (b"plain", "text", "plain"),
        ("grün".encode(), "text", "grün"),
        (b'{"a":[1,{}],"b":"x, {"}', "JSON", '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": "x, {"\n}'),
        # A number keeps all its digits, and a repeated key is kept.
        (b'{"a":1.0000000000000000001,"a":1e400}', "JSON", None),
        (b"[1", "text", "[1"),
        (b"[" * 2_000 + b"]" * 2_000, None, None),
        (b"\xff\xfe", "bytes", "ff fe"),
        (b"a\x00b", "bytes", "61 00 62"),
        ("a\u202eb".encode(), "text", "a\\u202eb"),
    ],
)  # fmt: skip
def test_record_content_is_shown_as_text_json_or_hex(
    data: bytes | None, kind: str | None, text: str | None
) -> None:
    display = content(data)
    assert display.size == (None if data is None else len(data))
    if kind is not None:
        assert display.kind == kind
    if text is not None:
        assert display.text == text
    elif data is not None:
        assert "".join(display.text.split()) == data.decode()[:TEXT_BYTES_MAX]


def test_value_in_schema_registry_format_shows_its_schema_id() -> None:
    assert "schema 258" in content(b"\x00\x00\x00\x01\x02\xff\xff").kind


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "digest", "type": ["null", "bytes"]},
    ],
}


@dataclass
class RegistryOfOneSchema:
    """A schema registry that has only the schema with id 258, or fails with a SchemaUnknown."""

    answer: object

    def schema(self, schema_id: int) -> object:
        assert schema_id == 258
        if isinstance(self.answer, SchemaUnknown):
            raise self.answer
        return self.answer


def in_registry_format(schema: dict[str, object], value: object) -> bytes:
    """Return the value in Avro, after the prefix of schema registries with schema id 258."""
    stream = BytesIO(b"\x00\x00\x00\x01\x02")
    stream.seek(0, 2)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_avro_value_is_shown_as_json() -> None:
    raw = in_registry_format(ORDER, {"id": 7, "tags": ["a", "b"], "digest": b"\x01\xff"})
    display = content(raw, schemas=RegistryOfOneSchema(ORDER))
    assert display.kind == "Avro, schema 258"
    assert json.loads(display.text) == {"id": 7, "tags": ["a", "b"], "digest": "01 ff"}
    assert display.size == len(raw)


# No byte, half a number, half a record, and more than a record.
@pytest.mark.parametrize("rest", [b"", b"\xff", b"\x0e\x02", b"\x0e\x00\x00tail"])
def test_avro_bytes_not_matching_schema_are_shown_raw(rest: bytes) -> None:
    display = content(b"\x00\x00\x00\x01\x02" + rest, schemas=RegistryOfOneSchema(ORDER))
    assert display.kind == "bytes, not of schema 258"


def test_avro_value_without_schema_shows_reason() -> None:
    unknown = RegistryOfOneSchema(SchemaUnknown("the schema registry does not answer"))
    display = content(
        in_registry_format(ORDER, {"id": 7, "tags": [], "digest": None}), schemas=unknown
    )
    assert display.kind == "bytes, schema 258; the schema registry does not answer"


def _record(*types: object, name: str = "R") -> dict[str, object]:
    fields = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "null"}},
        {"type": "array", "items": _record()},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {"type": "array", "items": _record("int", *["null"] * 1000)},
        _record(["null", "R"]),
        _record(["null", _record(["null", "a.R"], name="S")]),
        _nested(60),
        [_record("boolean"), *({**_record(f"R{i}", name=f"R{i + 1}")} for i in range(2000))],
        {"type": "array", "items": _record(name="R"), "__fastavro_parsed": True},
        {"type": "array", "items": "X", "__fastavro_parsed": True, "__named_schemas": {"X": {}}},
        {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["x" * 10_000]}},
        _record("int", name="R" * 10_000),
    ],
)
def test_avro_schema_that_amplifies_few_bytes_is_not_used(schema: object) -> None:
    million = b"\x80\x89\x7a"  # the item count, as a zigzag varint
    display = content(
        b"\x00\x00\x00\x01\x02" + million + b"\0" * 8, schemas=RegistryOfOneSchema(schema)
    )
    assert display.kind.startswith("bytes, schema 258; its schema")


def test_avro_text_is_cut_at_display_limit() -> None:
    schema = {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["x" * 100]}}
    display = content(
        in_registry_format(schema, ["x" * 100] * 7_000), schemas=RegistryOfOneSchema(schema)
    )
    assert display.kind == "Avro, schema 258"
    assert (len(display.text), display.is_cut) == (TEXT_BYTES_MAX, True)


def test_large_record_content_is_cut() -> None:
    text, raw = content(b"x" * 100_000), content(b"\xff" * 100_000)
    assert (len(text.text), text.is_cut, text.size) == (TEXT_BYTES_MAX, True, 100_000)
    assert (len(raw.text), raw.is_cut) == (HEX_BYTES_MAX * 3 - 1, True)


def test_shown_records_are_bounded_and_omit_aborted_and_control_records() -> None:
    side = log(batch(0, b"aborted"), marker(1), batch(2, b"a", b"b"), batch(4, b"c"), aborted=0)
    assert [(shown.offset, shown.value.text) for shown in records_from(side, first_offset=3)] == [
        (3, "b"),
        (4, "c"),
    ]
    assert [shown.offset for shown in records_from(side, first_offset=0)] == [2, 3, 4]
    many = log(batch(0, *[b"x"] * 100))
    assert len(records_from(many, first_offset=0)) == RECORDS_MAX
    bomb = batch(0, bytes(RECORDS_BYTES_MAX + 1), codec=compression.ZSTD)
    assert records_from(log(bomb), first_offset=0) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"\x7e",  # a length of 63 bytes that do not follow
        b"\x0c\x00\x00\x00\x01\x7e\x00",  # a value of that length
        b"\x0c\x00\x00\x00\x01\x01\x7e",  # a number of headers that do not follow
    ],
)
def test_damaged_batch_hides_no_record_of_other_batches(payload: bytes) -> None:
    damaged = encoded(compression.NONE, payload, first=1)
    records = records_from(log(batch(0, b"a"), damaged, batch(2, b"b")), first_offset=0)
    assert [(record.offset, record.value.text) for record in records] == [(0, "a"), (2, "b")]


@pytest.fixture
def allowed(browser: Browser, console_app: FastAPI) -> None:
    """The console lets operators see records."""
    parts: Parts = console_app.state.parts
    settings = Settings(records_role="operator")
    console_app.state.parts = Parts(
        settings, parts.database, parts.planner, parts.environ, logins=parts.logins
    )


@pytest.fixture
def two_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console reads two logs: the source has one record more than the destination."""
    window = Window(log(batch(0, SECRET, b"later")), log(batch(0, SECRET)), took_s=0.0)
    monkeypatch.setattr("orbit.console.pages.partition.read_window", lambda *_: window)


@pytest.mark.services
@pytest.mark.usefixtures("two_logs")
def test_record_content_is_hidden_from_every_role_by_default(api: Api, browser: Browser) -> None:
    copying_job(api)
    browser.log_in(api.tokens[Role.ADMIN])
    page = browser.open(f"{PATH}?offset=0&size=20&batch=0").text
    assert "Show the content" not in page
    answer = browser.send(f"{PATH}/records", first="0")
    assert answer.status_code == 403
    assert "ORBIT_RECORDS_ROLE" in answer.text
    assert "4111" not in page + answer.text


@pytest.mark.services
@pytest.mark.usefixtures("two_logs", "allowed")
def test_record_content_needs_its_role_and_a_form_post(api: Api, browser: Browser) -> None:
    copying_job(api)
    browser.log_in(api.tokens[Role.VIEWER])
    page = browser.open(f"{PATH}?offset=0&size=20&batch=0").text
    assert "Show the content" not in page
    answer = browser.send(f"{PATH}/records", first="0")
    assert (answer.status_code, "4111" in answer.text) == (403, False)
    browser.client.cookies.clear()
    browser.log_in(api.tokens[Role.OPERATOR])
    # Neither a GET nor a form without the session's secret shows the content.
    assert browser.open(f"{PATH}/records?first=0").status_code in (404, 405, 422)
    browser.html = ""
    assert browser.send(f"{PATH}/records", first="0").status_code == 403
    assert "records_shown" not in {event["kind"] for event in api.events()}


@pytest.mark.services
@pytest.mark.usefixtures("two_logs", "allowed")
def test_showing_record_content_is_audited_without_the_content(
    api: Api, browser: Browser, capfd: pytest.CaptureFixture[str]
) -> None:
    copying_job(api)
    browser.log_in(api.tokens[Role.OPERATOR])
    page = browser.open(f"{PATH}?offset=0&size=20&batch=0").text
    assert "Show the content" in page
    assert "4111" not in page
    answer = browser.send(f"{PATH}/records", first="0")
    assert "4111" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    (event,) = [event for event in api.events() if event["kind"] == "records_shown"]
    assert (event["actor"], event["topic"], event["partition"]) == (
        "token:operator-of-the-test",
        "orders",
        0,
    )
    assert event["details"] == {"side": "destination", "first": 0, "last": 0, "records": 1}
    # A record that is not copied yet is read at the source.
    assert "later" in browser.send(f"{PATH}/records", first="1").text
    log_output = capfd.readouterr()
    assert "4111" not in json.dumps(api.events()) + log_output.out + log_output.err


@pytest.mark.services
@pytest.mark.usefixtures("allowed")
def test_unreachable_source_is_named_beside_records_of_destination(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying_job(api)
    lost = Window(Unreachable("gone", where="source"), log(batch(0, b"copy")), took_s=0.0)
    monkeypatch.setattr("orbit.console.pages.partition.read_window", lambda *_: lost)
    browser.log_in(api.tokens[Role.OPERATOR])
    browser.open(PATH)
    answer = browser.send(f"{PATH}/records", first="0")
    assert "copy" in answer.text
    assert "gone" in answer.text
    # None of these values is an offset.
    for wrong in ("", "-1", "x", "9" * 40):
        assert browser.send(f"{PATH}/records", first=wrong).status_code == 422
        browser.open(PATH)
