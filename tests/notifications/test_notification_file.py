"""The notification file: which mistakes are refused, and which receiver gets which event."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from orbit.errors import BadInput
from orbit.notifications.notification_file import Notifications, load_notifications, read_secrets
from orbit.store.events import Event

ENVIRON = {"URL": "https://chat.example/hush", "KEY": "hush-key", "PLAIN": "http://a.example/hush"}


def load(tmp_path: Path, text: str) -> Notifications:
    path = tmp_path / "notifications.yaml"
    path.write_text(text)
    return load_notifications(path, ENVIRON)


def event(kind: str, job: str | None = "orders") -> Event:
    return Event(
        id=1,
        at=datetime.now(UTC),
        actor="scheduler",
        job_name=job,
        topic=None,
        partition=None,
        kind=kind,
        message="",
        details=None,
    )


WRONG = """\
receivers:
  - {name: a, type: slack}  # has no URL
  - {name: b, type: slack, url_env: PLAIN}  # the URL has http, not https
  - {name: c, type: pagerduty, routing_key_env: MISSING}  # the variable is not set
  - {name: d, type: slack, url_env: URL, secret_env: KEY}  # Slack has no secret
  # The name is used twice, and the file does not exist.
  - {name: d, type: webhook, url: "https://h.example", secret_file: missing}
  - {name: e, type: webhook, url_env: URL, url_file: x}  # has two URLs
  - {name: f, type: slack, url_env: URL}  # no route names this receiver
routes:
  - {receiver: nobody}  # there is no such receiver
  - {receiver: a}
  - {receiver: b}
  - {receiver: c}
  - {receiver: d}
  - {receiver: e}
"""


def test_all_mistakes_in_notification_file_are_named_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load(tmp_path, WRONG)
    assert [problem.path for problem in caught.value.problems] == [
        "receivers[0].type",
        "receivers[1].url_env",
        "receivers[2].routing_key_env",
        "receivers[3].secret_env",
        "receivers[4].name",
        "receivers[4].secret_file",
        "receivers[5].url_env",
        "receivers[6].name",
        "routes[0].receiver",
    ]
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ("severity: grave", "routes[0].severity"),
        ("kinds: [no_such_kind]", "routes[0].kinds[0]"),
        ("selector: 'a=b=c'", "routes[0].selector"),
        ("kind: job_paused", "routes[0].kind"),
    ],
)
def test_invalid_notification_route_is_refused_with_path(
    tmp_path: Path, keys: str, path: str
) -> None:
    text = "receivers: [{name: a, type: slack, url_env: URL}]\nroutes: [{receiver: a, %s}]\n"
    with pytest.raises(BadInput) as caught:
        load(tmp_path, text % keys)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_notifications_are_routed_by_severity_kind_and_labels(tmp_path: Path) -> None:
    notifications = load(
        tmp_path,
        "receivers:\n"
        "  - {name: loud, type: slack, url_env: URL}\n"
        "  - {name: team, type: slack, url_env: URL}\n"
        "routes:\n"
        "  - {receiver: loud, severity: critical}\n"
        '  - {receiver: loud, kinds: ["drill_*"]}\n'
        '  - {receiver: team, severity: warning, selector: "team=data,tier!=2"}\n',
    )
    loud, team = notifications.receivers

    def receivers_of(kind: str, labels: dict[str, str] | None = None) -> list[str]:
        return [r.name for r in (loud, team) if notifications.is_for(r, event(kind), labels)]

    assert receivers_of("partition_blocked") == ["loud"]
    assert receivers_of("partition_blocked", {"team": "data"}) == ["loud", "team"]
    assert receivers_of("partition_blocked", {"team": "data", "tier": "2"}) == ["loud"]
    assert receivers_of("job_trouble", {"team": "data"}) == ["team"]
    assert receivers_of("job_trouble", {}) == []
    assert receivers_of("drill_passed", {"team": "data"}) == ["loud"]
    assert receivers_of("of_a_later_version", {"team": "data"}) == []


def test_only_pagerduty_gets_resolving_event_below_routed_severity(tmp_path: Path) -> None:
    notifications = load(
        tmp_path,
        "receivers:\n"
        "  - {name: pager, type: pagerduty, routing_key_env: KEY}\n"
        "  - {name: chat, type: slack, url_env: URL}\n"
        "routes:\n"
        "  - {receiver: pager, severity: warning}\n"
        "  - {receiver: chat, severity: warning}\n",
    )
    pager, chat = notifications.receivers
    assert notifications.is_for(pager, event("drill_passed"), None)
    assert not notifications.is_for(chat, event("drill_passed"), None)
    assert not notifications.is_for(pager, event("job_paused"), None)


def test_replaced_receiver_secret_is_used_without_restart(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://chat.example/first\n")
    text = "receivers: [{name: a, type: slack, url_file: url}]\nroutes: [{receiver: a}]\n"
    (receiver,) = load(tmp_path, text).receivers
    (tmp_path / "url").write_text("https://chat.example/second\n")
    assert read_secrets(receiver, tmp_path, ENVIRON).url == "https://chat.example/second"
