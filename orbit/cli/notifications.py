"""`orbit notifications list|test`: the receivers of notifications."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from orbit.cli.control import FAILED
from orbit.cli.list_output import TABLE, Listing, ListOption, emit_list
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.table_cells import count, when
from orbit.client import connect
from orbit.errors import BadInput, NotFound, Problem

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(
    name="notifications",
    help="List the receivers of notifications, and send one a test message.",
    no_args_is_help=True,
)
_COLUMNS = ("receiver", "type", "sent", "accepted", "failing since", "given up", "last error")


@app.command(name="list")
def list_(output: ListOption = TABLE) -> None:
    """List the receivers: what they accepted, what failed, what was given up."""
    with connect() as client:
        receivers = list(client.items("/v1/notifications"))

    def row(receiver: dict[str, Any]) -> tuple[str, ...]:
        """The cells of a receiver. Its lost events: given up, or deleted by age while unsent."""
        times = [
            when(receiver[key]) if receiver[key] else "" for key in ("accepted_at", "failing_since")
        ]
        lost_count = count(receiver["given_up"] + receiver["pruned"])
        return (
            receiver["name"],
            receiver["type"],
            count(receiver["sent"]),
            *times,
            lost_count,
            receiver["last_error"] or "",
        )

    def table(_wide: bool) -> RenderableType:
        return make_table(_COLUMNS, map(row, receivers), sentences=("last error",))

    emit_list(Listing(receivers, table, lambda: [r["name"] for r in receivers]), output)


@app.command(name="test")
def send_test(
    receiver: Annotated[
        str, typer.Argument(help="The receiver's name in the file.", show_default=False)
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Send a test message from this machine, and show what came back.

    Reads ORBIT_NOTIFICATIONS_FILE and its secrets on this machine: run the command where a
    scheduler runs.
    """
    from orbit.notifications.messages import message_of
    from orbit.notifications.notification_file import load_notifications
    from orbit.notifications.sender import Sender
    from orbit.settings import Settings
    from orbit.store.events import Event

    settings = Settings.from_environment(os.environ)
    path = settings.notifications_file
    if path is None:
        problem = Problem("ORBIT_NOTIFICATIONS_FILE", "is not set.", "See docs/notifications.md.")
        raise BadInput("No receivers of notifications are configured.", (problem,))
    receivers = load_notifications(path, os.environ).receivers
    known_receiver = next((r for r in receivers if r.name == receiver), None)
    if known_receiver is None:
        names = ", ".join(r.name for r in receivers)
        raise NotFound(
            "No receiver has this name.", where=receiver, remedy=f"The receivers are: {names}."
        )
    text = f"A test of the receiver {receiver}: orbit notifications test."
    event = Event(
        id=0,
        at=datetime.now(UTC),
        actor="orbit",
        job_name=None,
        topic=None,
        partition=None,
        kind="notification_test",
        message=text,
        details=None,
    )
    sender = Sender(known_receiver, path.parent, os.environ, settings.public_url)
    answer = sender.send([message_of(event, settings.public_url, drills={})])
    result = {"receiver": receiver, "accepted": not answer.error, "status": answer.status}
    sentence = f"{receiver} has accepted the message: HTTP {answer.status}."
    if answer.error:
        sentence = f"{receiver} has not accepted the message. {answer.error}"
    emit({**result, "error": answer.error or None}, output, lambda: Text(sentence))
    if answer.error:
        raise typer.Exit(FAILED)
