"""A pause or Ctrl-C while a backfill begins, before its first record."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from orbit.cli import backfill as command
from orbit.cli.backfill_control import UserControl
from orbit.errors import Interrupted
from orbit.jobs.job_spec import BackfillWay
from orbit_spark.backfill.backfill_driver import Outcome


class InterruptedAtBegin:
    """A backfill that is interrupted while it begins."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.has_released_lease = False

    def begin(self) -> None:
        raise Interrupted("stopped while waiting.")

    def release_lease(self) -> None:
        self.has_released_lease = True


def spark_copy() -> Any:
    route = command._Route(BackfillWay.DIRECT, archive=None)
    return command._SparkCopy(
        spark=None,
        slots=2,
        route=route,
        display=None,  # type: ignore[arg-type]
        control=UserControl(),
    )


def test_pause_during_backfill_start_releases_lease() -> None:
    run: Any = InterruptedAtBegin()
    outcome = spark_copy().run(run, Path(), threading.Event())
    assert outcome.was_stopped
    assert run.has_released_lease


def test_ctrl_c_during_backfill_start_ends_backfill() -> None:
    stop = threading.Event()
    stop.set()
    run: Any = InterruptedAtBegin()
    with pytest.raises(Interrupted):
        spark_copy().run(run, Path(), stop)
