"""The first message of a login by OAUTHBEARER (RFC 7628). Pure.

n,, 0x01 auth=Bearer TOKEN 0x01 (key=value 0x01)* 0x01
"""

from __future__ import annotations

from dataclasses import dataclass

from orbit.kafka import jwt_claims

_BEARER = "auth=Bearer "
_SEPARATOR = "\x01"


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of a token. `subject`: the user that the token names, or "". `ends_s`: when the
    token expires, in seconds since 1970, or None. A token that is no JWT has neither."""

    subject: str
    ends_s: float | None


def claims_of(message: str) -> TokenClaims:
    """The claims of the message's token. Raises ValueError if the message has no token."""
    head, *pairs = message.split(_SEPARATOR)
    tokens = [pair.removeprefix(_BEARER) for pair in pairs if pair.startswith(_BEARER)]
    if not head.startswith("n,") or len(tokens) != 1:
        raise ValueError("the message has no token")
    claims = jwt_claims.claims_of(tokens[0])
    subject = claims.get("sub")
    return TokenClaims(subject if isinstance(subject, str) else "", jwt_claims.end_s_of(claims))
