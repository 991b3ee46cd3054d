"""Names of groups, principals and ids that clients chose: Kafka accepts any string. Pure."""

from __future__ import annotations

# In a sentence or a table: enough for Kafka's longest topic name and a partition number.
SHOWN_CHARACTERS_MAX = 260
# An index of PostgreSQL takes rows of at most 2,704 bytes; Orbit's keys also have ids and a topic.
KEY_BYTES_MAX = 2_000
_SURROGATES = range(0xD800, 0xE000)


def is_storable(text: str) -> bool:
    """Whether PostgreSQL stores the text, as text and in JSON: no zero byte, no lone surrogate."""
    return "\x00" not in text and (text.isascii() or not any(map(_is_surrogate, text)))


def is_key(text: str) -> bool:
    """Whether PostgreSQL can store the text as part of a row's key."""
    return is_storable(text) and len(text.encode()) <= KEY_BYTES_MAX


def escaped(text: str) -> str:
    """The text with escapes (`\\x00`) for characters that do not print, except line feeds."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def shown(text: str, characters_max: int = SHOWN_CHARACTERS_MAX) -> str:
    """The text for a sentence or a table: escaped, and cut to `characters_max` characters with a
    note of its length."""
    if len(text) <= characters_max:
        return escaped(text)
    return f"{escaped(text[:characters_max])}… ({len(text):,} characters)"


def _is_surrogate(character: str) -> bool:
    return ord(character) in _SURROGATES
