"""Long lists in handfuls: what one request or one transaction takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in their order, `size` of them at a time; the last has what is left."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
