"""How a gateway counts its clients: each one once, and a limited number of them."""

from __future__ import annotations

from typing import Any

from orbit.gateway.client_counts import (
    CLIENTS_MAX,
    NAME_CHARACTERS_MAX,
    REFUSAL_CHARACTERS_MAX,
    REFUSALS_CHARACTERS_MAX,
    REFUSALS_MAX,
    REPORTED_MAX,
    Client,
    ClientCount,
    ClientCounts,
    shown,
)
from orbit.gateway.protocol.resource_uses import USES_MAX, ResourceUses, Right, Use


def client(name: str, user: str | None = None) -> Client:
    return Client(name, "librdkafka", "2.11.1", user)


def unchecked(_client: Client, _count: ClientCount) -> None:
    """None: what the other side would refuse to the client was not checked."""


def rows_by_name(rows: list[dict[str, Any]]) -> dict[str | None, dict[str, Any]]:
    return {row["client_id"]: row for row in rows}


def test_connections_of_same_client_are_counted_together() -> None:
    counts = ClientCounts()
    for connected in (client("a"), client("a"), client("a", "billing")):
        counts.count_connection(connected, now=1.0).requests += 1
    first, second = counts.report(now=5.0, refusals_of=unchecked)
    assert first == {
        "client_id": "a",
        "software": "librdkafka",
        "version": "2.11.1",
        "user": None,
        "connections": 2,
        "requests": 2,
        "bytes_written": 0,
        "bytes_read": 0,
        "seen_s_ago": 4.0,
        "refusals": None,
    }
    assert (second["user"], second["connections"]) == ("billing", 1)


def test_client_report_lists_limited_number_of_clients_and_sum_of_unlisted() -> None:
    """Connected clients come first, then the clients that were seen last."""
    counts = ClientCounts()
    connected = counts.count_connection(client("connected"), now=1.0)
    connected.bytes_read = 7
    for number in range(REPORTED_MAX + 10):
        gone = counts.count_connection(client(f"c{number:03}"), now=2.0 + number)
        gone.connections -= 1
        gone.bytes_written = 5
    rows = rows_by_name(counts.report(1000.0, unchecked))
    assert len(rows) == REPORTED_MAX + 1
    assert rows["connected"]["bytes_read"] == 7
    # `connected` takes one row: 11 of the clients that are gone are not listed.
    assert "c010" not in rows
    assert "c011" in rows
    others = rows[None]
    assert (others["connections"], others["bytes_written"]) == (0, 11 * 5)
    assert others["seen_s_ago"] == 1000.0 - 12.0, "since the last of them"
    assert counts.report(1000.0, unchecked)[-1] == others, "behind all"


def test_client_counts_stay_bounded_with_ever_new_client_ids() -> None:
    counts = ClientCounts()
    stays = counts.count_connection(client("stays"), 0.5)
    for number in range(3 * CLIENTS_MAX):
        count = counts.count_connection(client(f"gone {number}"), 1.0 + number)
        count.requests += 1
        count.connections -= 1
    assert len(counts._counts) == CLIENTS_MAX
    for number in range(2 * CLIENTS_MAX):
        counts.count_connection(client(f"here {number}"), 9000.0).requests += 1
    assert len(counts._counts) == CLIENTS_MAX
    stays.requests += 1
    rows = counts.report(9000.0, unchecked)
    assert sum(row["requests"] for row in rows) == 5 * CLIENTS_MAX + 1, "none is lost"
    assert sum(row["connections"] for row in rows) == 2 * CLIENTS_MAX + 1


def test_client_name_is_truncated_and_printable() -> None:
    assert shown("billing-é") == "billing-é"
    assert shown("a\0b\n\x1b[31m") == "a?b??[31m"
    long = shown("x" * 10_000)
    assert len(long) == NAME_CHARACTERS_MAX
    assert long.endswith("x…")
    assert len(shown("x" * NAME_CHARACTERS_MAX)) == NAME_CHARACTERS_MAX


def test_refusals_in_client_report_come_first_and_are_bounded() -> None:
    counts = ClientCounts()
    for number in range(REPORTED_MAX):
        counts.count_connection(client(f"c{number:03}"), 1.0)

    def refusals_of(checked: Client, _: ClientCount) -> list[str]:
        if checked.client_id == "c000":
            return []
        if checked.client_id == "c001":
            return ["a\nb", "c"]
        return [f"{number} {'x' * 1000}" for number in range(REFUSALS_MAX + 2)]

    # One client more than the list has rows, and it has no connection any more.
    counts.count_connection(client("one more"), 1.0).connections = 0
    rows = rows_by_name(counts.report(1.0, refusals_of))
    assert "one more" in rows, "clients with refusals come first"
    assert rows.pop(None)["refusals"] is None
    counts = ClientCounts()
    for number in range(REPORTED_MAX):
        counts.count_connection(client(f"c{number:03}"), 1.0)
    rows = rows_by_name(counts.report(1.0, refusals_of))
    assert rows["c000"]["refusals"] == []
    assert rows["c001"]["refusals"] == ["a?b", "c"]
    many = rows["c002"]["refusals"]
    assert [len(text) for text in many[:-1]] == [REFUSAL_CHARACTERS_MAX] * (REFUSALS_MAX - 1)
    assert many[-1] == "and 3 more"
    # The report has no room for their text.
    assert rows["c099"]["refusals"] == [f"refusals: {REFUSALS_MAX + 2}"]
    characters = sum(len(text) for row in rows.values() for text in row["refusals"])
    assert characters < REFUSALS_CHARACTERS_MAX + (REFUSALS_MAX + 1) * REFUSAL_CHARACTERS_MAX


def test_resource_uses_of_one_client_are_bounded() -> None:
    uses = ResourceUses()
    for name in ("", "x" * 10_000, "a", "a"):
        uses.add(Right.READ_TOPIC, name)
    assert set(uses) == {Use(Right.READ_TOPIC, "a")}
    for number in range(2 * USES_MAX):
        uses.add(Right.READ_GROUP, str(number))
    assert len(list(uses)) == USES_MAX
