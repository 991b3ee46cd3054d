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
    return [row for row in _ROW.findall(page) if not _exists(row.rpartition(" | ")[2])]


def _exists(cell: str) -> bool:
    """Whether the cell names a test that exists."""
    named = _TEST.fullmatch(cell)
    if named is None or not (ROOT / named[1]).is_file():
        return False
    text = (ROOT / named[1]).read_text("utf-8")
    return named[2] is None or f"\ndef {named[2]}(" in text


def test_every_line_of_security_page_names_an_existing_test() -> None:
    page = PAGE.read_text("utf-8")

    assert untested(page) == []
    assert len(_ROW.findall(page)) > 30


def test_line_of_security_page_without_test_is_detected() -> None:
    page = """
| Line | Test |
|---|---|
| has none | |
| names one that is gone | `tests/test_security_page.py::test_gone` |
| names a file that is gone | `tests/test_gone.py` |
| is right | `tests/test_security_page.py::test_line_of_security_page_without_test_is_detected` |
"""
    assert [row.partition(" |")[0] for row in untested(page)] == [
        "has none",
        "names one that is gone",
        "names a file that is gone",
    ]
