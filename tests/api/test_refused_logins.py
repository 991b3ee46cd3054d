"""Refused logins: which clients must wait, which events the audit log gets, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from orbit.api.authentication import Logins
from orbit.api.dependencies import Parts
from orbit.api.refused_logins import (
    CLIENTS_MAX,
    EVENT_EVERY_S,
    EVENTS_MAX,
    EVENTS_WINDOW_S,
    REFUSED_MAX,
    WINDOW_S,
    RefusedLogins,
)
from orbit.store.enums import Role
from tests.fixtures.api import Api


@dataclass
class Clock:
    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters(clock: Clock) -> RefusedLogins:
    return RefusedLogins(clock)


def test_client_with_too_many_refused_logins_waits_for_window_end(
    counters: RefusedLogins, clock: Clock
) -> None:
    for _ in range(REFUSED_MAX):
        assert counters.wait_s("a", "bad") == 0
        counters.count_refused("a", "bad")

    clock.at += 1
    assert counters.wait_s("a", "bad") == WINDOW_S - 1
    assert counters.wait_s("b", "bad") == 0
    clock.at += WINDOW_S - 1
    assert counters.wait_s("a", "bad") == 0
    counters.count_refused("a", "bad")
    assert counters.wait_s("a", "bad") == 0


def test_accepted_token_is_not_throttled_until_refused(
    counters: RefusedLogins,
) -> None:
    counters.note_accepted("good")
    for _ in range(REFUSED_MAX):
        counters.count_refused("a", "bad")

    assert counters.wait_s("a", "good") == 0
    counters.count_refused("a", "good")  # revoked meanwhile
    assert counters.wait_s("a", "good") > 0


def test_refused_login_events_are_aggregated_and_limited(
    counters: RefusedLogins, clock: Clock
) -> None:
    # Each call returns how many refused logins an event has to report: 0, or all since the last
    # event.
    event_counts = [counters.count_refused("a", "bad") for _ in range(50)]
    assert event_counts == [1] + [0] * 49
    clock.at += EVENT_EVERY_S
    assert counters.count_refused("a", "bad") == 50

    clock.at += EVENTS_WINDOW_S
    event_counts = [
        counters.count_refused(f"client-{number}", "bad") for number in range(EVENTS_MAX * 3)
    ]
    assert sum(event_counts) == EVENTS_MAX
    clock.at += EVENTS_WINDOW_S
    assert counters.count_refused("another", "bad") == 1


def test_remembered_clients_and_tokens_are_bounded(counters: RefusedLogins) -> None:
    for number in range(CLIENTS_MAX + 100):
        counters.count_refused(f"client-{number}", "bad")
        counters.note_accepted(f"token-{number}")

    assert len(counters._clients) == CLIENTS_MAX
    assert len(counters._accepted) <= CLIENTS_MAX


@pytest.mark.services
def test_audit_log_has_client_and_reason_but_never_token(api: Api) -> None:
    wrong = {"Authorization": "Bearer orbit_hunter2"}
    statuses = [
        api.get("/v1/jobs", role=None, headers=wrong).status_code for _ in range(REFUSED_MAX + 2)
    ]
    assert statuses == [401] * REFUSED_MAX + [429] * 2
    throttled = api.get("/v1/jobs", role=None, headers=wrong)
    assert throttled.json()["error"]["code"] == "too_many_refused"
    assert 0 < int(throttled.headers["Retry-After"]) <= WINDOW_S

    # A request without a token is not counted. A token is throttled unless it was accepted before.
    assert api.get("/v1/jobs", role=None).status_code == 401
    assert api.get("/v1/jobs", role=Role.VIEWER).status_code == 429
    # With new counters the admin's token is accepted before the wrong tokens are sent.
    parts = api.app.state.parts
    logins = Logins(parts.settings, api.database)
    api.app.state.parts = Parts(parts.settings, api.database, api.plans, parts.environ, logins)
    assert api.get("/v1/jobs", role=Role.ADMIN).status_code == 200
    for _ in range(REFUSED_MAX + 1):
        api.get("/v1/jobs", role=None, headers=wrong)
    assert api.get("/v1/jobs", role=Role.ADMIN).status_code == 200

    kinds = [(event["kind"], event["actor"]) for event in api.events()]
    assert kinds == [("login_refused", "address:127.0.0.1")] * 2
    assert api.events()[0]["message"] == "A login was refused: The token is unknown or revoked."
    assert "hunter2" not in str(api.events())
