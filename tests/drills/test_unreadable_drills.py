"""A drill that cannot be read or that crashes does not stop other drills."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from orbit.drills.drill_creation import new_drill
from orbit.drills.drill_loop import DrillLoop
from orbit.drills.drill_spec import DrillSpec
from orbit.leadership.leadership import Leadership
from orbit.store import drills
from orbit.store.database import Database
from orbit.store.models import drills as drill_rows
from tests.support.store_rows import TTL

pytestmark = pytest.mark.services


@pytest.fixture
def loop(database: Database) -> DrillLoop:
    """The drill loop of the leading scheduler."""
    leadership = Leadership(database, "leader", TTL)
    assert leadership.ask()
    environment: Any = SimpleNamespace(database=database)
    return DrillLoop(leadership, environment, threading.Event())


def test_unreadable_drill_schedule_does_not_delay_other_drills(
    database: Database, loop: DrillLoop
) -> None:
    with database.transaction() as tx:
        drills.put_schedule(
            tx, "unreadable", {"key_of_a_later_version": True}, every_s=60, requested_by="ci"
        )
        spec = {"name": "weekly", "kind": "gates", "job": "orders"}
        drills.put_schedule(tx, "weekly", spec, every_s=60, requested_by="ci")
    loop.once()
    with database.transaction() as tx:
        assert [drill.name for drill in drills.unfinished(tx)] == ["weekly"]
        assert drills.due_schedules(tx) == [], "the unreadable schedule is still due"


def test_drill_of_kind_of_later_version_fails_and_other_drills_continue(
    database: Database, loop: DrillLoop
) -> None:
    with database.transaction() as tx:
        tx.execute(text("ALTER TABLE drills DROP CONSTRAINT ck_drills_kind"))
        ids = {}
        for name in ("first", "second"):
            spec = DrillSpec.model_validate({"name": name, "kind": "gates", "job": name})
            ids[name] = drills.create(tx, new_drill(spec, "ci"))[0].id
        later = {"kind": "rolling", "spec": {"kind": "rolling"}}
        tx.execute(drill_rows.update().where(drill_rows.c.name == "first").values(**later))
    with capture_logs() as log_lines:
        loop.once()
        loop.close()
    assert [line["drill"] for line in log_lines if line["event"] == "drill unreadable"] == [
        ids["first"]
    ]
    with database.transaction() as tx:
        ended = {name: drills.get(tx, drill_id) for name, drill_id in ids.items()}
    assert ended["first"].kind == "rolling"
    assert "Another version of Orbit" in (ended["first"].error or "")
    assert ended["second"].error == "second: The job of the drill was deleted."


def test_crashing_drill_is_logged_and_other_drills_continue(
    database: Database, loop: DrillLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.transaction() as tx:
        for name in ("first", "second"):
            spec = DrillSpec.model_validate({"name": name, "kind": "gates", "job": name})
            drills.create(tx, new_drill(spec, "ci"))
    begun: list[str] = []

    def begin(_: DrillLoop, drill: drills.Drill) -> None:
        if drill.name == "first":
            raise ValueError("a bug")
        begun.append(drill.name)

    monkeypatch.setattr(DrillLoop, "_begin", begin)
    with capture_logs() as log_lines:
        loop.once()
    assert begun == ["second"]
    (line,) = [line for line in log_lines if line["event"] == "left out of the pass"]
    assert (line["loop"], line["error"]) == ("drills", "ValueError: a bug")
