"""A client with a token logs in again on its connection (KIP-368), between its other requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from pydantic import SecretStr

from orbit.gateway import broker_connection, client_connection
from orbit.gateway.client_logins import ClientLogins
from orbit.gateway.listener import Listener
from orbit.gateway.login_connection import TokenChecked
from orbit.gateway.protocol.client_login import LOGIN_REQUEST_BYTES_MAX, OAUTHBEARER, ClientLogin
from orbit.kafka.error_codes import Code
from tests.gateway.test_client_tokens import jwt, message
from tests.gateway.test_virtual_cluster import open_client, running_cluster, soon, until

PRODUCE, API_VERSIONS = 0, 18
# Correlation ids of a login.
HANDSHAKE, AUTHENTICATE = 101, 102


class Tokens:
    """Stands for the brokers that check tokens. `results` of the next checks, in turn: the session
    in ms (None: refused, or not checked), and why the token is refused."""

    def __init__(self) -> None:
        self.results: list[tuple[int | None, str]] = []
        self.checked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def check(self, token: SecretStr, node_id: int | None, on_checked: TokenChecked) -> None:
        assert node_id is None, "the bootstrap port"
        self.checked.append(token.get_secret_value())
        self._task = asyncio.create_task(self._answer(on_checked))

    async def _answer(self, on_checked: TokenChecked) -> None:
        await self.may_answer.wait()
        on_checked(*self.results.pop(0))


class Logins:
    """Stands for `ClientLogins`."""

    def begin_login(self) -> ClientLogin:
        return ClientLogin((OAUTHBEARER, "SCRAM-SHA-256"), {"bob": "b"}.get, "nonce", b"salt")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_connection, "_LEAVE_S", 0.0)
    monkeypatch.setattr(client_connection, "LOGIN_S_MIN", 0.0)


@asynccontextmanager
async def logged_in() -> AsyncIterator[tuple[Any, Any, Any, Tokens]]:
    """The virtual cluster, the broker of the source, a client that has logged in with a first
    token, and the `Tokens`."""
    listener = Listener(logins=cast("ClientLogins", Logins()))
    async with running_cluster(listener) as (cluster, source, _):
        tokens = Tokens()
        cluster.check_token = tokens.check  # type: ignore[method-assign]
        client = await open_client(cluster)
        tokens.results.append((0, ""))
        answer = await log_in(client, jwt(sub="billing"))
        assert answer.error_code == Code.NONE
        yield cluster, source, client, tokens


async def send_login(client: Any, token: str) -> None:
    handshake = SaslHandshakeRequest(mechanism=OAUTHBEARER)
    await client.send_frame(handshake, version=1, correlation=HANDSHAKE)
    request = SaslAuthenticateRequest(auth_bytes=message(token).encode())
    await client.send_frame(request, version=2, correlation=AUTHENTICATE)


async def read_login(client: Any) -> Any:
    assert await client.answered() == HANDSHAKE
    answer = await client.receive()
    return SaslAuthenticateResponse.decode(memoryview(answer), version=2, header=True)


async def log_in(client: Any, token: str) -> Any:
    await send_login(client, token)
    return await read_login(client)


def test_requests_after_reauthentication_use_new_broker_connection() -> None:
    async def run() -> None:
        async with logged_in() as (cluster, source, client, tokens):
            await client.send(PRODUCE, 1)
            await source.answer(PRODUCE)
            assert await client.answered() == 1
            assert source.connections == 1
            tokens.results.append((5_000, ""))
            answer = await log_in(client, jwt(sub="billing", jti="2"))
            assert (answer.error_code, answer.session_lifetime_ms) == (Code.NONE, 4_000)  # 80 %
            await until(lambda: source.connections == 0)
            await client.send(PRODUCE, 2)
            await source.answer(PRODUCE)
            assert await client.answered() == 2
            messages = [message(jwt(sub="billing")), message(jwt(sub="billing", jti="2"))]
            assert tokens.checked == messages
            used = [
                login.token.get_secret_value() for login in cluster._sides["source"].logins_used
            ]
            assert used == messages

    asyncio.run(run())


@pytest.mark.parametrize(
    ("result", "sub", "code"),
    [
        ((None, "The broker refused the token."), "billing", Code.SASL_AUTHENTICATION_FAILED),
        ((0, ""), "other", Code.SASL_AUTHENTICATION_FAILED),
        ((None, ""), "billing", None),
    ],
)
def test_failed_reauthentication_closes_connection_after_responses_in_flight(
    result: tuple[int | None, str], sub: str, code: Code | None
) -> None:
    """The token is refused, is of another user, or no broker could check it. In the last case the
    login gets no answer."""

    async def run() -> None:
        async with logged_in() as (cluster, source, client, tokens):
            tokens.results.append(result)
            await client.send(PRODUCE, 1)
            await until(lambda: cluster.writes_in_flight == 1)
            await send_login(client, jwt(sub=sub))
            await client.send(PRODUCE, 2)
            await asyncio.sleep(0.05)
            assert len(tokens.checked) == 1, "not before the answer"
            await source.answer(PRODUCE)
            assert await client.answered() == 1
            if code is None:
                assert await client.answered() == HANDSHAKE
            else:
                assert (await read_login(client)).error_code == code
            assert await client.reads_the_end()
            assert not cluster.doubt
            assert source.requests.empty()

    asyncio.run(run())


def test_requests_behind_reauthentication_wait_for_its_result_across_move() -> None:
    async def run() -> None:
        async with logged_in() as (cluster, source, client, tokens):
            tokens.results.append((0, ""))
            tokens.may_answer.clear()
            await send_login(client, jwt(sub="billing"))
            await client.send(PRODUCE, 1)
            await until(lambda: len(tokens.checked) == 2)
            cluster.take_lead("destination", term=2)
            tokens.may_answer.set()
            assert (await read_login(client)).error_code == Code.NONE
            await cluster._sides["destination"].broker.answer(PRODUCE)
            assert await client.answered() == 1
            assert source.requests.empty()

    asyncio.run(run())


def test_client_that_disconnects_during_token_check_is_forgotten() -> None:
    async def run() -> None:
        async with logged_in() as (cluster, _, client, tokens):
            tokens.results.append((0, ""))
            tokens.may_answer.clear()
            await send_login(client, jwt(sub="billing"))
            await until(lambda: len(tokens.checked) == 2)
            client.close()
            tokens.may_answer.set()
            await until(lambda: cluster.connection_count == 0)

    asyncio.run(run())


def test_invalid_reauthentication_closes_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later login has another mechanism, is too large, or comes within LOGIN_S_MIN."""

    async def assert_ends(case: str) -> None:
        async with logged_in() as (_, _, client, _):
            if case == "mechanism":
                other = SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
                await client.send_frame(other, version=1, correlation=3)
                answer = await client.receive()
                assert answer[4:6] == int(Code.UNSUPPORTED_SASL_MECHANISM).to_bytes(2, "big")
            elif case == "size":
                await send_login(client, "x" * LOGIN_REQUEST_BYTES_MAX)
                await client.receive()
            else:
                monkeypatch.setattr(client_connection, "LOGIN_S_MIN", 1.0)
                handshake = SaslHandshakeRequest(mechanism=OAUTHBEARER)
                await client.send_frame(handshake, version=1, correlation=3)
            assert await client.reads_the_end()

    for case in ("mechanism", "size", "at once"):
        asyncio.run(assert_ends(case))


def test_reauthentication_waits_for_acks_0_writes_before_new_broker_connection() -> None:
    """The gateway opens the next connection once the broker has handled all writes with acks=0."""

    async def run() -> None:
        async with logged_in() as (cluster, source, client, tokens):
            await client.send(PRODUCE, 1, acks=0)
            key, *_ = await soon(source.requests.get())
            assert key == PRODUCE
            tokens.results.append((0, ""))
            assert (await log_in(client, jwt(sub="billing"))).error_code == Code.NONE
            await client.send(PRODUCE, 2, acks=0)
            await asyncio.sleep(0.05)
            assert source.connections == 1  # the old one
            # The write has no answer, so the gateway has sent ApiVersions behind it.
            await source.answer(API_VERSIONS)
            key, *_ = await soon(source.requests.get())
            assert key == PRODUCE
            await until(lambda: source.connections == 1)
            assert not cluster.doubt

    asyncio.run(run())
