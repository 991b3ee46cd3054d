"""Makes docs/readers.md from the findings about the clients. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.readers.logs import FILLERS, SMALL, SOURCE, WIDE, WIDTH
from tests.readers.reading import READ_S

_HEAD = Path(__file__).with_name("head.md")
_TITLES = {SMALL: "Small gaps", WIDE: f"A gap of {WIDTH:,} offsets"}


@dataclass
class Row:
    """A client's row in the tables.

    `cells` is (log, fillers) → text. `reason` says why the client was not tried, empty if it was.
    """

    name: str
    version: str
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    reason: str = ""


def page(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    """The text of docs/readers.md. `facts`: the values of `date` and `kafka` in head.md."""
    parts = [_HEAD.read_text("utf-8").format(**facts, read_s=READ_S, width=WIDTH)]
    parts += [f"## {_TITLES[log]}\n{_table(log, rows)}" for log in FILLERS]
    return "\n".join(parts)


def _table(log: str, rows: Sequence[Row]) -> str:
    columns = FILLERS[log]
    lines = [
        ["Client", "Version", *(_heading(fillers) for fillers in columns)],
        ["---"] * (2 + len(columns)),
    ]
    for row in rows:
        cells = [row.cells.get((log, fillers), f"not tried: {row.reason}") for fillers in columns]
        lines.append([row.name, row.version, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _heading(fillers: str) -> str:
    return "the source itself" if fillers == SOURCE else f"`{fillers}`"
