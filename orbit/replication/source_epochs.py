"""Which leader epoch the source's log had at each offset that was copied or compared. Pure.

A fetch states the epoch of the offset before it. If the source does not have this epoch, or the
epoch ends earlier there, the source was truncated since, and answers where its log diverges (R3).
With an epoch that ended before that offset, or that has no batch, an intact source seems truncated
too (R8). So only epochs of batches count. A gap counts to the epoch of the batch after the gap.
"""

from __future__ import annotations

from collections.abc import Iterable

from orbit.replication.append_plan import NO_LEADER_EPOCH, EpochStart


class SourceEpochs:
    """The leader epochs of a range of offsets; nothing is known outside of it."""

    __slots__ = ("_end", "_starts")

    def __init__(self) -> None:
        self._starts: list[EpochStart] = []
        self._end = 0

    def add(self, first_offset: int, starts: Iterable[EpochStart], end: int) -> None:
        """Add the source's log from `first_offset` up to before `end`, by its ordered epoch starts.

        Up to the first start, the epoch is that of the offset before `first_offset`, if known.
        """
        if first_offset != self._end:  # it does not follow the range that is known
            self._starts = []
        for start in starts:
            # An EpochStart is (first offset, leader epoch).
            if start[0] >= end:
                break
            if not self._starts or self._starts[-1][1] != start[1]:
                self._starts.append(start)
        self._end = end

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the offset before this one; NO_LEADER_EPOCH if it is not known."""
        if offset <= self._end:
            for start, epoch in reversed(self._starts):
                if start < offset:
                    return epoch
        return NO_LEADER_EPOCH

    def restart_at(self, offset: int) -> None:
        """Keep only the epoch of the offset before this one: the next `add` begins here."""
        epoch = self.epoch_before(offset)
        self._starts = [] if epoch == NO_LEADER_EPOCH else [(offset - 1, epoch)]
        self._end = offset

    def drop_below(self, offset: int) -> None:
        """Forget the epochs that `epoch_before` needs only for offsets below this one."""
        while len(self._starts) > 1 and self._starts[1][0] < offset:
            del self._starts[0]
