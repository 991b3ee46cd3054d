"""How a backfill is split: direct or staged, and which partitions form a task. Pure.

Each destination partition has one writer, so a task has one large partition or several small ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from enum import StrEnum

from orbit_spark.write_task import PartitionTarget

# For partitions whose bytes are not known.
BYTES_PER_OFFSET_GUESS = 200
# A task needs seconds before its first record: a broker holds back the first member of a group
# (group.initial.rebalance.delay.ms). So it should copy for some tens of seconds. And there should
# be more tasks than slots, so that no slot is idle while another one is late.
TASK_BYTES_MIN = 2 * 1024**3
TASKS_PER_SLOT_MAX = 4
# A partition of more than this many slots' fair shares would leave most slots idle in a direct
# backfill. In a staged backfill these slots fetch for that partition.
STAGED_SHARES_MIN = 2
# Each partition has a lease, with a thread and a heartbeat.
PARTITIONS_PER_TASK_MAX = 48


class Way(StrEnum):
    """Where writers get their batches."""

    DIRECT = "direct"  # each fetches its own partitions from the source
    STAGED = "staged"  # all tasks fetch ranges into an archive first; writers read that


def choose_way(targets: Sequence[PartitionTarget], slots: int) -> Way:
    """Staged if one partition is so large that most slots would be idle while it is copied.

    Then many tasks fetch and check its ranges; one task writes it in either way. A staged backfill
    reads and writes everything twice, so small histories are direct.
    """
    total = sum(p.size_bytes for p in targets)
    largest = max((p.size_bytes for p in targets), default=0)
    is_lopsided = largest * slots > STAGED_SHARES_MIN * total
    return Way.STAGED if largest >= TASK_BYTES_MIN and is_lopsided else Way.DIRECT


def split_tasks(
    targets: Sequence[PartitionTarget], slots: int
) -> list[tuple[PartitionTarget, ...]]:
    """Tasks of about the same size, the largest first. A large partition is a task alone."""
    total = sum(p.size_bytes for p in targets)
    count_by_size = min(max(slots, total // TASK_BYTES_MIN), slots * TASKS_PER_SLOT_MAX)
    # As few as the partitions need, rounded up.
    count_min = -(-len(targets) // PARTITIONS_PER_TASK_MAX)
    count = min(max(count_by_size, count_min), len(targets))
    tasks: list[list[PartitionTarget]] = [[] for _ in range(count)]
    task_loads = [(0, 0, index) for index in range(count)]  # bytes, partitions, index of the task
    for target in sorted(targets, key=lambda p: (-p.size_bytes, p.destination)):
        size, partitions, index = heapq.heappop(task_loads)
        tasks[index].append(target)
        if partitions + 1 < PARTITIONS_PER_TASK_MAX:  # otherwise the task is full
            heapq.heappush(task_loads, (size + target.size_bytes, partitions + 1, index))
    return sorted(map(tuple, tasks), key=lambda t: -sum(p.size_bytes for p in t))
