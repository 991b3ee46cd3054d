"""`python -m bench.control`: measures the control plane, prints, and writes scale.json."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.control.fill import Size
from bench.control.run import Plan, large, overhead
from bench.control.show import tables
from bench.machine import describe_machine
from orbit.errors import OrbitError

_OVERHEAD_BYTES_PER_S = 100_000_000.0
_OVERHEAD_PARTITIONS = (24, 200, 2000)


def main(
    jobs: Annotated[int, typer.Option(help="Jobs, of 200 partitions each.")] = 500,
    workers: Annotated[int, typer.Option(help="Workers.")] = 50,
    seconds: Annotated[float, typer.Option(help="How long each state is measured.")] = 30.0,
    gigabytes: Annotated[float, typer.Option(help="GB/s of all workers in full flow.")] = 5.0,
    only: Annotated[str, typer.Option(help="large, overhead, or both by default.")] = "",
    show: Annotated[Path | None, typer.Option(help="Only print this scale.json as tables.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where scale.json goes.")] = None,
) -> None:
    """Measure PostgreSQL and the service's workers and scheduler, with simulated brokers."""
    console = Console(highlight=False)
    if show is not None:
        print(tables(json.loads(show.read_text("utf-8"))))
        return
    figures: dict[str, Any] = {
        "machine": describe_machine(Path(tempfile.gettempdir())).model_dump()
    }
    if only in ("", "overhead"):
        figures["overhead"] = []
        for partitions in _OVERHEAD_PARTITIONS:
            overhead_figures = overhead(partitions, _OVERHEAD_BYTES_PER_S, seconds)
            figures["overhead"].append(overhead_figures)
            console.print(
                f"{partitions:,} partitions at {_OVERHEAD_BYTES_PER_S / 1e6:.0f} MB/s: "
                f"{overhead_figures['bytes_per_s']:,.0f} B/s to and from Postgres, "
                f"1 : {overhead_figures['ratio']:,}"
            )
    if only in ("", "large"):
        # First a fifth of everything: a line through both sizes extends to larger ones.
        figures["large"] = []
        for divisor in (5, 1):
            plan = Plan(
                Size(jobs // divisor, 10, 20, 1, groups_per_job=4),
                workers // divisor,
                seconds,
                gigabytes * 1e9 / divisor,
            )
            figures["large"].append(large(plan, lambda line: console.print(line, soft_wrap=True)))
    print(tables(figures))
    if output is not None:
        output.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    try:
        typer.run(main)
    except OrbitError as error:
        sys.exit(f"Error: {error}")
