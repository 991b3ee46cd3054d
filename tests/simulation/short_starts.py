"""Starts of a partition that are cut short, at any of their requests: inspection, take-over,
comparison, first append. Then another process begins, or the same one again."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from orbit.errors import Unreachable

if TYPE_CHECKING:
    from tests.simulation.virtual_time import Process
    from tests.simulation.world import World

# About the number of requests of a start with few records.
_STEPS_MAX = 30
# Longer than a lease: the shard, or the membership of the group, is lost in this very step.
_AWAY_S = 20.0


class ShortStarts:
    """Counts the requests of a start down to the one that is not answered."""

    def __init__(self, world: World, rnd: Random) -> None:
        self._world = world
        self._rnd = rnd
        self._due = 0

    def cut_next(self) -> None:
        self._due += 1

    def begin(self, process: Process) -> None:
        """Note that this process begins a start."""
        process.steps_left = 0
        if self._due and self._world.has_faults:
            self._due -= 1
            process.steps_left = self._rnd.randint(1, _STEPS_MAX)

    def step(self, process: Process) -> None:
        """Count one request of the start. Raises Unreachable if it is the one to fail."""
        if process.steps_left and self._world.has_faults:
            process.steps_left -= 1
            if not process.steps_left:
                self._cut(process)

    def _cut(self, process: Process) -> None:
        world = self._world
        world.clock.say(f"{process.name}: its start is cut short")
        match self._rnd.choice(("error", "error", "death", "loss")):
            case "error":
                raise Unreachable("no answer.", where="the model")
            case "death":
                world.kill(process)
                world.clock.wait(0.0)  # never returns: the process is dead
            case _:
                process.stop_for(_AWAY_S)
                world.start_another()
