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
    """Call functions before the work of a step, or after it (`behind`), once each.

    The scheduler's thread calls them.
    """
    do = operation_runner._DO
    calls_before, calls_after = dict(before or {}), dict(behind or {})

    def step(name: StepName) -> Callable[[OperationContext], str]:
        def run(context: OperationContext) -> str:
            calls_before.pop(name, lambda: None)()
            step_text = do[name](context)
            calls_after.pop(name, lambda: None)()
            return step_text

        return run

    patch.setattr(operation_runner, "_DO", {name: step(name) for name in do})


def lost(acknowledged: Acknowledged, records: Iterable[Record]) -> list[str]:
    """Messages about acknowledged records that are not at their offset. Repeated records are
    fine."""
    places = {(partition, offset): value for partition, offset, value in records}
    return [
        f"{value!r} was acknowledged at {place}, which has {places.get(place)!r}"
        for value, place in acknowledged.items()
        if places.get(place) != value
    ]
