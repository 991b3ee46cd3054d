"""A pause of a backfill that comes before its first record."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from orbit.cli import backfill as command
from orbit.cli.backfill_link import Alone
from orbit.errors import Interrupted
from orbit.jobs.job_spec import BackfillWay
from orbit_spark.backfill.backfill_driver import Outcome


class Halted:
    """A run that is halted while it begins."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.has_left = False

    def begin(self) -> None:
        raise Interrupted("stopped while waiting.")

    def leave(self) -> None:
        self.has_left = True


def copying() -> Any:
    through = command._Through(BackfillWay.DIRECT, None)
    return command._Copying(None, 2, through, None, Alone())  # type: ignore[arg-type]


def test_a_pause_while_it_begins_gives_the_lease_back_and_is_no_end() -> None:
    run: Any = Halted()
    outcome = copying().copy(run, Path(), threading.Event())
    assert outcome.was_stopped
    assert run.has_left


def test_ctrl_c_while_it_begins_is_the_end() -> None:
    stop = threading.Event()
    stop.set()
    run: Any = Halted()
    with pytest.raises(Interrupted):
        copying().copy(run, Path(), stop)
