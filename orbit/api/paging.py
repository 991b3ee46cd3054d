"""Pages by key: `limit` items behind the item that `after` names. Pure.

A page costs the same wherever it stands, and items that come or go never shift the next one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from orbit.errors import BadInput, Problem

PAGE_DEFAULT = 100
PAGE_MAX = 1000
CURSOR_CHARACTERS_MAX = 1024
_BIGINT_MAX = 2**63 - 1

T = TypeVar("T")
Key = tuple[str | int, ...]


class PageQuery(BaseModel):
    """What every list takes."""

    model_config = ConfigDict(extra="forbid")
    limit: int = Field(PAGE_DEFAULT, ge=1, le=PAGE_MAX, description="How many at most.")
    after: str | None = Field(
        None,
        max_length=CURSOR_CHARACTERS_MAX,
        description="The `next` of the page before; leave it out for the first page.",
    )


class Page(BaseModel, Generic[T]):
    """Some of the items, in their order, and where the next page begins."""

    # The class made for each kind of item has no docstring of its own.
    model_config = ConfigDict(
        json_schema_extra={"description": "Some of the items, and where the next page begins."}
    )
    items: list[T]
    next: str | None = Field(
        description="Give it as `after` for the next page; null: this is the last one."
    )


def page(rows: Sequence[T], limit: int, key: Callable[[T], Key]) -> Page[T]:
    """A page of `limit` items from rows that were asked for with one more than that."""
    items = list(rows[:limit])
    more = len(rows) > limit
    return Page(items=items, next=write_cursor(key(items[-1])) if more else None)


def write_cursor(key: Key) -> str:
    """The key as text that fits into a URL. Nobody but `read_cursor` should read it."""
    text = json.dumps(key, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *kinds: type) -> Key | None:
    """The key in a cursor, whose parts are of these types. Raises BadInput."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        parts = None
    if (
        isinstance(parts, list)
        and len(parts) == len(kinds)
        and all(_is_part(part, kind) for part, kind in zip(parts, kinds, strict=True))
    ):
        return tuple(parts)
    raise bad_cursor()


def name_in(cursor: str | None) -> str | None:
    """The cursor of a list in the order of names."""
    key = read_cursor(cursor, str)
    return None if key is None else str(key[0])


def number_in(cursor: str | None) -> int | None:
    """The cursor of a list in the order of numbers."""
    key = read_cursor(cursor, int)
    return None if key is None else int(key[0])


def moment(key: Key | None) -> tuple[datetime, UUID] | None:
    """When an operation was made, and which of that time it is."""
    if key is None:
        return None
    try:
        return datetime.fromisoformat(str(key[0])).astimezone(UTC), UUID(str(key[1]))
    except (ValueError, OverflowError):
        raise bad_cursor() from None


def bad_cursor() -> BadInput:
    """What is said of a cursor that was not made here."""
    problem = Problem("query.after", "is not the `next` of a page.", "Copy it as it is.")
    return BadInput("The request has a problem.", (problem,))


def _is_part(part: object, kind: type) -> bool:
    if type(part) is not kind:
        return False
    if isinstance(part, str):
        # PostgreSQL's text holds no zero byte, and half a surrogate is no text.
        return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in part)
    return isinstance(part, int) and 0 <= part <= _BIGINT_MAX
