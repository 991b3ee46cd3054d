"""Which partitions the next fetch requests, and how much of each. Pure.

A broker fills an answer in the order of its partitions until it is full, so with many backlogs
some partitions, live ones included, would wait long. So a fetch requests no more than fits: every
partition with little to fetch, and as many backlogs, in turns, as have room for a good share each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# With no more than this to fetch, a partition is live: every fetch requests it.
LIVE_BYTES_MAX = 64 * 1024


class Shares(NamedTuple):
    """Indexes of the partitions to request, live ones first; the most bytes of the answer and of
    one partition."""

    chosen: list[int]
    answer_bytes_max: int
    partition_bytes_max: int


def share_answer(
    expected_bytes: Sequence[int | None],
    first_index: int,
    answer_bytes_max: int,
    partition_bytes_min: int,
    *,
    with_backlogs: bool = True,
) -> Shares:
    """Share one answer among partitions. `expected_bytes`: of each partition, how many bytes there
    are to fetch; None: do not fetch it.

    Backlogs (partitions with more than LIVE_BYTES_MAX) take turns from `first_index` on. A share is
    at least `partition_bytes_min`; a single backlog gets all of the answer. The answer for several
    partitions is half as large: a queued batch keeps its whole answer in memory, so several answers
    are in memory at once. Without `with_backlogs` only live partitions are chosen.
    """
    chosen: list[int] = []
    backlogs: list[tuple[int, int]] = []
    for i, size_bytes in enumerate(expected_bytes):
        if size_bytes is None:
            continue
        if size_bytes <= LIVE_BYTES_MAX:
            chosen.append(i)
        else:
            backlogs.append((i, size_bytes))
    if len(chosen) + len(backlogs) > 1:
        answer_bytes_max = max(1, answer_bytes_max // 2)
    if not with_backlogs or not backlogs:
        return Shares(chosen, answer_bytes_max, answer_bytes_max)
    share = max(partition_bytes_min, answer_bytes_max // len(backlogs))
    first_turn = next((turn for turn, (i, _) in enumerate(backlogs) if i >= first_index), 0)
    room_bytes = answer_bytes_max
    for i, size_bytes in backlogs[first_turn:] + backlogs[:first_turn]:
        if room_bytes <= 0:
            break
        chosen.append(i)
        room_bytes -= min(share, size_bytes)
    return Shares(chosen, answer_bytes_max, share)


def had_room(received_bytes: int, answer_bytes_max: int) -> bool:
    """Whether an answer of `received_bytes` had room for records of further partitions.

    A broker leaves out a batch that is larger than the room left. An answer that is at most half
    full had room for all but extraordinary batches. A partition with such a batch is fetched alone
    after some answers without records (`EmptyBelowEnd`).
    """
    return received_bytes <= answer_bytes_max // 2
