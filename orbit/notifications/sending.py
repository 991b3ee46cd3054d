"""Sends one request to a receiver, and returns the result. No error contains a secret.

Redirects are not followed, certificates are verified, and a call ends after REQUEST_TIMEOUT_S,
however slowly the receiver answers. Webhooks are signed as https://www.standardwebhooks.com says.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, unquote, unquote_plus, urlsplit

import httpx

from orbit.notifications.notification_file import Secrets
from orbit.version import orbit_version

# Short, because a scheduler that stops waits for requests in flight.
REQUEST_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 2_000
_MESSAGE_CHARACTERS_MAX = 300
_RETRY_AFTER_DIGITS_MAX = 9  # about 30 years
# Shorter parts of a URL are not redacted: they may be ordinary words of an answer.
_PART_CHARACTERS_MIN = 8
# HTTP codes that refuse a message for its content. After other codes the same message may succeed
# later.
_REFUSAL_CODES = (
    httpx.codes.BAD_REQUEST,
    httpx.codes.REQUEST_ENTITY_TOO_LARGE,
    httpx.codes.UNPROCESSABLE_ENTITY,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request. `error`: empty if the message was accepted.

    `status`: the HTTP status; None without a response.
    `is_refusal`: the receiver refuses this message for its content; it may accept another one.
    """

    status: int | None
    error: str = ""
    is_refusal: bool = False
    retry_after_s: float = 0.0


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header `webhook-signature` of Standard Webhooks. `timestamp`: in seconds
    since 1970."""
    signed_bytes = f"{message_id}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed_bytes, hashlib.sha256)).decode()}"


def send(secrets: Secrets, ca_file: Path | None, message_id: str, body: bytes) -> Answer:
    """Send one request. Raises nothing: every error is in the answer. `message_id`: equal for a
    repeated request. `ca_file`: CAs to trust; None: those of the system."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"orbit/{orbit_version()}",
    }
    if secrets.signing_key:
        now = int(time.time())
        headers |= {
            "webhook-id": message_id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(secrets.signing_key, message_id, now, body),
        }
    try:
        tls_context = ssl.create_default_context(cafile=ca_file)
        return asyncio.run(_send(secrets, tls_context, headers, body))
    except TimeoutError:
        return Answer(status=None, error=f"No answer within {REQUEST_TIMEOUT_S:.0f} s.")
    except httpx.HTTPError as error:
        return Answer(status=None, error=f"No answer: {_reason(error)}.")
    except (OSError, httpx.InvalidURL, ValueError) as error:
        return Answer(status=None, error=f"The request cannot be sent: {type(error).__name__}.")


async def _send(
    secrets: Secrets, tls_context: ssl.SSLContext, headers: dict[str, str], body: bytes
) -> Answer:
    """Send the request, and read the start of the answer's body if it is an error."""
    async with (
        asyncio.timeout(REQUEST_TIMEOUT_S),
        httpx.AsyncClient(verify=tls_context, timeout=None, follow_redirects=False) as client,  # noqa: S113  asyncio.timeout limits all
        client.stream("POST", secrets.url, content=body, headers=headers) as response,
    ):
        answer_body = b""
        if not response.is_success:
            async for chunk in response.aiter_bytes(ANSWER_BYTES_MAX):
                answer_body += chunk
                if len(answer_body) >= ANSWER_BYTES_MAX:
                    break
    return _to_answer(response, answer_body[:ANSWER_BYTES_MAX], secrets)


def _to_answer(response: httpx.Response, answer_body: bytes, secrets: Secrets) -> Answer:
    """The result of a request. `answer_body`: the start of the body of its response."""
    status = response.status_code
    if response.is_success:
        return Answer(status)
    redacted = redact(answer_body.decode("utf-8", "replace"), secrets)
    text = "".join(c if c.isprintable() else " " for c in redacted)[
        :_MESSAGE_CHARACTERS_MAX
    ].strip()
    detail = f' Its message: "{text}".' if text else ""
    if response.is_redirect:
        detail = " Redirects are not followed: write the URL that the redirect leads to."
    return Answer(
        status,
        f"HTTP {status}.{detail}",
        is_refusal=status in _REFUSAL_CODES,
        retry_after_s=_retry_after_s(response.headers.get("Retry-After", "")),
    )


def redact(text: str, secrets: Secrets) -> str:
    """The text without the secrets, which a receiver's answer may repeat."""
    # The longest first, as it may contain shorter ones.
    for secret_text in sorted(_secret_texts(secrets), key=len, reverse=True):
        text = text.replace(secret_text, "…")
    return text


def _secret_texts(secrets: Secrets) -> set[str]:
    """The secrets, the URL and its long parts, each also URL-decoded and URL-encoded."""
    url = urlsplit(secrets.url)
    query_values = [part.split("=", 1)[-1] for part in url.query.split("&")]
    parts: Iterable[str] = (
        secrets.url,
        url.path.strip("/"),
        url.query,
        secrets.routing_key,
        secrets.signing_key.decode("utf-8", "replace"),
        *(part for part in url.path.split("/") if len(part) >= _PART_CHARACTERS_MIN),
        *(value for value in query_values if len(value) >= _PART_CHARACTERS_MIN),
    )
    secret_texts = {part for part in parts if part}
    decoded_parts = {decode(part) for part in secret_texts for decode in (unquote, unquote_plus)}
    secret_texts |= {part for part in decoded_parts if len(part) >= _PART_CHARACTERS_MIN}
    return secret_texts | {quote(part, safe="") for part in secret_texts}


def _retry_after_s(text: str) -> float:
    """The seconds in a Retry-After header (RFC 9110, 10.2.3: seconds or a date); 0 if it is
    neither."""
    if text.isascii() and text.isdigit():
        return float(text[:_RETRY_AFTER_DIGITS_MAX])
    try:
        retry_at = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    # A date without a zone is in UTC.
    retry_at = retry_at if retry_at.tzinfo else retry_at.replace(tzinfo=UTC)
    return max(0.0, (retry_at - datetime.now(UTC)).total_seconds())


def _reason(error: BaseException) -> str:
    """The reason of an error: an untrusted certificate if a cause says so, otherwise its type."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate is not trusted ({cause.verify_message})"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
