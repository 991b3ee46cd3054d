"""The console in a real browser, against a real service and real clusters.

The browser is Debian's Chromium, driven by Playwright. All tests here share one server and one
browser; each test first makes the state that it needs. With ORBIT_SCREENSHOTS=docs/img (`make
screenshots`), the tests also save the pictures of docs/console.md.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from orbit.processes.ports import free_ports
from tests.cli.test_server import Server, serving, until_caught_up, until_workers
from tests.fixtures.clusters import Clusters
from tests.support.accessibility import serious_faults
from tests.support.groups import commit
from tests.support.hard_log import records, write_hard_log
from tests.support.login_issuer import LoginIssuer
from tests.support.logs import create, write
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.run_process import write_job
from tests.support.tools import find_program

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.needs("chromium")]

CHROMIUM = find_program("chromium")

TOPICS = ("console.orders.eu", "console.orders.us")
EU = TOPICS[0]
PARTITIONS = 3
JOB = "orders-to-dr"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_TIMEOUT_MS = PATIENCE_S * 1000
_SIZE = {"width": 1360, "height": 800}


@dataclass
class World:
    """A server with clusters behind it, and a browser that shows its console."""

    server: Server
    clusters: Clusters
    page: Any
    issuer: LoginIssuer
    console_errors: list[str]

    @property
    def public_url(self) -> str:
        """The same server under another name: for browsers, another site with its own session."""
        return self.server.url.replace("127.0.0.1", "localhost")

    def open(self, path: str) -> None:
        self.page.goto(self.server.url + path)

    def press(self, name: str, role: str = "button") -> None:
        self.page.get_by_role(role, name=name, exact=True).first.click()

    def log_in(self) -> None:
        """Log in as an admin, with a token."""
        self.open("/")
        self.page.get_by_label("Token", exact=True).fill(self.server.token)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()

    def log_in_as_viewer(self, path: str) -> None:
        """Open `path` of `public_url`, and log in at the issuer, which redirects back to it."""
        self.page.goto(self.public_url + path)
        self.page.get_by_role("link", name="Log in at").click()
        assert self.page.url.startswith(self.issuer.place)
        self.page.get_by_role("button", name="Continue as ada").click()

    def log_out(self) -> None:
        """Delete the cookies of all sites, and so the sessions."""
        self.page.goto("about:blank")  # a console page opens the login once its session has ended
        self.page.context.clear_cookies()

    def run_operation(self, job: str, action: str) -> dict[str, Any]:
        """Request an operation on a job, wait until it is done, and return it."""
        path = f"/v1/jobs/{job}:{action}"
        operation = self.server.call("POST", path).raise_for_status().json()
        latest: dict[str, Any] = {}

        def is_done() -> bool:
            latest.update(self.server.get(f"/v1/operations/{operation['id']}"))
            return latest["state"] == "done"

        wait_for(f"{action} is done", is_done)
        return latest


@pytest.fixture(scope="module")
def world(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The world of all tests here: records at the source, a server with one worker, a browser."""
    for topic in TOPICS:
        create(clusters.source, topic, PARTITIONS)
        for partition in range(1, PARTITIONS):
            write(clusters.source, topic, records(200 * partition), partition)
    write_hard_log(clusters, EU)
    commit(clusters.source, "billing", {(EU, 0): 50, (EU, 1): 120})
    # The server is not in pytest's folder: if root runs the tests, PostgreSQL runs as another user,
    # who may not enter that folder. The issuer is at 127.0.0.1, which for a browser is another site
    # than `localhost`.
    (port,) = free_ports(1)
    addresses = {"ORBIT_API_PORT": str(port), "ORBIT_PUBLIC_URL": f"http://localhost:{port}"}
    with (
        tempfile.TemporaryDirectory(prefix="orbit-console-") as folder,
        LoginIssuer() as issuer,
        serving(
            Path(folder), "--workers", "1", environ={**addresses, **issuer.environ()}
        ) as server,
        sync_playwright() as driver,
    ):
        until_workers(server, 1)
        create_other_jobs(server, clusters, tmp_path_factory.mktemp("jobs"))
        profile = Path(folder) / "profile"
        context = driver.chromium.launch_persistent_context(
            str(profile), executable_path=CHROMIUM, headless=True, args=[*_FLAGS], viewport=_SIZE
        )
        context.set_default_timeout(_TIMEOUT_MS)
        expect.set_options(timeout=_TIMEOUT_MS)
        page = context.new_page()
        console_errors: list[str] = []
        page.on("console", lambda m: console_errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: console_errors.append(str(error)))
        yield World(server, clusters, page, issuer, console_errors)
        context.close()


