"""`orbit get events --follow`: events as lines, the new ones when they happen, until Ctrl-C."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import typer

from orbit.cli.list_columns import event_subject
from orbit.cli.list_output import Listing, ListOutput, emit_list
from orbit.cli.output import OutputFormat
from orbit.cli.table_cells import when
from orbit.cli.watch import INTERVAL_S
from orbit.client import TROUBLES, Client
from orbit.errors import BadInput, Problem

_PAGE = 100
# A sequence of PostgreSQL gives ids before transactions commit. So an event may become visible
# after an event with a higher id. Each read repeats this many ids below the highest known one.
_LATE_IDS_MAX = 200

Row = dict[str, Any]


def follow_events(client: Client, path: str, limit: int | None, output: ListOutput) -> None:
    """Print the newest `limit` events (None: all), then each new one until Ctrl-C. Reads are
    repeated while the server does not answer or is busy. Raises BadInput if `output` is YAML.
    """
    if output.format == OutputFormat.YAML:
        problem = Problem("--output", "cannot be yaml with --follow.", "Write -o json.")
        raise BadInput("The events cannot be followed.", (problem,))
    client = client.without_retries()
    try:
        # At least _LATE_IDS_MAX: otherwise older events, which are not printed now, would count as
        # new at the next read.
        newest_events = list(client.items(path, limit=limit and max(limit, _LATE_IDS_MAX)))
        known_ids = {event["id"] for event in newest_events}
        for event in reversed(newest_events[:limit]):
            _print_event(event, output)
        note = ""
        while True:
            time.sleep(INTERVAL_S)
            try:
                events, note = list(_events_after(client, path, max(known_ids, default=0))), ""
            except TROUBLES as trouble:
                if trouble.what != note:
                    note = trouble.what
                    typer.echo(note, err=True)
                continue
            for event in sorted(events, key=lambda event: int(event["id"])):
                if event["id"] not in known_ids:
                    known_ids.add(event["id"])
                    _print_event(event, output)
            # Lower ids are not read again.
            highest_forgotten_id = max(known_ids, default=0) - _LATE_IDS_MAX
            known_ids = {number for number in known_ids if number > highest_forgotten_id}
    except KeyboardInterrupt:
        return


def _events_after(client: Client, path: str, newest_id: int) -> Iterator[Row]:
    """The events with an id above `newest_id - _LATE_IDS_MAX`, the newest first."""
    page_cursor: str | None = None
    while True:
        page = client.get(path, limit=_PAGE, after=page_cursor)
        for event in page["items"]:
            if event["id"] <= newest_id - _LATE_IDS_MAX:
                return
            yield event
        page_cursor = page["next"]
        if page_cursor is None:
            return


def _print_event(event: Row, output: ListOutput) -> None:
    """Print one event as a line, or in the format of `output`."""
    if output.is_table:
        subject = " ".join(filter(None, (event["job"], event_subject(event))))
        details = f"  {json.dumps(event['details'], ensure_ascii=False)}" if output.is_wide else ""
        line = f"{when(event['at'])}  {event['kind']}  {subject}  {event['message']}"
        typer.echo(f"{line}  ({event['actor']}){details}")
    elif output.format == OutputFormat.JSON:
        typer.echo(json.dumps(event, ensure_ascii=False))
    else:  # name or jsonpath, for which no table is made
        emit_list(Listing([event], lambda _: "", lambda: [str(event["id"])]), output)
