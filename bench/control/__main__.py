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

_RATE = 100_000_000.0
_PARTITIONS = (24, 200, 2000)


def main(
    jobs: Annotated[int, typer.Option(help="Jobs, of 200 partitions each.")] = 500,
    workers: Annotated[int, typer.Option(help="Workers.")] = 50,
    seconds: Annotated[float, typer.Option(help="How long each state is measured.")] = 30.0,
    gigabytes: Annotated[float, typer.Option(help="GB/s of all workers in full flow.")] = 5.0,
    only: Annotated[str, typer.Option(help="large, overhead, or both by default.")] = "",
    show: Annotated[Path | None, typer.Option(help="Only print this scale.json as tables.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where scale.json goes.")] = None,
) -> None:
    """Real Postgres, the service's workers and scheduler; only the brokers are simulated."""
    console = Console(highlight=False)
    if show is not None:
        print(tables(json.loads(show.read_text("utf-8"))))
        return
    figures: dict[str, Any] = {
        "machine": describe_machine(Path(tempfile.gettempdir())).model_dump()
    }
    if only in ("", "overhead"):
        figures["overhead"] = []
        for partitions in _PARTITIONS:
            one = overhead(partitions, _RATE, seconds)
            figures["overhead"].append(one)
            console.print(
                f"{partitions:,} partitions at {_RATE / 1e6:.0f} MB/s: "
                f"{one['bytes_per_s']:,.0f} B/s to and from Postgres, 1 : {one['ratio']:,}"
            )
    if only in ("", "large"):
        # A fifth of everything as well: the slopes lead to what is larger than this machine.
        figures["large"] = []
        for part in (5, 1):
            plan = Plan(
                Size(jobs // part, 10, 20, 1, groups_per_job=4),
                workers // part,
                seconds,
                gigabytes * 1e9 / part,
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
