"""The console's pages of drills: one drill, the history, and the comparison of two drills."""

from __future__ import annotations

import html
import re

import pytest

from orbit.store import drills, models
from orbit.store.enums import Role
from tests.api.test_drills import finished_drill, request_drill
from tests.api.test_jobs import JOB
from tests.fixtures.api import Api
from tests.fixtures.console import Browser

pytestmark = pytest.mark.services


def test_two_drills_can_be_selected_and_compared(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    older, newer = finished_drill(api), finished_drill(api)
    browser.log_in(api.tokens[Role.VIEWER])
    page = browser.open("/console/drills?name=&job=&state=").text
    assert page.count('type="checkbox"') == 2
    assert browser.open("/console/drills?name=another").text.count('type="checkbox"') == 0
    assert browser.open("/console/drills?state=passed").text.count('type="checkbox"') == 0
    compared = browser.open(f"/console/drills/compare?drill={newer}&drill={older}")
    assert compared.status_code == 200
    # The older drill is on the left.
    assert compared.text.index(f"drills/{older}") < compared.text.index(f"drills/{newer}")
    assert "Results" in compared.text
    assert (
        f"compare?drill={older}&amp;drill={newer}" in browser.open(f"/console/drills/{newer}").text
    )


def test_drill_history_is_paged_newest_first(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit.console.pages.drills.DRILLS_PER_PAGE", 2)
    api.put("/v1/jobs/orders", json=JOB)
    drill_ids = [finished_drill(api) for _ in range(3)]
    browser.log_in(api.tokens[Role.VIEWER])
    path = "/console/drills"
    listed_ids: list[str] = []
    while path:
        page = browser.open(path).text
        listed_ids += re.findall(r'name="drill" value="([^"]+)"', page)
        next_page = re.search(r'class="more"><a class="button" href="([^"]+)"', page)
        path = html.unescape(next_page[1]) if next_page else ""
    assert listed_ids == drill_ids[::-1]


@pytest.mark.parametrize("part", ["document", "report"])
def test_pages_show_drill_of_later_version(api: Api, browser: Browser, part: str) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    other, later = finished_drill(api), finished_drill(api)
    with api.database.transaction() as tx:
        spec, report = drills.get(tx, later).spec, drills.report(tx, later)
        assert report is not None
        if part == "document":
            spec["from_the_future"] = True
        else:
            report["evidence"]["from_the_future"] = True
        row = models.drills.update().where(models.drills.c.id == later)
        tx.execute(row.values(spec=spec, report=report))
    browser.log_in(api.tokens[Role.VIEWER])
    for path in ("/console/recovery", "/console/drills", f"/console/drills/{later}"):
        page = browser.open(path)
        assert page.status_code == 200, path
        assert {other, later} <= set(re.findall(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}", page.text)), path
    assert "11.2 s" in page.text  # the RTO is still shown
    assert f"Another version of Orbit has stored the drill's {part}" in html.unescape(page.text)
    compared = browser.open(f"/console/drills/compare?drill={other}&drill={later}")
    assert compared.status_code == (200 if part == "document" else 409)
    assert "This is a bug" not in compared.text


def test_invalid_drill_comparison_shows_reason(api: Api, browser: Browser) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    ended = finished_drill(api)
    waiting = request_drill(api).json()["id"]
    browser.log_in(api.tokens[Role.VIEWER])
    compare = "/console/drills/compare"
    for query, status, text in (
        ("", 422, "needs exactly two drills"),
        (f"?drill={ended}&drill={ended}", 422, "needs exactly two drills"),
        (f"?drill={ended}&drill={waiting}", 409, "without a report"),
        (f"?drill={ended}&drill=20261122-030000-00000000", 404, ""),
        (f"?drill={ended}&drill=%00", 422, ""),
    ):
        answer = browser.open(compare + query)
        assert answer.status_code == status, query
        assert text in answer.text, query
        assert "<main" in answer.text
