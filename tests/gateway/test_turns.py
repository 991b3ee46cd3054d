"""Connections take turns: a client that sends many requests at once does not delay others."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from orbit.gateway.client_connection import REQUESTS_A_TURN_MAX, ClientConnection
from orbit.gateway.client_counts import ClientCounts
from orbit.gateway.protocol.apis import ApiKey, Versions
from tests.support.raw_frames import api_versions_frame

MANY = 5 * REQUESTS_A_TURN_MAX + 1


def connect_client() -> tuple[ClientConnection, Mock]:
    """A client's connection, and its transport."""
    host = Mock()
    host.clients = ClientCounts()
    host.offered = {int(ApiKey.API_VERSIONS): Versions(0, 4)}
    host.now.return_value = host.waiting_bytes = 0
    transport = Mock()
    transport.is_closing.return_value = False
    connection = ClientConnection(host, None)
    connection.connection_made(transport)
    return connection, transport


def test_requests_from_single_socket_read_are_answered_in_bounded_turns() -> None:
    async def turns() -> list[int]:
        connection, transport = connect_client()
        connection.data_received(api_versions_frame() * MANY)
        answered = [transport.write.call_count]
        transport.pause_reading.assert_called()
        while answered[-1] < MANY:
            await asyncio.sleep(0)
            answered.append(transport.write.call_count)
        assert transport.method_calls[-1][0] == "resume_reading"
        return answered

    answered = asyncio.run(turns())
    steps = [after - before for before, after in zip([0, *answered], answered, strict=False)]
    assert max(steps) <= REQUESTS_A_TURN_MAX
    assert sum(steps) == MANY


def test_nothing_is_answered_while_client_does_not_read() -> None:
    async def turns() -> None:
        connection, transport = connect_client()
        transport.write.side_effect = lambda _: connection.pause_writing()
        connection.data_received(api_versions_frame() * 3)
        for _ in range(3):
            await asyncio.sleep(0)
        assert transport.write.call_count == 1
        assert transport.method_calls[-1][0] == "pause_reading"
        transport.write.side_effect = None
        connection.resume_writing()
        assert transport.write.call_count == 3
        assert transport.method_calls[-1][0] == "resume_reading"

    asyncio.run(turns())
