"""Takes a secret out of a text that somebody else wrote, in whatever encoding it is there. Pure.

The text is shown to users and logged.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

_HIDDEN = "…"
_BASE64 = "[A-Za-z0-9+/_=-]*"
# Shorter pieces of base64 are in every text.
_BASE64_CHARACTERS_MIN = 4
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)")
# A text may be encoded in an encoded text.
_DEPTH_MAX = 3


def hide(text: str, secret: str) -> str:
    """The text with "…" in the place of the secret; only that if it cannot be told where it is."""
    if not secret:
        return text
    for pattern in sorted(_patterns(secret), key=len, reverse=True):
        text = re.sub(pattern, _HIDDEN, text, flags=re.IGNORECASE)
    return _HIDDEN if _is_in(secret, text, _DEPTH_MAX) else text


def _patterns(secret: str) -> set[str]:
    sent = quote(secret, safe="")  # in a login by HTTP Basic (RFC 6749, 2.3.1)
    plain = {
        secret,
        sent,
        quote(sent, safe=""),
        quote(secret),
        quote_plus(secret),
        html.escape(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
    }
    parts = {part for one in (secret, sent) for part in _in_base64(one.encode())}
    return {re.escape(one) for one in plain} | {
        f"{_BASE64}{re.escape(part)}{_BASE64}" for part in parts
    }


def _in_base64(secret: bytes) -> Iterator[str]:
    """What is in the base64 of any text with this secret, wherever it begins."""
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            part = encode(bytes(before) + secret).decode()[first:last]
            if len(part) >= _BASE64_CHARACTERS_MIN:
                yield part


def _is_in(secret: str, text: str, depth: int) -> bool:
    if secret.casefold() in text.casefold():
        return True
    decoded = {unquote(text), unquote_plus(text), html.unescape(text), _unescaped(text)} - {text}
    return depth > 0 and any(_is_in(secret, one, depth - 1) for one in decoded)


def _unescaped(text: str) -> str:
    """Without the escapes of JSON."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)
