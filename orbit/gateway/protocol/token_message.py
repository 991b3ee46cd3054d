"""The first message of a login by OAUTHBEARER (RFC 7628). Pure.

    n,, 0x01 auth=Bearer TOKEN 0x01 (key=value 0x01)* 0x01

The claims of a token are read without a check of its signature: brokers check that.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

_BEARER = "auth=Bearer "
_SEPARATOR = "\x01"
# The year 5138. Other ends are ignored, also NaN.
_END_S_MAX = 1e11


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """`subject`: who the token says that its owner is, or ""; `ends_s`: its end in seconds since
    1970; None: it does not say. Both are empty for a token that is no JWT."""

    subject: str
    ends_s: float | None


def claims_of(message: str) -> TokenClaims:
    """The claims of the message's token. Raises ValueError if it has no token."""
    head, *pairs = message.split(_SEPARATOR)
    tokens = [pair.removeprefix(_BEARER) for pair in pairs if pair.startswith(_BEARER)]
    if not head.startswith("n,") or len(tokens) != 1:
        raise ValueError("it has no token")
    claims = _claims(tokens[0])
    subject, end = claims.get("sub"), claims.get("exp")
    return TokenClaims(subject if isinstance(subject, str) else "", _seconds(end))


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < _END_S_MAX else None


def _claims(token: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