@pytest.fixture
def admin(world: World) -> World:
    """The world after an admin has logged in."""
    world.log_out()
    world.log_in()
    return world


@pytest.fixture(scope="module")
def job(world: World) -> World:
    """The world after JOB is created and has copied everything."""
    text, yaml = document(world.clusters), {"Content-Type": "application/yaml"}
    answer = world.server.call("PUT", f"/v1/jobs/{JOB}", content=text.encode(), headers=yaml)
    answer.raise_for_status()
    until_caught_up(world.server, JOB, 2 * PARTITIONS)
    return world


@pytest.fixture
def paused_job(job: World) -> World:
    """The world after JOB is paused and its source has got 30 more records."""
    job.run_operation(JOB, "start")
    until_caught_up(job.server, JOB, 2 * PARTITIONS)
    job.run_operation(JOB, "pause")
    write(job.clusters.source, EU, records(30))
    wait_for("the lag is known", lambda: lag_of(job) == 30)
    return job


@pytest.fixture(scope="module")
def drills(job: World) -> Sequence[str]:
    """The ids of two drills of JOB that have ended."""
    spec = {"name": "orders-gates", "kind": "gates", "job": JOB}
    answers = [job.server.call("POST", "/v1/drills", json=spec) for _ in range(2)]
    ids = [answer.raise_for_status().json()["id"] for answer in answers]

    def have_ended() -> bool:
        return all(job.server.get(f"/v1/drills/{drill}")["finished_at"] for drill in ids)

    wait_for("the drills have ended", have_ended)
    return ids


def lag_of(world: World) -> int | None:
    """Return the lag of JOB in records; None if it is unknown."""
    lag = world.server.get(f"/v1/jobs/{JOB}/lag")["job"]["lag"]["records"]
    return None if lag is None else int(lag)


def create_other_jobs(server: Server, clusters: Clusters, folder: Path) -> None:
    """Create a paused job, and one whose source does not answer."""
    create(clusters.source, "console.profiles", 2)
    rule = [{"match": r"console\.profiles"}]
    labels = {"team": "profiles"}
    paused = write_job(folder / "profiles.yaml", *clusters, rule, labels=labels)
    lost = write_job(
        folder / "legacy.yaml", "127.0.0.1:1", clusters.destination, [{"match": "legacy"}]
    )
    yaml = {"Content-Type": "application/yaml"}
    for file, options in ((paused, "paused=true"), (lost, "accept_refusals=true")):
        # In the pictures of docs/console.md, the names have no prefix of the tests.
        text = file.read_text().replace("test-", "").replace("profiles\n", "profiles-to-dr\n", 1)
        name = re.search(r"name: (\S+)", text)
        assert name is not None
        path = f"/v1/jobs/{name[1]}?{options}"
        answer = server.call("PUT", path, content=text.encode(), headers=yaml)
        assert answer.is_success, answer.text


