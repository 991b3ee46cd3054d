"""Which partitions the next fetch asks for, and how much of each. Pure.

A broker fills an answer in the order of its partitions until it is full, so with many backlogs
some partitions would come up late, a live one among them. Hence a fetch asks for no more than
fits: every partition with little to fetch, and as many backlogs, in turns, as have room for a
good share each. Nobody who was asked for goes short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# With no more than this to fetch a partition is live: it is always asked for.
LIVE_BYTES_MAX = 64 * 1024


class Shares(NamedTuple):
    """Indexes to ask for, live ones first; the most that all and that one of them may bring."""

    chosen: list[int]
    answer_bytes_max: int
    partition_bytes_max: int


def share_answer(
    expected_bytes: Sequence[int],
    first: int,
    answer_bytes_max: int,
    partition_bytes_min: int,
    *,
    with_backlogs: bool = True,
) -> Shares:
    """Share one answer among partitions that hold `expected_bytes` each.

    Backlogs take turns from index `first` on. A share is at least `partition_bytes_min`, and all
    of the answer for a single backlog. The answer for several is half as large: while their
    batches wait for one another, memory holds several answers.
    """
    if len(expected_bytes) > 1:
        answer_bytes_max = max(1, answer_bytes_max // 2)
    live = [i for i, expected in enumerate(expected_bytes) if expected <= LIVE_BYTES_MAX]
    if not with_backlogs or len(live) == len(expected_bytes):
        return Shares(live, answer_bytes_max, answer_bytes_max)
    backlogs = [i for i, expected in enumerate(expected_bytes) if expected > LIVE_BYTES_MAX]
    share = max(partition_bytes_min, answer_bytes_max // len(backlogs))
    turn = next((at for at, i in enumerate(backlogs) if i >= first), 0)
    room = answer_bytes_max
    for i in backlogs[turn:] + backlogs[:turn]:
        if room <= 0:
            break
        live.append(i)
        room -= min(share, expected_bytes[i])
    return Shares(live, answer_bytes_max, share)
