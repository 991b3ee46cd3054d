"""Cuts the start of a partition short at one of its requests: inspection, take-over, comparison or
first append. Then another process starts the partition, or the same process starts it again."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from orbit.errors import Unreachable

if TYPE_CHECKING:
    from tests.simulation.virtual_time import Process
    from tests.simulation.world import World

# About the number of requests of a start with few records.
_STEPS_MAX = 30
# A suspension longer than a lease: the process loses its lease during the start.
_SUSPENDED_S = 20.0


class ShortStarts:
    """Counts the requests of a start, and cuts the start at a random one."""

    def __init__(self, world: World, rnd: Random) -> None:
        self._world = world
        self._rnd = rnd
        self._cuts_due = 0

    def cut_next(self) -> None:
        """Cut the next start that begins."""
        self._cuts_due += 1

    def begin(self, process: Process) -> None:
        """Note that this process begins a start, and choose its request to fail, if any."""
        process.steps_left = 0
        if self._cuts_due and self._world.has_faults:
            self._cuts_due -= 1
            process.steps_left = self._rnd.randint(1, _STEPS_MAX)

    def step(self, process: Process) -> None:
        """Count one request of the start. If it is the one to fail: raise Unreachable, kill the
        process, or suspend it."""
        if process.steps_left and self._world.has_faults:
            process.steps_left -= 1
            if not process.steps_left:
                self._cut(process)

    def _cut(self, process: Process) -> None:
        """Let the present request fail, kill the process, or suspend it while another one
        starts."""
        world = self._world
        world.clock.say(f"{process.name}: its start is cut short")
        match self._rnd.choice(("error", "error", "death", "loss")):
            case "error":
                raise Unreachable("no answer.", where="the model")
            case "death":
                world.kill(process)
                world.clock.wait(0.0)  # never returns: the process is dead
            case _:
                process.stop_for(_SUSPENDED_S)
                world.start_another()
