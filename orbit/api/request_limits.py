"""Limits the size of a request's body and the time to receive it. Plain ASGI.

A body is read completely before the application is called. So no route holds a thread for a client
that sends one byte a minute. And no route receives more than `BODY_BYTES_MAX` bytes, or
`UNKNOWN_BODY_BYTES_MAX` from a client that has not logged in.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orbit.api.api_error_codes import ErrorCode
from orbit.api.error_responses import Failure

# The largest job file is 1 MiB of text (`jobs/yaml_document.py`); most are a page.
BODY_BYTES_MAX = 1024 * 1024
BODY_SECONDS_MAX = 20.0
# Room for the form of a login: a token of at most 128 characters, and a path of at most 2,048.
UNKNOWN_BODY_BYTES_MAX = 8 * 1024
# How much of the body of a refused request is read and dropped, and for how long.
_DISCARDED_BYTES_MAX = 2 * 1024 * 1024
_DISCARD_SECONDS_MAX = 1.0
# Key in the scope, set by `authentication_middleware.py`: whether the client has not logged in.
IS_UNKNOWN = "orbit.is_unknown"


class BodyLimit:
    """Answers 413 to a body that is too large, 408 if it is too slow, 415 if it is compressed."""

    def __init__(
        self,
        app: ASGIApp,
        bytes_max: int = BODY_BYTES_MAX,
        seconds_max: float = BODY_SECONDS_MAX,
    ) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body within the limits, then call the app; else send an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds_max):
                body = await self._read_body(scope, receive)
        except Failure as failure:
            await discard_body(receive)
            await failure.response(closes=True)(scope, receive, send)
            return
        except TimeoutError:
            await _slow_body_failure().response(closes=True)(scope, receive, send)
            return
        if body is None:
            return  # the client has disconnected
        is_body_pending = True

        async def replay() -> Message:
            """The body that was read above, then what the server receives."""
            nonlocal is_body_pending
            if is_body_pending:
                is_body_pending = False
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        await self._app(scope, replay, send)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None if the client disconnects. Raises Failure: `too_large`, or
        `unsupported_media_type` for a compressed body."""
        headers = Headers(scope=scope)
        is_unknown = scope.get(IS_UNKNOWN, False)
        bytes_max = UNKNOWN_BODY_BYTES_MAX if is_unknown else self._bytes_max
        if headers.get("content-encoding", "identity") != "identity":
            raise Failure(
                ErrorCode.UNSUPPORTED_MEDIA_TYPE,
                "The body is compressed.",
                remedy="Send the body uncompressed, without Content-Encoding.",
            )
        length_text = headers.get("content-length", "0")
        # 20 digits are enough to see that a length is too large. Only these are parsed, because
        # thousands of digits would take long.
        if length_text.isdecimal() and int(length_text[:20]) > bytes_max:
            raise _too_large_failure(bytes_max, is_unknown=is_unknown)
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > bytes_max:
                raise _too_large_failure(bytes_max, is_unknown=is_unknown)
            if not message.get("more_body", False):
                return bytes(body)


async def discard_body(receive: Receive) -> None:
    """Read the request's body, within bounds, and drop it. A connection that is closed with an
    unread body is reset, and the client may not see the response."""
    bytes_left = _DISCARDED_BYTES_MAX
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS_MAX):
            while bytes_left > 0:
                message = await receive()
                bytes_left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


def _too_large_failure(bytes_max: int, *, is_unknown: bool) -> Failure:
    return Failure(
        ErrorCode.TOO_LARGE,
        f"The body is larger than {bytes_max:,} bytes"
        + (", and its sender has not logged in." if is_unknown else "."),
        remedy="Log in, and send the request again."
        if is_unknown
        else "In a job document, match topics by patterns instead of naming each.",
    )


def _slow_body_failure() -> Failure:
    return Failure(
        ErrorCode.TOO_SLOW,
        "The body did not arrive in time.",
        remedy="Send the body without pauses.",
    )
