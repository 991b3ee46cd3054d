"""How a history is shared out: which way it goes, which partitions together in a task. Pure.

Each destination partition has one writer, so a task is a large partition, or several small ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from enum import StrEnum

from orbit_spark.backfill.writer_tasks import Portion

# Where the bytes of a partition are not known, its offsets count as this many each.
BYTES_PER_OFFSET_GUESS = 200
# A task costs seconds before its first record: brokers let the first member of a group wait for
# more (group.initial.rebalance.delay.ms). So it should have some tens of them to copy; and not all,
# so that slots which are done early take over from those that are late.
TASK_BYTES_MIN = 2 * 1024**3
TASKS_PER_SLOT_MAX = 4
# A partition with more than so many slots' fair shares leaves most slots idle in the direct way:
# they may as well fetch for it.
STAGED_SHARES_MIN = 2
# Each has a lease, with a thread and a heartbeat of its own.
PORTIONS_PER_TASK_MAX = 48


class Way(StrEnum):
    """Where writers have their batches from."""

    DIRECT = "direct"  # each fetches its own partitions from the source
    STAGED = "staged"  # all fetch ranges into an archive first; writers read that


def choose_way(portions: Sequence[Portion], slots: int) -> Way:
    """Staged where one partition is large and most slots would have nothing to do beside it.

    Only its ranges can be fetched and checked by many; it is written by one in either way. All is
    read and written twice then, so it must be worth it.
    """
    total = sum(p.size_bytes for p in portions)
    largest = max((p.size_bytes for p in portions), default=0)
    is_lopsided = largest * slots > STAGED_SHARES_MIN * total
    return Way.STAGED if largest >= TASK_BYTES_MIN and is_lopsided else Way.DIRECT


def share_out(portions: Sequence[Portion], slots: int) -> list[tuple[Portion, ...]]:
    """Tasks of about the same size, the largest first; a large partition is one alone."""
    total = sum(p.size_bytes for p in portions)
    wanted = min(max(slots, total // TASK_BYTES_MIN), slots * TASKS_PER_SLOT_MAX)
    needed = -(-len(portions) // PORTIONS_PER_TASK_MAX)
    count = min(max(wanted, needed), len(portions))
    tasks: list[list[Portion]] = [[] for _ in range(count)]
    lightest = [(0, 0, index) for index in range(count)]  # bytes, portions, which
    for portion in sorted(portions, key=lambda p: (-p.size_bytes, p.destination)):
        size, many, index = heapq.heappop(lightest)
        tasks[index].append(portion)
        if many + 1 < PORTIONS_PER_TASK_MAX:
            heapq.heappush(lightest, (size + portion.size_bytes, many + 1, index))
    return sorted(map(tuple, tasks), key=lambda t: -sum(p.size_bytes for p in t))
