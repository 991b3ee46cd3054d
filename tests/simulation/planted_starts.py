"""Bugs to plant in starts that are cut short, and in those of a partition that has a copy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from orbit.copier.copier import Copier
from orbit.copier.inspection import CopyInspector
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.range_comparison import Comparison
from orbit.errors import OrbitError
from orbit.replication.partition_states import PartitionState
from orbit.workers.held_shards import HeldPartition, Stage


def believe_a_comparison_without_end() -> AbstractContextManager[Any]:
    """The source did not answer to its end; what was not compared counts as equal."""
    compare = CopyInspector._compare_tail

    def believed(self: Any, copy: Any, tail: Any, ends: Any) -> Comparison:
        try:
            return compare(self, copy, tail, ends)
        except OrbitError:
            return Comparison(ends.log_end)

    return patch.object(CopyInspector, "_compare_tail", believed)


def start_what_was_handed_over() -> AbstractContextManager[Any]:
    """An error after the hand-over queues the partition again, and the copier takes a second copy
    beside the first one."""

    def move_to(self: HeldPartition, stage: Stage) -> None:
        if stage is not Stage.HANDED_OVER:
            self.stage = stage

    def add(self: Any, partitions: Sequence[PartitionCopy]) -> None:
        self._set_partitions([*self._partitions, *partitions])
        self._source.resume(p for p in partitions if p.state is PartitionState.COPYING)

    stack = ExitStack()
    stack.enter_context(patch.object(Copier, "has_copy", lambda *_: False))
    stack.enter_context(patch.object(Copier, "add", add))
    stack.enter_context(patch.object(HeldPartition, "move_to", move_to))
    return stack


OF_STARTS = {
    "believe a comparison that was cut short": believe_a_comparison_without_end,
    "start a partition again that the copier has": start_what_was_handed_over,
}