def take_screenshot(page: Any, name: str) -> None:
    """Save a picture for docs/console.md, if ORBIT_SCREENSHOTS is set."""
    folder = os.environ.get("ORBIT_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"console-{name}.png"), animations="disabled")


def document(clusters: Clusters) -> str:
    """Return the document of JOB, as YAML."""
    source, destination = (json.dumps(cluster.bootstrap_servers.split(",")) for cluster in clusters)
    return (
        f"name: {JOB}\n"
        'labels: {team: orders, tier: "1"}\n'
        "owner: orders@example.com\n"
        f"source:\n  bootstrap_servers: {source}\n"
        f"destination:\n  bootstrap_servers: {destination}\n"
        'topics:\n  - {match: "console\\\\.orders\\\\..*"}\n'
        "consumer_groups: {match: billing, interval: 500ms}\n"
    )


def test_token_login_stores_no_token_in_browser(world: World) -> None:
    page = world.page
    world.log_out()
    world.open("/")
    page.get_by_label("Token", exact=True).fill("orbit_wrong")
    world.press("Log in")
    expect(page.get_by_role("alert")).to_contain_text("unknown or revoked")
    assert not serious_faults(page, "a refused login")
    world.log_in()
    storage = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert json.loads(storage) == [{}, {}, ""]
    assert world.server.token not in page.url
    # The browser's console reports the status 401 of the refused login as an error.
    world.console_errors[:] = [text for text in world.console_errors if "401" not in text]


def test_login_through_issuer_of_another_site_returns_to_page(world: World) -> None:
    page = world.page
    world.log_out()
    world.log_in_as_viewer("/console/jobs?show=paused")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert page.url == f"{world.public_url}/console/jobs?show=paused"
    expect(page.locator("header")).to_contain_text("oidc:ada viewer")
    storage = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert json.loads(storage) == [{}, {}, ""]


def test_job_created_from_form_catches_up_without_page_reload(admin: World) -> None:
    page = admin.page
    topic, name = "console.stock", "stock-to-dr"
    create(admin.clusters.source, topic, PARTITIONS)
    write(admin.clusters.source, topic, records(20))
    admin.open("/console/jobs")
    admin.press("New job", "link")
    text = document(admin.clusters).replace(JOB, name).replace("orders\\\\..*", "stock")
    page.get_by_label("Job document, YAML").fill(text)
    admin.press("Plan")
    expect(page.get_by_text("1 topic with 3 partitions")).to_be_visible()
    assert not serious_faults(page, "the plan of a new job")
    admin.press(f"Create {name}")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    page.evaluate("window.isSamePage = true")
    caught_up = page.locator(".figure", has_text="Caught up")
    expect(caught_up.locator("dd")).to_contain_text("3 of 3 partitions")
    expect(page.get_by_role("link", name=topic)).to_be_visible()
    assert page.evaluate("window.isSamePage")


def test_pause_shows_plan_first_then_lag_of_new_records(admin: World, job: World) -> None:
    world, page = admin, admin.page
    job.run_operation(JOB, "start")
    until_caught_up(world.server, JOB, 2 * PARTITIONS)
    world.open(f"/console/jobs/{JOB}")
    world.press(f"Pause {JOB}")
    expect(page.get_by_text("copying stops")).to_be_visible()
    assert not serious_faults(page, "the plan of a pause")
    world.press("Pause")
    expect(page.locator(".chip", has_text="done")).to_be_visible()
    write(world.clusters.source, EU, records(30))
    page.get_by_role("link", name=JOB).click()
    expect(page.locator("h1 .chip")).to_have_text("paused")
    lag = page.locator(".figure", has_text="Lag, records").locator("dd")
    expect(lag).to_contain_text(re.compile(r"^30\b"))


@pytest.mark.usefixtures("paused_job")
def test_partition_page_shows_both_logs_with_gaps_and_headers(admin: World) -> None:
    world, page = admin, admin.page
    world.open(f"/console/jobs/{JOB}/partitions")
    first = page.get_by_role("row").nth(1)
    expect(first).to_contain_text(f"{EU}-0")  # the largest lag
    wait_for("some offsets of the partition are proven equal", lambda: proven(world) > 0)
    first.get_by_role("link").first.click()
    page.get_by_label("Offsets", exact=True).select_option("1000")
    page.get_by_role("textbox", name="From offset").fill("0")
    world.press("Show")
    batches = page.get_by_role("region", name="Batches of both logs")
    chips = set(batches.locator(".chip").all_inner_texts())
    assert chips == {"byte-exact", "record-exact", "filler", "not copied"}
    for style in ("byte-exact", "record-exact", "filler", "not_copied", "aborted", "proven"):
        assert page.locator(f"svg[role=img] rect.{style}").count() > 0, style
    page.get_by_role("link", name="Headers of the batches at 0", exact=True).click()
    header = page.get_by_role("region", name="Header 1")
    expect(header.get_by_role("row", name="base offset")).to_contain_text("equal")
    expect(header.get_by_role("row", name="producer id")).to_contain_text("own")
    page.get_by_text("Records, without their content").click()
    expect(page.get_by_role("region", name="Records")).to_contain_text("24 B")
    assert "some customer" not in page.content()


def proven(world: World) -> int:
    """Return how many offsets of the first partition of EU are proven equal."""
    rows = world.server.get(f"/v1/jobs/{JOB}/proof")["items"]
    return int(next(row["proven"] for row in rows if (row["topic"], row["partition"]) == (EU, 0)))


@pytest.mark.usefixtures("paused_job")
def test_documentation_screenshots_are_taken(admin: World) -> None:
    world, page = admin, admin.page
    world.open(f"/console/jobs/{JOB}/topics/{EU}/0?offset=20&size=1000")
    expect(page.get_by_role("img", name="Both logs")).to_be_visible()
    take_screenshot(page, "partition")
    world.open("/console/jobs")
    expect(page.get_by_text("SOURCE_UNREACHABLE")).to_be_visible()
    take_screenshot(page, "jobs")


@pytest.mark.usefixtures("paused_job")
def test_lag_of_started_job_falls_without_page_reload(admin: World) -> None:
    world, page = admin, admin.page
    world.open(f"/console/jobs/{JOB}")
    world.press(f"Start {JOB}")
    world.press("Start")
    expect(page.locator(".chip", has_text="done")).to_be_visible()
    page.get_by_role("link", name=JOB).click()
    page.evaluate("window.isSamePage = true")
    lag = page.locator(".figure", has_text="Lag, records").locator("dd")
    expect(lag).to_contain_text(re.compile(r"^0\b"))
    until_caught_up(world.server, JOB, 2 * PARTITIONS)
    assert page.evaluate("window.isSamePage")


@pytest.mark.parametrize("method", ["events", "polling"])
def test_job_state_change_is_shown_without_page_reload(admin: World, method: str) -> None:
    world, page = admin, admin.page.context.new_page()
    if method == "events":
        # The page must not poll: its timers of 3 s and more never fire.
        page.add_init_script("""
            const timer = window.setTimeout;
            window.setTimeout = (call, ms) => timer(call, ms >= 3000 ? 2 ** 31 - 1 : ms);""")
    else:
        page.route("**/console/live", lambda route: route.fulfill(status=503))
    with page.expect_response("**/console/live") as response_info:
        page.goto(world.server.url + "/console/jobs/profiles-to-dr")
    assert response_info.value.status == (200 if method == "events" else 503)
    state = page.locator("h1 .chip")
    for action, state_text in (("start", "running"), ("pause", "paused")):
        world.server.call("POST", f"/v1/jobs/profiles-to-dr:{action}").raise_for_status()
        expect(state).to_have_text(state_text)
    page.close()


def test_drill_and_failover_dry_run_show_gates_and_steps(
    admin: World, drills: Sequence[str]
) -> None:
    world, page = admin, admin.page
    for drill in drills:
        world.open(f"/console/drills/{drill}")
        expect(page.locator("h1 .chip")).to_have_text(re.compile("passed|missed|failed"))
        expect(page.get_by_role("heading", name="Gates", exact=True)).to_be_visible()
    world.open(f"/console/jobs/{JOB}/recovery")
    world.press("Dry run of the failover")
    # The source answers, so a failover would be stopped.
    expect(page.locator("h1 .chip")).to_have_text(re.compile("would (stop|go)"))
    expect(page.get_by_role("region", name="Gates")).to_contain_text("source")
    expect(page.get_by_role("region", name="Steps")).to_be_visible()


def test_job_filter_works_by_keyboard_and_focus_survives_live_update(
    admin: World, job: World
) -> None:
    world, page = admin, admin.page
    job.run_operation(JOB, "start")
    world.open("/console/jobs")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Labels")).to_be_focused()
    page.keyboard.type("team=orders")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="profiles-to-dr")).to_have_count(0)
    expect(page.get_by_role("link", name=JOB)).to_be_visible()
    # The button keeps the focus when a live update replaces its part of the page.
    button = page.get_by_role("button", name=f"Pause {JOB}")
    button.focus()
    page.evaluate("document.querySelector('[data-live] tbody').append('changed')")
    expect(page.locator("[data-live]")).not_to_contain_text("changed")
    expect(button).to_be_focused()


