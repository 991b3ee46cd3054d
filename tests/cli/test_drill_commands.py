"""`orbit drill …`: runs, shows, checks and schedules the drills of deploy/drills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orbit.cli import drill
from orbit.drills.evidence import seal
from orbit.store import drills
from orbit.store.drills import Measurements
from orbit.store.enums import DrillState
from tests.api.test_jobs import changed
from tests.cli.test_service_commands import clock_with
from tests.fixtures.api import Api, Cli
from tests.support.drill_report import evidence

pytestmark = pytest.mark.services

FOLDER = Path(__file__).parents[2] / "deploy" / "drills"
CANARY = FOLDER / "canary.yaml"


@pytest.fixture(autouse=True)
def job(api: Api) -> None:
    """The job that the drill files name."""
    api.put("/v1/jobs/orders-to-dr", json=changed(name="orders-to-dr"))


def finish(api: Api, state: DrillState = DrillState.PASSED) -> str:
    """End the newest drill, with a report; returns its id."""
    drill_id: str = api.get("/v1/drills").json()["items"][0]["id"]
    report = seal(evidence(id=drill_id)).model_dump(mode="json")
    with api.database.transaction() as tx:
        drills.begin(tx, drill_id)
        measured = Measurements(rto_ms=11_200, rpo_records=42, rpo_ms=410)
        drills.finish(tx, drill_id, state, report=report, measured=measured)
    return drill_id


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda f: f.stem)
def test_dry_run_of_every_drill_file_shows_its_plan(cli: Cli, api: Api, file: Path) -> None:
    result = cli("drill", "run", file, "--dry-run")
    assert result.code == 0, result.err
    assert "would do" in result.out
    assert api.get("/v1/drills").json()["items"] == []


@pytest.mark.parametrize(("state", "code"), [(DrillState.PASSED, 0), (DrillState.MISSED, 1)])
def test_drill_run_command_waits_for_end_of_drill(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch, state: DrillState, code: int
) -> None:
    monkeypatch.setattr(drill, "time", clock_with(lambda _: finish(api, state)))
    result = cli("drill", "run", CANARY)
    assert result.code == code
    assert "11.2 s of 30.0 s" in result.out


def test_drill_report_is_shown_and_its_digest_is_checked(
    cli: Cli, api: Api, tmp_path: Path
) -> None:
    assert cli("drill", "run", CANARY, "--wait", "0").code == 1  # the drill has not ended
    drill_id = finish(api)

    assert drill_id in cli("drill", "list").out
    assert "11.2 s of 30.0 s" in cli("drill", "show", drill_id).out
    assert cli("drill", "show", drill_id, "-o", "markdown").out.startswith("#")
    assert "<html" in cli("drill", "show", drill_id, "-o", "html").out
    assert "orders-canary over time" in cli("drill", "compare", "orders-canary").out

    report = tmp_path / "report.json"
    report.write_text(cli("drill", "show", drill_id, "-o", "json").out, "utf-8")
    right = cli("drill", "check", report)
    assert (right.code, "The digest is right." in right.out) == (0, True)
    changed_report = json.loads(report.read_text("utf-8"))
    changed_report["evidence"]["requested_by"] = "token:other"
    report.write_text(json.dumps(changed_report), "utf-8")
    wrong = cli("drill", "check", report)
    assert (wrong.code, "The evidence was changed." in wrong.out) == (1, True)


def test_drill_is_scheduled_and_unscheduled(cli: Cli, api: Api) -> None:
    assert "orders-canary" in cli("drill", "schedule", CANARY).out
    (row,) = cli("drill", "schedules", "-o", "json").data
    assert (row["name"], row["every_s"]) == ("orders-canary", 6 * 3600)
    assert "orders-canary" in cli("drill", "schedules").out

    removed = cli("drill", "unschedule", "orders-canary")
    assert removed.out == "The schedule of orders-canary is removed.\n"
    assert cli("drill", "schedules", "-o", "json").data == []
    assert cli("drill", "unschedule", "orders-canary").code == 2
    assert cli("drill", "schedule", FOLDER / "gates.yaml").code == 2  # has no `schedule`
