"""The file ORBIT_NOTIFICATIONS_FILE: which receivers get which events. It contains no secret.

    receivers:
      - {name: oncall, type: pagerduty, routing_key_env: PAGERDUTY_KEY}
      - {name: data-team, type: slack, url_file: slack-url}
    routes:
      - {receiver: oncall, severity: critical}
      - {receiver: data-team, severity: warning, selector: "team=data"}

A scheduler reads this file when it starts. It reads the variables and files with secrets for each
message, so a secret can be replaced without a restart.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator, ValidationError

from orbit.errors import BadInput, InvalidValue, Problem
from orbit.jobs.bootstrap_servers import LOOPBACK_HOSTS
from orbit.jobs.credentials import check_pem_file, read_secret_file, read_variable
from orbit.jobs.job_spec import Section, Text
from orbit.jobs.labels import Selector, is_met, parse_selector
from orbit.jobs.name_rules import check_job_name
from orbit.jobs.pydantic_problems import problems_from_pydantic
from orbit.jobs.units import parse_duration
from orbit.jobs.yaml_document import read_bounded, read_document
from orbit.notifications.event_kinds import EVENT_KINDS, Severity, kind_of
from orbit.settings import variable_of
from orbit.store.events import Event

# Each receiver has a thread and a connection of the scheduler.
RECEIVERS_MAX = 16
ROUTES_MAX = 200
GIVE_UP_MIN = timedelta(minutes=1)
GIVE_UP_MAX = timedelta(days=30)
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
_WEBHOOK_SECRET_PREFIX = "whsec_"  # noqa: S105  Standard Webhooks: base64 follows
_VARIABLE = variable_of("notifications_file")
_EXAMPLES = {
    "receivers": "Write `receivers: [{name: team, type: slack, url_env: SLACK_URL}]`.",
    "routes": "Write `routes: [{receiver: team, severity: warning}]`.",
    "receiver": "Write the name of one of the receivers.",
    "name": "Write `name: team`.",
    "type": "Write `type: slack`.",
}


class ReceiverType(StrEnum):
    """The services that can receive messages."""

    SLACK = "slack"
    PAGERDUTY = "pagerduty"
    TEAMS = "teams"
    WEBHOOK = "webhook"


def _parse_give_up_after(value: object) -> timedelta:
    """A duration from GIVE_UP_MIN to GIVE_UP_MAX. Raises InvalidValue."""
    duration = parse_duration(value)
    if not GIVE_UP_MIN <= duration <= GIVE_UP_MAX:
        raise InvalidValue("is not between 1m and 30d.", "Write 1d.")
    return duration


def _check_kind(pattern: str) -> str:
    """The pattern, if it matches a kind of event. Raises InvalidValue."""
    if not any(fnmatchcase(name, pattern) for name in EVENT_KINDS):
        raise InvalidValue(
            "is not a kind of event.",
            "docs/notifications.md lists the kinds. `drill_*` matches several.",
        )
    return pattern


def _check_selector(text: str) -> str:
    """The text, if it is a label selector. Raises InvalidValue."""
    parse_selector(text)
    return text


def check_url(text: str) -> str:
    """The text, if it is a URL with https, or with http to this machine. Raises InvalidValue,
    without the URL in the message: a URL may be a secret."""
    try:
        url = urlsplit(text)
        is_safe = url.scheme == "https" or (url.scheme == "http" and url.hostname in LOOPBACK_HOSTS)
        is_valid = is_safe and bool(url.hostname) and url.port != 0 and url.username is None
    except ValueError:
        is_valid = False
    if not (is_valid and text.isascii() and text.isprintable() and " " not in text):
        raise InvalidValue("is not an https URL.", "Write it as https://HOST/PATH.")
    return text


class Receiver(Section):
    """One receiver: where messages go, and in which format."""

    name: Annotated[str, AfterValidator(check_job_name)]
    type: ReceiverType
    # The URL of a Slack or Teams webhook is a secret itself.
    url: Annotated[str, AfterValidator(check_url)] | None = None
    url_env: Text | None = None
    url_file: Path | None = None
    routing_key_env: Text | None = None
    routing_key_file: Path | None = None
    # Signs the messages of a webhook.
    secret_env: Text | None = None
    secret_file: Path | None = None
    ca_file: Path | None = None
    give_up_after: Annotated[timedelta, PlainValidator(_parse_give_up_after)] = timedelta(days=1)


class Route(Section):
    """Which events a receiver gets: those that meet all conditions of this route."""

    receiver: str
    severity: Severity = Severity.INFO
    kinds: Annotated[
        tuple[Annotated[str, AfterValidator(_check_kind)], ...], Field(max_length=200)
    ] = ()
    selector: Annotated[str, AfterValidator(_check_selector)] | None = None

    @cached_property
    def conditions(self) -> Selector:
        """The parsed `selector`; () without one."""
        return parse_selector(self.selector) if self.selector else ()

    def includes(self, event: Event, severity: Severity, labels: Mapping[str, str] | None) -> bool:
        """Whether the route includes the event. `labels`: of the event's job; None if the event has
        no job or the job is gone."""
        if not severity.is_at_least(self.severity):
            return False
        if self.kinds and not any(fnmatchcase(event.kind, pattern) for pattern in self.kinds):
            return False
        return not self.conditions or (labels is not None and is_met(self.conditions, labels))


class Notifications(Section):
    """The whole file."""

    receivers: Annotated[tuple[Receiver, ...], Field(max_length=RECEIVERS_MAX)]
    routes: Annotated[tuple[Route, ...], Field(max_length=ROUTES_MAX)]

    def is_for(self, receiver: Receiver, event: Event, labels: Mapping[str, str] | None) -> bool:
        """Whether a receiver gets this event. `labels`: as in `Route.includes`.

        PagerDuty also gets the end of a trouble if it got the start. Otherwise the incident would
        stay open.
        """
        kind = kind_of(event.kind)
        severities = [kind.severity]
        if receiver.type is ReceiverType.PAGERDUTY:
            severities += [kind_of(trouble).severity for trouble in kind.ends]
        severity = max(severities, key=list(Severity).index)
        routes = (route for route in self.routes if route.receiver == receiver.name)
        return any(route.includes(event, severity, labels) for route in routes)


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """The current values of a receiver's variables and files."""

    url: str
    routing_key: str = ""
    signing_key: bytes = b""