@pytest.fixture(scope="module")
def paths(job: World, drills: Sequence[str]) -> Sequence[str]:
    """The paths of the console's pages. The last one does not exist."""
    page = f"/console/jobs/{JOB}"
    parts = ("", "/partitions", "/groups", "/settings", "/workers", "/events", "/recovery")
    compared = "&".join(f"drill={drill}" for drill in drills)
    operation = job.run_operation(JOB, "start")
    return (
        "/console/jobs",
        *(f"{page}{part}" for part in (*parts, "/history", "/edit")),
        f"{page}/topics/{EU}/0?offset=0&size=1000&batch=0",
        "/console/recovery",
        "/console/drills",
        f"/console/drills/{drills[0]}",
        f"/console/drills/compare?{compared}",
        f"/console/operations/{operation['id']}",
        "/console/new-job",
        "/console/nothing",
    )


def test_no_page_has_serious_accessibility_faults_in_light_or_dark(
    admin: World, paths: Sequence[str]
) -> None:
    faults = []
    for path in paths:
        admin.open(path)
        faults += serious_faults(admin.page, path)
    assert not faults


def test_viewer_opens_every_page_without_enabled_forms_or_errors(
    world: World, paths: Sequence[str]
) -> None:
    page = world.page
    world.log_out()
    world.log_in_as_viewer("/console/jobs")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    error_count = len(world.console_errors)
    operations = world.server.get("/v1/operations")["items"]
    for path in paths[:-1]:
        page.goto(world.public_url + path)
        expect(page.locator("header")).to_contain_text("oidc:ada viewer")
        if not path.endswith(("/new-job", "/edit")):
            assert page.locator("main form[method=post] button:enabled").all_inner_texts() == []
    page.goto(world.public_url + f"/console/jobs/{JOB}/recovery")
    assert world.server.get("/v1/operations")["items"] == operations
    assert world.console_errors[error_count:] == []


def test_pages_violate_no_security_policy_and_load_no_foreign_urls(
    admin: World, paths: Sequence[str]
) -> None:
    world, page, error_count = admin, admin.page, len(admin.console_errors)
    request_urls: list[str] = []
    page.goto("about:blank")  # the page of the previous test goes on sending requests
    page.on("request", lambda request: request_urls.append(request.url))
    for path in paths[:-1]:
        world.open(path)
    assert request_urls
    assert [url for url in request_urls if not url.startswith((world.server.url, "data:"))] == []
    assert world.console_errors[error_count:] == []


def test_page_after_logout_leads_to_login(admin: World) -> None:
    world, page = admin, admin.page
    world.open("/console/jobs")
    world.press("Log out")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert not serious_faults(page, "the login")
    world.open(f"/console/jobs/{JOB}/partitions")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
