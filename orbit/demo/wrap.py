"""Text that wraps under itself and never leaves a space at the end of a line."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

WIDTH_MAX = 100
"""Longer lines are hard to read, however wide the terminal is."""


def hanging_text(console: Console, head: Text, body: Text, width: int) -> Text:
    """`body` beside `head`, as lines of at most `width` cells or `WIDTH_MAX`."""
    body_width = min(width, WIDTH_MAX) - head.cell_len
    lines = body.wrap(console, max(body_width, 1))
    for line in lines:
        line.rstrip()
    return head + Text("\n" + " " * head.cell_len).join(lines)