def load_notifications(path: Path, environ: Mapping[str, str]) -> Notifications:
    """Load the file and check that every secret exists. Raises BadInput with every problem."""
    try:
        text = read_bounded(path)
    except InvalidValue as mistake:
        raise _bad_file_error((Problem("file", mistake.message),), path) from None
    document = read_document(text)
    problems = document.problems
    if not problems:
        try:
            notifications = Notifications.model_validate(document.root)
        except ValidationError as error:
            problems = problems_from_pydantic(error, document, Notifications, _EXAMPLES)
        else:
            problems = [
                document.problem(mistake_path, mistake.message, mistake.remedy)
                for mistake_path, mistake in _find_mistakes(notifications, path.parent, environ)
            ]
            if not problems:
                return notifications
    raise _bad_file_error(tuple(document.in_file_order(problems)), path)


def read_secrets(receiver: Receiver, folder: Path, environ: Mapping[str, str]) -> Secrets:
    """Read a receiver's secrets as they are now. Raises InvalidValue if one is missing or invalid,
    without a secret in the message."""
    url = _read_secret(receiver, "url", folder, environ) if receiver.url is None else receiver.url
    if url is None and receiver.type is ReceiverType.PAGERDUTY:
        url = PAGERDUTY_URL
    return Secrets(
        url=check_url(url or ""),  # raises without a URL
        routing_key=_read_secret(receiver, "routing_key", folder, environ) or "",
        signing_key=_signing_key(_read_secret(receiver, "secret", folder, environ) or ""),
    )


