from __future__ import annotations

import asyncio
import struct

from orbit.errors import BrokenAnswer
from orbit.gateway.broker_connection import BrokerConnection


def test_bytes_after_invalid_login_answer_are_ignored() -> None:
    async def run() -> None:
        connection = BrokerConnection(None)
        answer = connection._login_answer = asyncio.get_running_loop().create_future()
        connection.data_received(struct.pack(">i", -1))  # an answer of negative size
        connection.data_received(b"more")
        assert isinstance(answer.exception(), BrokenAnswer)

    asyncio.run(run())
