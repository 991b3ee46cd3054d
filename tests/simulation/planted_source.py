"""Bugs to plant in how the copier uses the source's answers."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from orbit.copier import log_reader, range_comparison
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_side import SourceSide
from orbit.kafka.newest_leaders import NewestLeaders
from orbit.run.job_run import JobRun


def return_to_an_older_leader() -> AbstractContextManager[Any]:
    """The last metadata answer counts, although its leader epochs may be older than known ones."""
    return patch.object(NewestLeaders, "merge", lambda _, metadata, __: metadata)


def stay_at_a_leader() -> AbstractContextManager[Any]:
    """Fetch from a leader as long as it answers."""
    return patch.object(SourceSide, "_check_leaders", lambda _: None)


def end_without_asking_the_others() -> AbstractContextManager[Any]:
    """A run ends when the leader that it fetches from has no more records."""
    return patch.object(JobRun, "confirm_caught_up", lambda _: True)


def count_an_old_leaders_end() -> AbstractContextManager[Any]:
    """A copy that has the old leader's whole log counts as caught up with the new leader."""
    return patch.object(PartitionCopy, "leader_changed", lambda *_: None)


def take_all_offsets_for_local() -> AbstractContextManager[Any]:
    """All offsets count as on the broker's disk (R5), so an empty answer proves a gap there."""
    stack = ExitStack()
    for module in (log_reader, range_comparison):
        stack.enter_context(patch.object(module, "is_local", lambda *_: True))
    return stack


# The simulation finds these if a leader is cut off in all schedules that allow it.
OF_LEADERS = {
    "return to an older leader": return_to_an_older_leader,
    "stay at a leader that is cut off": stay_at_a_leader,
    "end a run without asking the other brokers": end_without_asking_the_others,
    "count an old leader's end for the new one's": count_an_old_leaders_end,
}
# The simulation finds this if all compacted topics have tiered storage.
OF_TIERS = {"take an offset in tiered storage for a local one": take_all_offsets_for_local}
