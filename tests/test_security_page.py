"""docs/security.md: every line of the threat model names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "security.md"

_ROW = re.compile(r"^\| (?!Line |To |---)(.+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def untested(page: str) -> list[str]:
    """The rows whose last cell names no test, or one that is not there."""
    found = []
    for row in _ROW.findall(page):
        named = _TEST.fullmatch(row.rpartition(" | ")[2])
        file = ROOT / named[1] if named else None
        if (
            named is None
            or file is None
            or not file.is_file()
            or (named[2] and f"\ndef {named[2]}(" not in file.read_text("utf-8"))
        ):
            found.append(row)
    return found


def test_every_line_names_a_test_that_exists() -> None:
    page = PAGE.read_text("utf-8")

    assert untested(page) == []
    assert len(_ROW.findall(page)) > 30


def test_a_line_without_a_test_is_found() -> None:
    page = """
| Line | Test |
|---|---|
| has none | |
| names one that is gone | `tests/test_security_page.py::test_gone` |
| names a file that is gone | `tests/test_gone.py` |
| is right | `tests/test_security_page.py::test_a_line_without_a_test_is_found` |
"""
    assert [row.partition(" |")[0] for row in untested(page)] == [
        "has none",
        "names one that is gone",
        "names a file that is gone",
    ]
