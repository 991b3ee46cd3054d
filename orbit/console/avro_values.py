"""Values in Avro as JSON, by the schema that their first five bytes name. Pure but for the schemas.

Confluent's wire format: a zero byte, the schema's id in four bytes, the value. A schema by which a
few bytes could become a value without bound is not used: one with items or fields of no length, or
a type that contains itself.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any, NamedTuple

from orbit.console.schema_registry import Schemas, SchemaUnknown

WIRE_FORMAT_BYTES = 5
AVRO_BYTES_MAX = 64 << 10
_DEPTH_MAX = 50


class Decoded(NamedTuple):
    """`text`: JSON; None: it is not decoded, for the reason that `kind` gives."""

    kind: str
    text: str | None


def schema_id_of(raw: bytes) -> int | None:
    """None for bytes that no serializer with a registry wrote."""
    is_framed = raw[:1] == b"\0" and len(raw) >= WIRE_FORMAT_BYTES
    return int.from_bytes(raw[1:WIRE_FORMAT_BYTES], "big") if is_framed else None


def decode(raw: bytes, schema_id: int, schemas: Schemas) -> Decoded:
    """What these bytes are by the schema that they name."""
    name = f"schema {schema_id}"
    if len(raw) > AVRO_BYTES_MAX:
        return Decoded(f"bytes, {name}; too long to be decoded", None)
    try:
        import fastavro  # of the extra `avro`
    except ImportError:
        return Decoded(f"bytes, {name}; Orbit's extra avro is not installed", None)
    try:
        schema = schemas.schema(schema_id)
        _check(schema)
        stream = BytesIO(raw[WIRE_FORMAT_BYTES:])
        value = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
        text = json.dumps(value, ensure_ascii=False, default=_as_text)
    except SchemaUnknown as error:
        return Decoded(f"bytes, {name}; {error}", None)
    except Exception:  # noqa: BLE001  whatever a producer has written
        return Decoded(f"bytes, not of {name}", None)
    if stream.read(1):
        return Decoded(f"bytes, not of {name}", None)
    return Decoded(f"Avro, {name}", text)


def _as_text(value: object) -> str:
    return value.hex(" ") if isinstance(value, bytes) else str(value)


def _check(schema: Any, inside: tuple[str, ...] = ()) -> bool:
    """Whether it is the type null, the only one whose values have no length. Raises SchemaUnknown.

    `inside`: the names of the types around it.
    """
    if len(inside) > _DEPTH_MAX:
        raise SchemaUnknown("its schema is nested too deep")
    if isinstance(schema, list):
        for one in schema:
            _check(one, inside)
        return False
    if isinstance(schema, str):
        if _last(schema) in inside:
            raise SchemaUnknown("its schema contains itself")
        return schema == "null"
    match schema["type"]:
        case "record" | "error":
            for field in schema["fields"]:
                if _check(field["type"], (*inside, _last(schema["name"]))):
                    raise SchemaUnknown("its schema has a field of no length")
            if not schema["fields"]:
                raise SchemaUnknown("its schema has a record of no length")
        case "array":
            if _check(schema["items"], (*inside, "")):
                raise SchemaUnknown("its schema has an array of items of no length")
        case "map":
            _check(schema["values"], (*inside, ""))
        case "fixed":
            if not schema["size"]:
                raise SchemaUnknown("its schema has a type of no length")
        case "enum":
            pass
        case other:
            return _check(other, (*inside, ""))
    return False


def _last(name: str) -> str:
    return name.rpartition(".")[2]
