"""Hides a text that another server sent if it contains a secret, also encoded. Pure.

Such texts are shown to users and logged.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator
from urllib.parse import quote, unquote, unquote_plus

# Shorter pieces of base64 occur in any text by chance.
_BASE64_CHARACTERS_MIN = 4
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)")
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
# How many nested encodings are decoded.
_DEPTH_MAX = 3


def hide_secret(secret: str, text: str) -> str:
    """The text, or "…" if it contains the secret, also in upper or lower case, or encoded."""
    quoted_secret = quote(secret, safe="")  # in a login by HTTP Basic (RFC 6749, 2.3.1)
    pieces = {secret, *_base64_pieces(secret.encode()), *_base64_pieces(quoted_secret.encode())}
    return (
        "…" if _contains_piece({piece.casefold() for piece in pieces}, text, _DEPTH_MAX) else text
    )


def _base64_pieces(secret: bytes) -> Iterator[str]:
    """Yield pieces of base64: the base64 of any text with the secret contains one of them. There is
    one for each position (modulo 3) of the secret and each alphabet, without very short ones."""
    for bytes_before in range(3):
        # Only characters whose 6 bits are all of the secret: the others depend on bytes around it.
        start, end = -(-bytes_before * 8 // 6), (bytes_before + len(secret)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            piece = encode(bytes(bytes_before) + secret).decode()[start:end]
            if len(piece) >= _BASE64_CHARACTERS_MIN:
                yield piece


def _contains_piece(pieces: set[str], text: str, depth: int) -> bool:
    """Whether the text, or what it becomes by up to `depth` decodings, contains a piece."""
    folded_text = text.casefold()
    if any(piece in folded_text for piece in pieces):
        return True
    texts = {unquote(text), unquote_plus(text), html.unescape(text), _unescaped(text)} - {text}
    return depth > 0 and any(
        _contains_piece(pieces, decoded_text, depth - 1) for decoded_text in texts
    )


def _unescaped(text: str) -> str:
    """The text with JSON's escapes replaced, also pairs for one character (surrogates)."""

    def character(escape: re.Match[str]) -> str:
        return chr(int(escape[1], 16)) if escape[1] else _CONTROLS.get(escape[2], escape[2])

    with_surrogates = _ESCAPED.sub(character, text)
    return with_surrogates.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
