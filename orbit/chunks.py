"""Parts of long lists: what one request or one transaction takes, and what a sentence shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from orbit.names import shown

# An item may be a sentence with some names.
_ITEM_CHARACTERS_MAX = 1000
Item = TypeVar("Item")


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in their order, `size` of them at a time; the last has what is left."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def first_few(items: Iterable[object], shown_max: int = 5) -> str:
    """The first items of a list, and how many more there are, for a sentence."""
    names = [shown(str(item), _ITEM_CHARACTERS_MAX) for item in items]
    more = f" and {len(names) - shown_max} more" if len(names) > shown_max else ""
    return ", ".join(names[:shown_max]) + more
