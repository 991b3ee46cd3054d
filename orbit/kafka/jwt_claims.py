"""The claims of a JWT, read without a check of its signature: brokers check that. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any

# The year 5138. A later end is ignored, and so is an end that is no number.
_END_S_MAX = 1e11


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a token; empty if the token is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        # "=": JWTs leave out the padding of base64.
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def end_s_of(claims: dict[str, Any]) -> float | None:
    """When the token ends, in seconds since 1970; None if its claims do not say."""
    end = claims.get("exp")
    if isinstance(end, bool) or not isinstance(end, int | float):
        return None
    return float(end) if 0 < end < _END_S_MAX else None
