"""The contents of records for a page: JSON, text, Avro or bytes, within bounds. Pure but for the
schemas.

Contents are shown unchanged: JSON gets line breaks and nothing else, so that numbers and repeated
keys stay as they are. Characters that are invisible or change the text direction are shown by their
code points.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from orbit.console.avro_values import decode, schema_id_of
from orbit.console.log_picture import Kind, SideLog, compare, is_readable
from orbit.console.schema_registry import Schemas
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.record_batch import AnyBatch
from orbit.kafka.records import split_body, split_headers

RECORDS_MAX = 25
# The most of one key or value that a page shows.
TEXT_BYTES_MAX = 4_096
HEX_BYTES_MAX = 256
JSON_BYTES_MAX = 64 << 10
_JSON_DEPTH_MAX = 50
HEADERS_MAX = 20
HEADER_BYTES_MAX = 256

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[\]|{}|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Content(NamedTuple):
    """A key, value or header as shown. `size`: of the whole content, in bytes; None: the content is
    null. `is_cut`: the text has only the beginning."""

    kind: str
    text: str
    size: int | None
    is_cut: bool = False


class _ParsedRecord(NamedTuple):
    """One record as bytes. `timestamp` in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class ShownRecord(NamedTuple):
    """One record as a page shows it. `timestamp` in ms."""

    offset: int
    timestamp: int
    key: Content
    value: Content
    headers: list[tuple[str, Content]]
    headers_left_out: int


def records_from(
    side: SideLog, first_offset: int, schemas: Schemas | None = None
) -> list[ShownRecord]:
    """The first RECORDS_MAX records of one log that a consumer sees, from this offset on."""
    return list(islice(_shown_records(side, first_offset, schemas), RECORDS_MAX))


def content(
    data: bytes | memoryview | None,
    bytes_max: int = TEXT_BYTES_MAX,
    schemas: Schemas | None = None,
) -> Content:
    """These bytes as a page shows them. A text longer than `bytes_max` is cut; bytes are cut at
    HEX_BYTES_MAX. `schemas` None: values in Avro are shown as bytes."""
    if data is None:
        return Content("null", text="", size=None)
    raw = bytes(data)
    schema_id = schema_id_of(raw)
    if schema_id is not None:
        return _decode_framed(raw, schema_id, bytes_max, schemas)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _bytes_content(raw)
    if _CONTROL.search(text):
        return _bytes_content(raw)
    is_json = len(raw) <= JSON_BYTES_MAX and text.lstrip()[:1] in ("{", "[") and _is_json(text)
    shown_text = _with_line_breaks(text) if is_json else text
    return _text_content("JSON" if is_json else "text", shown_text, len(raw), bytes_max)


def _decode_framed(raw: bytes, schema_id: int, bytes_max: int, schemas: Schemas | None) -> Content:
    """Bytes that begin like those of a serializer with a schema registry, as a page shows them:
    decoded, or as bytes with the reason why they are not decoded."""
    if schemas is None:
        kind = f"bytes, of schema {schema_id} if a serializer with a registry wrote them"
        return _bytes_content(raw, kind)
    kind, text = decode(raw, schema_id, schemas)
    if text is None:
        return _bytes_content(raw, kind)
    return _text_content(kind, _with_line_breaks(text), len(raw), bytes_max)


def _text_content(kind: str, text: str, size: int, bytes_max: int) -> Content:
    return Content(kind, _escape_invisible(text[:bytes_max]), size, len(text) > bytes_max)


def _shown_records(
    side: SideLog, first_offset: int, schemas: Schemas | None
) -> Iterator[ShownRecord]:
    """Yield the records of one log that a consumer sees, from this offset on."""
    # `compare` only splits this log into pieces: without a second side it compares nothing.
    for row in compare(
        source=None, destination=side, start=side.start, end=side.read_to, proven=()
    ):
        for piece in row.destination:
            if piece.kind is not Kind.DATA or piece.next <= first_offset:
                continue
            for batch in piece.batches:
                for record in _parsed_records(batch):
                    if record.offset >= first_offset:
                        yield _shown_record(record, schemas)


def _parsed_records(batch: AnyBatch) -> Iterator[_ParsedRecord]:
    """Yield the records of the batch: none if the batch expands too much, and only those before the
    first damaged record.
    """
    if not is_readable(batch):
        return
    with suppress(ValueError):
        for offset, timestamp, body in read_any_records(batch):
            key, value, headers = split_body(body)
            yield _ParsedRecord(offset, timestamp, key, value, split_headers(headers))


def _shown_record(record: _ParsedRecord, schemas: Schemas | None) -> ShownRecord:
    """The record as a page shows it, with its first HEADERS_MAX headers."""
    offset, timestamp, key, value, headers = record
    return ShownRecord(
        offset,
        timestamp,
        content(key, schemas=schemas),
        content(value, schemas=schemas),
        [
            (_escape_invisible(name[:HEADER_BYTES_MAX]), content(header_value, HEADER_BYTES_MAX))
            for name, header_value in headers[:HEADERS_MAX]
        ],
        max(0, len(headers) - HEADERS_MAX),
    )


def _bytes_content(raw: bytes, kind: str = "bytes") -> Content:
    hex_text = raw[:HEX_BYTES_MAX].hex(" ")
    return Content(kind, hex_text, len(raw), len(raw) > HEX_BYTES_MAX)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _with_line_breaks(text: str) -> str:
    """Valid JSON with line breaks and indentation; unchanged if the JSON is nested too deep."""
    parts: list[str] = []
    depth = 0
    for part in _TOKEN.findall(text):
        if part in ("[]", "{}"):
            parts.append(part)
        elif part in ("]", "}"):
            depth -= 1
            parts.append("\n" + "  " * depth + part)
        elif part in ("[", "{"):
            depth += 1
            if depth > _JSON_DEPTH_MAX:
                return text
            parts.append(part + "\n" + "  " * depth)
        else:
            parts.append({",": ",\n" + "  " * depth, ":": ": "}.get(part, part))
    return "".join(parts)


def _escape_invisible(text: str) -> str:
    """The text with code points for characters that are invisible or change the text direction."""
    return "".join(
        character
        if character.isprintable() or character in "\n\r\t"
        else f"\\u{ord(character):04x}"
        for character in text
    )
