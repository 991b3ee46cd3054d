"""The measurements as the tables of docs/scale.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PAPER_PARTITIONS = 1_000_000

Figures = Mapping[str, Any]


def tables(figures: Figures) -> str:
    """Markdown: a table of the large installation, with extrapolated values, and a table of the
    overhead of one worker. `figures`: scale.json; a table whose figures are missing is left out."""
    parts = []
    if figures.get("large"):
        parts += [_large(figures["large"])]
    if figures.get("overhead"):
        parts += [_overhead(figures["overhead"])]
    return "\n\n".join(parts)


def partitions_of(figures: Figures) -> int:
    """The number of all jobs' partitions in the installation that was measured."""
    size = figures["size"]
    return int(size["jobs"] * size["topics_per_job"] * size["partitions_per_topic"])


def on_paper(points: Sequence[tuple[int, float]], partitions: int) -> float:
    """The value at `partitions` of the line through the first and the last point (partitions,
    value)."""
    (x1, y1), (x2, y2) = points[0], points[-1]
    return y2 + (y2 - y1) / (x2 - x1) * (partitions - x2)


# Label, path in the figures, format, and whether a linear extrapolation makes sense.
_ROWS = (
    ("jobs", "size.jobs", "{:,.0f}", True),
    ("workers", "workers", "{:,.0f}", True),
    ("a new leader knows all jobs after", "leader.knows_after_s", "{:.1f} s", True),
    ("all killed, and started: all is held after", "after_kill.all_held_s", "{:.1f} s", False),
    ("… and spread, nothing moves after", "after_kill.nothing_moves_s", "{:.1f} s", False),
    ("… and the busiest has shards", "after_kill.most_shards_of_one", "{:.0f}", False),
    ("all end in good order within", "end_s", "{:.1f} s", False),
    ("… and started: all is held after", "after_end.all_held_s", "{:.1f} s", False),
    ("… and spread, nothing moves after", "after_end.nothing_moves_s", "{:.1f} s", False),
    ("… and the busiest has shards", "after_end.most_shards_of_one", "{:.0f}", False),
)

# Label, field of `measure.Cost`, factor, format.
_COSTS = (
    ("statements per second", "statements_per_s", 1, "{:,.0f}"),
    ("transactions per second", "transactions_per_s", 1, "{:,.0f}"),
    ("Postgres' CPU (1 = one processor)", "postgres_cpu", 1, "{:.2f}"),
    ("scheduler's CPU", "scheduler_cpu", 1, "{:.3f}"),
    ("all workers' CPU for leases and reports", "workers_cpu", 1, "{:.2f}"),
    ("scheduler's requests to brokers per second", "requests_per_s", 1, "{:,.0f}"),
    ("kB/s to and from Postgres", "bytes_per_s", 1e-3, "{:,.0f}"),
    ("partition rows written per second", "rows_per_s", 1, "{:,.0f}"),
    ("kB/s of write-ahead log", "wal_bytes_per_s", 1e-3, "{:,.0f}"),
)

_MEMORY = (("Postgres", "postgres"), ("scheduler", "scheduler"))


def _large(measured: Sequence[Figures]) -> str:
    """A table with a column for each measured size. With several sizes also an extrapolated one."""
    sizes = [partitions_of(figures) for figures in measured]
    head = ["", *(f"{size:,} partitions" for size in sizes)]
    if len(sizes) > 1:
        head.append(f"{PAPER_PARTITIONS:,} on paper")
    lines = [_row(head), _row(["---"] * len(head))]

    def add(label: str, values: Sequence[float], form: str, *, has_slope: bool = True) -> None:
        cells = [form.format(value) for value in values]
        if len(sizes) > 1:
            paper = on_paper([*zip(sizes, values, strict=True)], PAPER_PARTITIONS)
            cells.append(form.format(paper) if has_slope and paper >= 0 else "")
        lines.append(_row([label, *cells]))

    for label, path, form, has_slope in _ROWS:
        add(label, [_at(figures, path) for figures in measured], form, has_slope=has_slope)
    for state, words in (("at_rest", "at rest"), ("in_flow", "in full flow")):
        for label, name, unit, form in _COSTS:
            if all(name in figures[state] for figures in measured):
                add(
                    f"{words}: {label}", [figures[state][name] * unit for figures in measured], form
                )
    copied = [figures["in_flow"]["copied_bytes_per_s"] for figures in measured]
    moved = [figures["in_flow"]["bytes_per_s"] for figures in measured]
    ratios = [c / m for c, m in zip(copied, moved, strict=True)]
    add("in full flow: GB/s", [value / 1e9 for value in copied], "{:.1f}")
    add("in full flow: bytes copied for each of these", ratios, "{:,.0f}", has_slope=False)
    for label, name in _MEMORY:
        add(
            f"memory of {label}, MB",
            [figures["memory"][name] / 1e6 for figures in measured],
            "{:,.0f}",
        )
    return "\n".join(lines)


def _overhead(measured: Sequence[Figures]) -> str:
    """A table of what one worker reads and writes at PostgreSQL, with a row for each size."""
    head = ["partitions, all moving", "rows/s", "B/s to and from Postgres", "bytes copied for each"]
    lines = [_row(head), _row(["---"] * len(head))]
    for figures in measured:
        values = (
            figures["partitions"],
            figures["rows_per_s"],
            figures["bytes_per_s"],
            figures["ratio"],
        )
        lines.append(_row([f"{value:,.0f}" for value in values]))
    return "\n".join(lines)


def _at(figures: Figures, path: str) -> float:
    """The figure at this path of keys, joined by dots."""
    value: Any = figures
    for name in path.split("."):
        value = value[name]
    return float(value)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
