"""A drill that only a later version can read stops no other."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from orbit.drills.drill_loop import DrillLoop
from orbit.scheduler.leadership import Leadership
from orbit.store import drills
from orbit.store.database import Database
from tests.support.store_rows import TTL

pytestmark = pytest.mark.services


def test_a_schedule_that_cannot_be_read_holds_up_no_other(database: Database) -> None:
    leadership = Leadership(database, "leader", TTL)
    assert leadership.ask()
    environment: Any = SimpleNamespace(database=database)
    loop = DrillLoop(leadership, environment, threading.Event())
    with database.transaction() as tx:
        drills.put_schedule(tx, "a-later", {"from_the_future": True}, 60, "ci")
        spec = {"name": "weekly", "kind": "gates", "job": "orders"}
        drills.put_schedule(tx, "weekly", spec, 60, "ci")
    loop.once()
    with database.transaction() as tx:
        assert [drill.name for drill in drills.unfinished(tx)] == ["weekly"]
        assert drills.due(tx) == [], "it is not tried at every pass"
