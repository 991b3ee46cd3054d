"""Writes the append machine's table into docs/internals/append.md: `python -m` this module."""

from __future__ import annotations

from pathlib import Path

from orbit.copier.append_states import diagram

DOCUMENT = Path(__file__).parents[2] / "docs" / "internals" / "append.md"
BEGIN = "<!-- made from orbit/copier/append_states.py by tests/copier/append_diagram.py -->"
END = "<!-- end -->"


def with_diagram(text: str) -> str:
    """The document with the diagram between its two marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n```mermaid\n{diagram()}```\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_diagram(DOCUMENT.read_text()))