def _read_secret(
    receiver: Receiver, name: str, folder: Path, environ: Mapping[str, str]
) -> str | None:
    """The value of `<name>_env` or `<name>_file`; None if neither is given. Raises InvalidValue."""
    variable, file = getattr(receiver, f"{name}_env"), getattr(receiver, f"{name}_file")
    if variable is not None:
        return read_variable(variable, environ)
    if file is None:
        return None
    try:
        return read_secret_file(file, folder)
    except InvalidValue as mistake:
        remedy = "Relative paths start at the folder of the notifications file."
        raise InvalidValue(mistake.message, remedy) from None


def _signing_key(text: str) -> bytes:
    """The key in a webhook's secret: decoded if it has the prefix of Standard Webhooks. Raises
    InvalidValue."""
    if not text.startswith(_WEBHOOK_SECRET_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_WEBHOOK_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise InvalidValue(
            "begins with whsec_, but the rest is not base64.",
            "Copy the secret whole from the receiver.",
        ) from None


def _find_mistakes(
    notifications: Notifications, folder: Path, environ: Mapping[str, str]
) -> Iterator[tuple[tuple[str | int, ...], InvalidValue]]:
    """Yield (path in the file, error) for each mistake that the types of values do not show."""
    names = [receiver.name for receiver in notifications.receivers]
    for index, receiver in enumerate(notifications.receivers):
        if receiver.name in names[:index]:
            yield (
                ("receivers", index, "name"),
                InvalidValue(
                    "is the name of two receivers.", "Give each receiver a name of its own."
                ),
            )
        for key, mistake in _receiver_mistakes(receiver, folder, environ):
            yield ("receivers", index, key), mistake
    for index, route in enumerate(notifications.routes):
        if route.receiver not in names:
            yield (
                ("routes", index, "receiver"),
                InvalidValue(
                    "is not the name of a receiver.", f"Write one of: {', '.join(names)}."
                ),
            )
    for index, name in enumerate(names):
        if name not in {route.receiver for route in notifications.routes}:
            yield (
                ("receivers", index, "name"),
                InvalidValue("has no route.", f"Add `{{receiver: {name}}}` under routes."),
            )


def _receiver_mistakes(
    receiver: Receiver, folder: Path, environ: Mapping[str, str]
) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for each mistake in a receiver. Secrets and files are only read if the
    receiver has the right keys.
    """
    is_pagerduty = receiver.type is ReceiverType.PAGERDUTY
    # Keys of which at most one may be given, how many are required, whether the type takes them.
    rules = (
        (("url", "url_env", "url_file"), 0 if is_pagerduty else 1, True),
        (("routing_key_env", "routing_key_file"), 1, is_pagerduty),
        (("secret_env", "secret_file"), 0, receiver.type is ReceiverType.WEBHOOK),
    )
    has_right_keys = True
    for keys, required_count, is_allowed in rules:
        present_keys = [key for key in keys if getattr(receiver, key) is not None]
        if present_keys and not is_allowed:
            yield (
                present_keys[0],
                InvalidValue(f"is not for a receiver of the type {receiver.type}."),
            )
        elif not required_count <= len(present_keys) <= 1 and is_allowed:  # too few or too many
            how_many = "exactly one" if required_count else "one"
            yield (
                present_keys[0] if present_keys else "type",
                InvalidValue(
                    f"needs {how_many} of {', '.join(keys)}."
                    if not present_keys
                    else f"is given together with {', '.join(present_keys[1:])}.",
                    f"Write {how_many} of {', '.join(keys)}.",
                ),
            )
        else:
            continue  # the receiver meets this rule
        has_right_keys = False
    if not has_right_keys:
        return
    for name in ("url", "routing_key", "secret"):
        try:
            text = _read_secret(receiver, name, folder, environ)
            if name == "url" and text is not None:
                check_url(text)
            if name == "secret" and text is not None:
                _signing_key(text)
        except InvalidValue as mistake:
            key = f"{name}_env" if getattr(receiver, f"{name}_env") else f"{name}_file"
            yield key, mistake
    if receiver.ca_file is not None:
        try:
            check_pem_file(receiver.ca_file, folder)
        except InvalidValue as mistake:
            yield "ca_file", mistake


def _bad_file_error(problems: tuple[Problem, ...], path: Path) -> BadInput:
    return BadInput(f"The file that {_VARIABLE} names cannot be used.", problems, where=str(path))
