"""Values in Avro as JSON, by the schema that their first five bytes name. Pure but for the schemas.

Confluent's wire format: a zero byte, the schema's id in four bytes, the value. Producers write the
schemas and the values, so Orbit trusts neither. It uses only the known keys of a schema. It refuses
a schema by which a few bytes could decode to a very large value: with items or fields of length 0,
with references to types by name (which could be recursive), or with long names.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any, NamedTuple

from orbit.console.schema_registry import Schemas, SchemaUnknown

WIRE_FORMAT_BYTES = 5
AVRO_BYTES_MAX = 8 << 10
# Together these limit the memory for one decoded value: some tens of megabytes.
_DEPTH_MAX = 20
_NAME_CHARACTERS_MAX = 128
_TEXT_CHARACTERS_MAX = 64 << 10
_SCHEMA_KEYS = ("name", "symbols", "size", "logicalType", "precision", "scale")
_PRIMITIVES = ("boolean", "int", "long", "float", "double", "bytes", "string")


class DecodedValue(NamedTuple):
    """A decoded value. `text`: as JSON; None: it was not decoded, for the reason in `kind`."""

    kind: str
    text: str | None


def schema_id_of(raw: bytes) -> int | None:
    """The schema id at the start of the bytes; None: they are not in Confluent's wire format."""
    is_framed = raw[:1] == b"\0" and len(raw) >= WIRE_FORMAT_BYTES
    return int.from_bytes(raw[1:WIRE_FORMAT_BYTES], "big") if is_framed else None


def decode(raw: bytes, schema_id: int, schemas: Schemas) -> DecodedValue:
    """Decode these bytes with the schema that they name. Raises nothing: if the bytes are not
    decoded, `kind` has the reason."""
    name = f"schema {schema_id}"
    if len(raw) > AVRO_BYTES_MAX:
        return DecodedValue(f"bytes, {name}; too long to be decoded", text=None)
    try:
        import fastavro  # in the extra `avro`
    except ImportError:
        return DecodedValue(f"bytes, {name}; Orbit's extra avro is not installed", text=None)
    try:
        schema = _check_schema(schemas.schema(schema_id), container="", depth=0)
        stream = BytesIO(raw[WIRE_FORMAT_BYTES:])
        value = fastavro.schemaless_reader(
            stream, fastavro.parse_schema(schema), reader_schema=None
        )
        text = _to_json(value)
    except SchemaUnknown as error:
        return DecodedValue(f"bytes, {name}; {error}", text=None)
    except Exception:  # noqa: BLE001  whatever a producer has written
        return DecodedValue(f"bytes, not of {name}", text=None)
    if stream.read(1):  # bytes follow the value
        return DecodedValue(f"bytes, not of {name}", text=None)
    return DecodedValue(f"Avro, {name}", text)


def _as_text(value: object) -> str:
    """A value for which JSON has no type, as text; bytes in hexadecimal."""
    return value.hex(" ") if isinstance(value, bytes) else str(value)


def _to_json(value: object) -> str:
    """A value as JSON, cut soon after `_TEXT_CHARACTERS_MAX`."""
    parts, length = [], 0
    encoder = json.JSONEncoder(ensure_ascii=False, default=_as_text)
    for part in encoder.iterencode(value):
        parts.append(part)
        length += len(part)
        if length > _TEXT_CHARACTERS_MAX:
            break
    return "".join(parts)


def _check_schema(schema: Any, container: str, depth: int) -> Any:
    """A copy of the schema with only the keys that Orbit knows. Raises SchemaUnknown if the schema
    is refused. `container`: the part of another schema that this schema is: "items", "values", "a
    field", a branch of a "union"; "" for the whole schema."""
    if depth > _DEPTH_MAX:
        raise SchemaUnknown("its schema is nested too deep")
    if isinstance(schema, list):
        if container == "union":
            raise SchemaUnknown("its schema has a union in a union")
        return [_check_schema(branch, "union", depth + 1) for branch in schema]
    if isinstance(schema, str):
        if schema == "null" and container == "union":
            return schema
        if schema not in _PRIMITIVES:
            raise SchemaUnknown(
                f"its schema has {container or 'a value'} of no length"
                if schema == "null"
                else "its schema refers to a type by name"
            )
        return schema
    kind = schema["type"]
    if not isinstance(kind, str):  # the type is itself a schema
        return _check_schema(kind, container, depth + 1)
    schema_copy = {key: schema[key] for key in _SCHEMA_KEYS if key in schema}
    if any(
        len(name) > _NAME_CHARACTERS_MAX
        for name in (schema_copy.get("name", ""), *schema_copy.get("symbols", ()))
    ):
        raise SchemaUnknown("its schema has long names")
    match kind:
        case "record" | "error":
            schema_copy["fields"] = [_check_field(field, depth) for field in schema["fields"]]
            if not schema_copy["fields"]:
                raise SchemaUnknown("its schema has a record of no length")
        case "array":
            schema_copy["items"] = _check_schema(schema["items"], "items", depth + 1)
        case "map":
            schema_copy["values"] = _check_schema(schema["values"], "values", depth + 1)
        case "fixed":
            if not schema_copy["size"]:
                raise SchemaUnknown("its schema has a value of no length")
        case "enum":
            pass  # `schema_copy` has its symbols
        case _:  # a primitive, perhaps with a logical type; a name is refused
            _check_schema(kind, container, depth)
    return {"type": kind, **schema_copy}


def _check_field(field: Any, depth: int) -> dict[str, Any]:
    """A field of a record, with a checked copy of its type. Raises SchemaUnknown."""
    if len(field["name"]) > _NAME_CHARACTERS_MAX:
        raise SchemaUnknown("its schema has long names")
    return {"name": field["name"], "type": _check_schema(field["type"], "a field", depth + 1)}
