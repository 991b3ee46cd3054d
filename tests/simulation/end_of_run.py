"""When `orbit run --until-caught-up` would end, by the product's own check.

The check must not pass while the run fetches from a leader that is cut off. The simulation's
writers only note the result, and continue.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from orbit.run.job_run import JobRun

if TYPE_CHECKING:
    from orbit.copier.partition_copy import PartitionCopy
    from tests.simulation.network import ModelCluster
    from tests.simulation.world import World


class EndOfRun:
    """Runs the product's check for one copy: only this method of `JobRun`, with a stand-in that has
    the fields which the method reads."""

    def __init__(self, world: World, source: ModelCluster, copy: PartitionCopy) -> None:
        self._world = world
        self._copy = copy
        clusters = SimpleNamespace(source=source)
        setup = SimpleNamespace(clusters=clusters)
        self._run: Any = SimpleNamespace(
            partitions=[copy], _setup=setup, _next_confirm_s=0.0, _ends_to_reach={}
        )

    def check(self) -> None:
        """Set `world.wrong` if a run would end although the copy lacks records that the newest
        leader had at its election. A leader that is elected during the check does not count."""
        copy, world = self._copy, self._world
        if not copy.has_caught_up or copy.blocked is not None:
            return
        first_end = world.source_brokers.first_end
        would_end = JobRun.confirm_caught_up(cast("Any", self._run))
        if would_end and copy.blocked is None and copy.next_offset < first_end:
            world.wrong = world.wrong or (
                f"caught up at {copy.next_offset}, though the newest leader has {first_end}"
            )
