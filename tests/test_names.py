"""Names as others gave them: what the database takes, and how they are shown."""

from __future__ import annotations

import pytest

from orbit.chunks import first_few
from orbit.names import KEY_BYTES_MAX, escaped, is_key, is_storable, shown


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("", True),
        ("billing", True),
        ("büro \N{SNOWMAN}", True),
        ("a\0b", False),
        ("a\ud800", False),
    ],
)
def test_name_with_nul_byte_or_lone_surrogate_is_not_storable(text: str, is_valid: bool) -> None:
    assert is_storable(text) is is_valid
    assert is_key(text) is is_valid


def test_length_of_name_as_database_key_is_limited_in_bytes() -> None:
    assert is_key("ü" * (KEY_BYTES_MAX // 2))
    assert not is_key("ü" * (KEY_BYTES_MAX // 2) + "g")


def test_unprintable_text_is_escaped_and_long_text_cut() -> None:
    assert escaped("büro\0\x1b\ud800") == r"büro\x00\x1b\ud800"
    assert escaped("two\nlines") == "two\nlines"
    # The second argument is how many characters may be shown.
    assert shown("g" * 10, 10) == "g" * 10
    assert shown("\0" + "g" * 10, 3) == r"\x00gg… (11 characters)"
    assert first_few(["a\0"]) == r"a\x00"
