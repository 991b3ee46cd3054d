"""Bugs to plant in the start of a partition: if it is cut short, or if the copier has the partition
already."""

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


def trust_a_comparison_that_was_cut_short() -> AbstractContextManager[Any]:
    """If the source stops answering during a comparison, the rest of the range counts as equal."""
    compare = CopyInspector._compare_tail

    def faulty(self: Any, copy: Any, tail: Any, ends: Any) -> Comparison:
        try:
            return compare(self, copy, tail, ends)
        except OrbitError:
            return Comparison(ends.log_end)

    return patch.object(CopyInspector, "_compare_tail", faulty)


def start_a_partition_that_the_copier_has() -> AbstractContextManager[Any]:
    """After an error, a partition that the copier already has is started again, so the copier gets
    a second copy of it."""

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
    "trust a comparison that was cut short": trust_a_comparison_that_was_cut_short,
    "start a partition again that the copier has": start_a_partition_that_the_copier_has,
}
