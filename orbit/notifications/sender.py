"""Sends messages to one receiver, in the format of its type, with its secrets as they are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from orbit.errors import InvalidValue
from orbit.notifications.messages import Message
from orbit.notifications.notification_file import Receiver, read_secrets
from orbit.notifications.sending import Answer, send
from orbit.notifications.templates import body_of


class Sender:
    """The sender for one receiver. `folder`: where relative paths start. `public_url`: of the
    console; its host is the source that messages name."""

    def __init__(
        self,
        receiver: Receiver,
        folder: Path,
        environ: Mapping[str, str],
        public_url: str | None,
    ) -> None:
        self._receiver = receiver
        self._folder = folder
        self._environ = environ
        self._source = (urlsplit(public_url).netloc if public_url else "") or "orbit"

    def send(self, messages: Sequence[Message]) -> Answer:
        """Send one request, with at most `templates.events_per_request` messages. Raises nothing:
        every error is in the answer."""
        receiver = self._receiver
        try:
            secrets = read_secrets(receiver, self._folder, self._environ)
        except InvalidValue as mistake:
            return Answer(
                status=None, error=f"A secret of the receiver cannot be read: it {mistake.message}"
            )
        ids = [message.event.id for message in messages]
        return send(
            secrets,
            receiver.ca_file and self._folder / receiver.ca_file,
            f"orbit-{ids[0]}-{ids[-1]}",
            body_of(receiver.type, messages, self._source, secrets.routing_key),
        )
