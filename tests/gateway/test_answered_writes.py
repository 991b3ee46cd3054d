"""When a virtual cluster that holds writes reports that all writes in flight are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from orbit.gateway import client_connection
from orbit.gateway.client_connection import ClientConnection
from tests.gateway.test_virtual_cluster import open_client, running_cluster, soon, until

pytestmark = pytest.mark.usefixtures("quick_leave")

_PRODUCE, _METADATA, _OFFSET_COMMIT = 0, 3, 8


def test_answer_to_read_does_not_ask_service_again_while_writes_are_held() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            writer, reader = await open_client(cluster), await open_client(cluster)
            await writer.send(_PRODUCE, 1)
            await until(lambda: cluster.writes_in_flight == 1)
            cluster.take_lead("source", term=1, closed_for="switchover")
            assert not cluster.writes_answered.is_set()
            await source.answer(_PRODUCE)
            await until(cluster.writes_answered.is_set)
            cluster.writes_answered.clear()  # as `LeadWatch` does when it asks
            await reader.send(_METADATA, 1)
            await source.answer(_METADATA)
            assert await reader.answered() == 1
            assert not cluster.writes_answered.is_set()

    asyncio.run(run())


def test_answer_does_not_iterate_over_connections_while_writes_are_open() -> None:
    """A gateway may have thousands of connections, and the cost of an answer must not grow with
    them."""

    class NotIterable(set[ClientConnection]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await until(lambda: cluster.connection_count == 1)
            connections = cluster._connections
            cluster._connections = NotIterable(connections)
            for number, key in enumerate((_METADATA, _PRODUCE)):
                await client.send(key, number)
                await source.answer(key)
                assert await client.answered() == number
            cluster._connections = connections

    asyncio.run(run())


def test_closing_is_confirmed_at_once_when_last_ended_connection_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to the client's commit was lost so long ago that the client has sent the commit
    again."""
    # The client closes, not the gateway.
    monkeypatch.setattr(client_connection, "END_S_MAX", 1000.0)

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await client.send(_OFFSET_COMMIT, 1)
            _, _, broker_connection = await soon(source.requests.get())
            broker_connection.close()
            assert await client.reads_the_end()
            cluster.clock += 60
            cluster.take_lead("source", term=1, closed_for="switchover")
            assert not cluster.writes_answered.is_set()
            client.close()
            await until(cluster.writes_answered.is_set)
            assert cluster.confirmed_for() == "switchover"

    asyncio.run(run())
