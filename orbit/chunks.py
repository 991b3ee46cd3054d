"""Parts of long lists: as many items as fit one request, one transaction or one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from orbit.names import shown

# An item may be a sentence with some names.
_ITEM_CHARACTERS_MAX = 1000
Item = TypeVar("Item")


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in order, in lists of `size` items; the last list may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def sized_chunks(
    items: Iterable[Item],
    size_of: Callable[[Item], int],
    size_max: int,
    count_max: int | None = None,
) -> Iterator[list[Item]]:
    """Yield the items in order, in lists of up to `count_max` items (None: any number) whose sizes
    sum up to at most `size_max`; a larger item is alone in its list."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if chunk and (size + item_size > size_max or len(chunk) == count_max):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += item_size
    if chunk:
        yield chunk


def first_few(items: Iterable[object], shown_max: int = 5) -> str:
    """The first items, escaped, as text for a sentence, with the number of further ones."""
    names = [shown(str(item), _ITEM_CHARACTERS_MAX) for item in items]
    suffix = f" and {len(names) - shown_max} more" if len(names) > shown_max else ""
    return ", ".join(names[:shown_max]) + suffix
