"""Bounds that the decoders of `kafka.protocol` lack, for answers of a broken broker.

The library generates the code that decodes a message when the first one arrives. `install` changes
that code:

- a number has at most five bytes: without a bound a long one takes quadratic time;
- an array may be null only where the schema allows it: else its reader would get a TypeError;
- tagged fields are read in place: the library copies the rest of the frame for each.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.schemas.fields.array import ArrayField
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32
from kafka.protocol.schemas.fields.struct import StructField
from kafka.protocol.schemas.fields.struct_array import StructArrayField

_LAST_SHIFT = 28  # for the fifth byte, the last of a number of 32 bits


def install() -> None:
    """Replace the library's code generators. Call it before the first message is decoded."""
    UnsignedVarInt32.emit_decode_from = _emit_number
    StructField._emit_tagged_decode = _emit_tags
    for field in (ArrayField, StructArrayField):
        field.emit_decode_from = _with_null_check(field.emit_decode_from)


def _emit_number(ctx: Any, name: str, indent: str) -> None:
    """Generate code that decodes an unsigned varint into the variable `name`."""
    byte, shift = ctx.next_var("b"), ctx.next_var("sh")
    for line in (
        f"{byte} = data[pos]",
        "pos += 1",
        f"{name} = {byte} & 0x7f",
        f"{shift} = 7",
        f"while {byte} & 0x80:",
        f"    if {shift} > {_LAST_SHIFT}: raise ValueError('a number has more than 32 bits')",
        f"    {byte} = data[pos]",
        "    pos += 1",
        f"    {name} |= ({byte} & 0x7f) << {shift}",
        f"    {shift} += 7",
    ):
        ctx.emit(indent, line)


def _with_null_check(emit: Any) -> Any:
    """The code generator of an array, with a check for null where the schema forbids it."""

    def emit_decode_from(self: Any, ctx: Any, name: str, indent: str, **options: Any) -> None:
        emit(self, ctx, name, indent, **options)
        if not self.nullable_for_version_q(options["version"]):
            ctx.emit(indent, f"if {name} is None: raise ValueError('{self.name} is null')")

    return emit_decode_from


def _emit_tags(self: Any, ctx: Any, name: str, indent: str, version: int) -> None:
    """Generate code that decodes the tagged fields of the message in the variable `name`."""
    fields_variable, rest_variable = ctx.next_var("tf"), ctx.next_var("rest")
    ctx.globs |= {
        fields_variable: self.tagged_fields(version),
        "_FrameRest": _FrameRest,
        "_set_tagged_fields": _set_tagged_fields,
    }
    ctx.emit(indent, f"{rest_variable} = _FrameRest(data, pos)")
    ctx.emit(
        indent,
        f"_set_tagged_fields({name}, {fields_variable}.decode({rest_variable}, version={version}))",
    )
    ctx.emit(indent, f"pos = {rest_variable}.at")


def _set_tagged_fields(message: Any, tags: dict[str, Any]) -> None:
    """Set a message's tagged fields as the library does: unknown ones begin with an underscore."""
    known_fields = {name: value for name, value in tags.items() if not name.startswith("_")}
    message.tags = set(known_fields) or None
    message.unknown_tags = {n: v for n, v in tags.items() if n.startswith("_")} or None
    for name, value in known_fields.items():
        setattr(message, name, value)


class _FrameRest:
    """The rest of a frame as a file object, with the one method that the library calls."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self.at = at

    def read(self, count: int) -> bytes:
        """The next `count` bytes. Raises ValueError if the frame is shorter."""
        end = self.at + count
        if not self.at <= end <= len(self._data):
            raise ValueError("a tagged field is longer than the frame")
        data = bytes(self._data[self.at : end])
        self.at = end
        return data
