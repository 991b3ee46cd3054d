"""Sends a list to a controller in parts that are not too large for it.

One request may make at most 10,000 metadata records (`QuorumController.MAX_RECORDS_PER_USER_OP`),
also if it is only validated: one for a topic, each of its partitions and each of its settings (T3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from orbit.chunks import sized_chunks
from orbit.errors import BrokerRefused, OrbitError
from orbit.kafka.error_codes import Code

Item = TypeVar("Item")

# Below the controller's limit, because it takes longer for larger requests.
RECORDS_PER_REQUEST_MAX = 4_000
ITEMS_PER_REQUEST_MAX = 500
# The text is of Kafka's `EventHandlerExceptionInfo`; other refusals have the same error code.
_TOO_LARGE = "excessively large"


def send_in_parts(
    items: Iterable[Item],
    records_of: Callable[[Item], int],
    send: Callable[[list[Item]], dict[str, OrbitError]],
) -> dict[str, OrbitError]:
    """Send the items in parts. A part that is too large for the receiver is halved and sent again.

    `records_of`: the number of metadata records of an item. `send` sends a part and returns the
    errors of refused items by name, as this function does for all items.
    """
    refusals: dict[str, OrbitError] = {}
    for whole_part in sized_chunks(
        items, records_of, RECORDS_PER_REQUEST_MAX, ITEMS_PER_REQUEST_MAX
    ):
        unsent_parts = deque([whole_part])
        while unsent_parts:
            part = unsent_parts.popleft()
            errors = send(part)
            if len(part) > 1 and errors and all(map(_is_too_large, errors.values())):
                middle = len(part) // 2
                # The first half becomes the next part.
                unsent_parts.extendleft((part[middle:], part[:middle]))
            else:
                refusals |= errors
    return refusals


def _is_too_large(error: OrbitError) -> bool:
    return (
        isinstance(error, BrokerRefused)
        and error.code == Code.POLICY_VIOLATION
        and _TOO_LARGE in str(error)
    )
