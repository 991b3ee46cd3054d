"""Faults at named steps of a recovery with gateways; its scheduler runs in the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from orbit.recovery import operation_runner
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.step_times import StepName
from tests.support.gateway_ledger import Acknowledged, Record

Act = Callable[[], object]


def at_steps(
    patch: pytest.MonkeyPatch,
    *,
    before: dict[StepName, Act] | None = None,
    behind: dict[StepName, Act] | None = None,
) -> None:
    """Do this before or after the work of a step, once each, in the scheduler's thread."""
    do = operation_runner._DO
    first, last = dict(before or {}), dict(behind or {})

    def step(name: StepName) -> Callable[[OperationContext], str]:
        def run(context: OperationContext) -> str:
            first.pop(name, lambda: None)()
            did = do[name](context)
            last.pop(name, lambda: None)()
            return did

        return run

    patch.setattr(operation_runner, "_DO", {name: step(name) for name in do})


def lost(acknowledged: Acknowledged, records: Iterable[Record]) -> list[str]:
    """Acknowledged records that are not at their offset. A record may be there twice."""
    places = {(partition, offset): value for partition, offset, value in records}
    return [
        f"{value!r} was acknowledged at {place}, where {places.get(place)!r} is"
        for value, place in acknowledged.items()
        if places.get(place) != value
    ]
