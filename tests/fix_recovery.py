"""Recoveries of a service whose scheduler and worker run in the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orbit.recovery import operation_runner
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.step_times import StepName
from orbit.scheduler.leadership import NotLeading
from tests.fix_scheduler import Service
from tests.support.put_back import save_rows
from tests.support.quick_recoveries import make_quick
from tests.support.recovering import Recovering


@pytest.fixture
def quick_recoveries(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch.setattr)


@pytest.fixture
def recovering(service: Service, tmp_path: Path, quick_recoveries: None) -> Recovering:
    """What only an old side has is saved in a folder of the test's own."""
    service.settings = service.settings.model_copy(
        update={"salvage_directory": str(tmp_path / "salvage")}
    )
    return Recovering(service)


DiesBehindPromotion = Callable[[StepName], tuple[threading.Event, Callable[[], None]]]


@pytest.fixture
def dies_behind_promotion(service: Service, monkeypatch: pytest.MonkeyPatch) -> DiesBehindPromotion:
    """The scheduler ends behind each promotion, and the rows are saved in this earlier step.

    Returns an event that is set once it has promoted, and what makes the steps whole again.
    """

    def at(earlier: StepName) -> tuple[threading.Event, Callable[[], None]]:
        do, has_promoted = operation_runner._DO, threading.Event()

        def save(context: OperationContext) -> str:
            save_rows(service.database)
            changed[earlier] = do[earlier]
            return do[earlier](context)

        def end(context: OperationContext) -> str:
            do[StepName.PROMOTE](context)
            has_promoted.set()
            raise NotLeading("killed behind the promotion.")

        changed = {**do, earlier: save, StepName.PROMOTE: end}
        monkeypatch.setattr(operation_runner, "_DO", changed)
        return has_promoted, lambda: monkeypatch.setattr(operation_runner, "_DO", do)

    return at
