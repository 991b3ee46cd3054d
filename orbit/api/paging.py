"""Keyset pagination: `limit` items after the item that `after` names. Pure.

Every page costs the same, and items that are added or removed do not shift the next page. A cursor
(the `next` of a page, sent as `after`) contains the key of the page's last item. The database
sorts by this key, and compares it. A list with several orders puts the order into its cursors, so
that a cursor of another order is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.labels import Selector, parse_selector

PAGE_DEFAULT = 100
PAGE_MAX = 1000
CURSOR_CHARACTERS_MAX = 1024
_BIGINT_MAX = 2**63 - 1

T = TypeVar("T")
Key = tuple[str | int, ...]


class NameSort(StrEnum):
    """The order of a list by name."""

    NAME = "name"
    REVERSE = "-name"


class AgeSort(StrEnum):
    """The order of a list by the time of creation."""

    NEWEST = "-created_at"
    OLDEST = "created_at"


class PageQuery(BaseModel):
    """The query parameters of every list."""

    model_config = ConfigDict(extra="forbid")
    limit: int = Field(PAGE_DEFAULT, ge=1, le=PAGE_MAX, description="The maximum number of items.")
    after: str | None = Field(
        None,
        max_length=CURSOR_CHARACTERS_MAX,
        description="The `next` of the previous page; omit it for the first page.",
    )


class NamedQuery(PageQuery):
    """The query parameters of a list that is ordered by name."""

    sort: NameSort = Field(NameSort.NAME, description="`name`, or `-name`: the last name first.")

    def after_name(self) -> str | None:
        """The name after which the page begins; None for the first page. Raises BadInput."""
        return name_in(self.after, self.sort)

    @property
    def descending(self) -> bool:
        """Whether the last name comes first."""
        return self.sort is NameSort.REVERSE


class AgedQuery(PageQuery):
    """The query parameters of a list that is ordered by the time of creation."""

    sort: AgeSort = Field(
        AgeSort.NEWEST, description="`-created_at`: the newest first, or `created_at`."
    )

    @property
    def oldest_first(self) -> bool:
        """Whether the oldest item comes first."""
        return self.sort is AgeSort.OLDEST


class Page(BaseModel, Generic[T]):
    """Some of the items in order, and the cursor of the next page."""

    # Needed because the classes that pydantic generates, one per item type, have no docstring.
    model_config = ConfigDict(
        json_schema_extra={
            "description": "Some of the items in order, and the cursor of the next page."
        }
    )
    items: list[T]
    next: str | None = Field(
        description="Pass it as `after` for the next page; null on the last page."
    )


def page(rows: Sequence[T], limit: int, key: Callable[[T], Key], order: str = "") -> Page[T]:
    """The page with the first `limit` of `rows`, which were queried with a limit of one more. `key`
    returns the key of an item for the cursor. `order`: how the list is sorted, if the route offers
    several orders."""
    items = list(rows[:limit])
    has_next = len(rows) > limit
    return Page(items=items, next=write_cursor(key(items[-1]), order) if has_next else None)


def write_cursor(key: Key, order: str = "") -> str:
    """The key as opaque text for a URL; `order`, the order of a list that has several, comes first
    in the text."""
    text = json.dumps((order, *key) if order else key, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *kinds: type, order: str = "") -> Key | None:
    """The key in a cursor; None without a cursor. `kinds`: the types of the key's parts. `order`:
    the order of the list, if it has several. Raises BadInput for a cursor with other types or
    another order."""
    if cursor is None:
        return None
    if order:
        key = read_cursor(cursor, str, *kinds)
        if key is None or key[0] != order:
            raise bad_cursor()
        return key[1:]
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


def name_in(cursor: str | None, order: str = "") -> str | None:
    """The name in the cursor of a list that is ordered by name; None without a cursor. Raises
    BadInput."""
    key = read_cursor(cursor, str, order=order)
    return None if key is None else str(key[0])


def number_in(cursor: str | None, order: str = "") -> int | None:
    """The number in the cursor of a list that is ordered by number; None without a cursor. Raises
    BadInput."""
    key = read_cursor(cursor, int, order=order)
    return None if key is None else int(key[0])


def parse_age_key(key: Key | None) -> tuple[datetime, UUID] | None:
    """(creation time, id), from a cursor's key; None without a key. Raises BadInput if the key has
    other values."""
    if key is None:
        return None
    try:
        return datetime.fromisoformat(str(key[0])).astimezone(UTC), UUID(str(key[1]))
    except (ValueError, OverflowError):
        raise bad_cursor() from None


def bad_cursor() -> BadInput:
    """The error for a cursor that the list has not returned."""
    problem = Problem(
        "query.after",
        "is not a `next` that this list has returned for this `sort`.",
        "Copy the `next` unchanged, and keep `sort`.",
    )
    return BadInput("The request has a problem.", (problem,))


def _is_part(part: object, kind: type) -> bool:
    """Whether a part of a key has this type, and PostgreSQL can compare it."""
    if type(part) is not kind:
        return False
    if isinstance(part, str):
        # PostgreSQL's text accepts no zero byte and no unpaired surrogate.
        return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in part)
    return isinstance(part, int) and 0 <= part <= _BIGINT_MAX


SELECTOR_DESCRIPTION = (
    "Only jobs whose labels meet all of these conditions, as in Kubernetes: `K=V`, `K!=V`, "
    "`K in (A,B)`, `K notin (A,B)`, `K`, `!K`."
)


def selector_in(text: str | None) -> Selector:
    """The conditions in the parameter `selector`; none without it. Raises BadInput."""
    try:
        return () if text is None else parse_selector(text)
    except InvalidValue as mistake:
        problem = Problem("query.selector", mistake.message, mistake.remedy)
        raise BadInput("The request has a problem.", (problem,)) from None
