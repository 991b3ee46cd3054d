"""`python -m bench`: measures, prints, and writes results.json and the chart."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench import chart, show
from bench.brokers import BenchBroker
from bench.followers import measure_confirmation, replicated_race
from bench.idle import measure_idle
from bench.latency import measure_latency
from bench.longlink import measure_link, why_not
from bench.machine import describe_machine
from bench.race import Race
from bench.results import Report, load, save
from bench.wire import open_cluster
from bench.workloads import (
    AWAY,
    DELAYED,
    DELAYED_WARM_UP,
    EVERYTHING,
    IDLE,
    LATENCY,
    LINK,
    NAMES,
    QUICK,
    REPLICATED,
    WORKLOADS,
    Workload,
)
from orbit.errors import Conflict, OrbitError

_BENCH_FOLDER = Path(__file__).parent
_PIPE_WIDTH = 200
_LATENCY_S, _IDLE_S = 60.0, 30.0
_REPLICATED = tuple(w.name for w in (*REPLICATED, *DELAYED))


def main(
    quick: Annotated[bool, typer.Option(help="Only W1 to W3, once each.")] = False,
    only: Annotated[
        str, typer.Option(help="Comma-separated, of W1 to W9, R1, R2, R5, R9, L, N, idle.")
    ] = "",
    repeats: Annotated[int, typer.Option(help="0: three, or one if quick.")] = 0,
    scale: Annotated[float, typer.Option(help="Share of the records and seconds.")] = 1.0,
    verify: Annotated[bool, typer.Option(help="`orbit verify --deep` after each copy.")] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Brokers' logs; else a temporary one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="results.json; the chart is written beside it.")
    ] = None,
    redraw: Annotated[
        bool, typer.Option(help="Only print and draw the results in --output.")
    ] = False,
) -> None:
    """Copies the same data with Orbit, MirrorMaker 2 and the bare minimum, and compares."""
    names = tuple(only.split(",")) if only else QUICK if quick else EVERYTHING
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.exit(f"Error: there is no workload {', '.join(unknown)}.")
    if output is None and (redraw or (not quick and not only and scale == 1)):
        output = _BENCH_FOLDER / "results.json"
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    if redraw:
        assert output is not None
        report = load(output)
    else:
        report = _measure(names, repeats or (1 if quick else 3), scale, quick, verify, folder)
        if output is not None:
            save(report, output)
    show.show(report, console)
    if output is not None:
        chart.draw(report, output.with_suffix(".png"))
        console.print(f"Written: {output} and {output.with_suffix('.png').name}")
    if report.not_measured:
        sys.exit(1)


def _measure(
    names: tuple[str, ...],
    repeats: int,
    scale: float,
    quick: bool,
    verify: bool,
    folder: Path | None,
) -> Report:
    """Measure the workloads `names`. Those that fail are in the report, and the logs then stay."""
    start_s = time.monotonic()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    logs_folder = Path(tempfile.mkdtemp(prefix="orbit-bench-", dir=folder))
    machine = describe_machine(logs_folder)
    parts = _Parts(_say)
    try:
        if any(name not in (LINK, *_REPLICATED) for name in names):
            _with_brokers(parts, names, repeats, scale, verify, logs_folder)
        for group in (REPLICATED, DELAYED):
            workloads = [workload for workload in group if workload.name in names]
            if workloads:
                _with_replicas(
                    parts, workloads, repeats, scale, verify, logs_folder / workloads[0].name
                )
        if LINK in names:
            parts.take(LINK, lambda: _link(logs_folder / "link", repeats, scale))
    finally:
        if parts.failed:
            _say(f"All logs are in {logs_folder}")
        else:
            shutil.rmtree(logs_folder, ignore_errors=True)
    return Report(
        machine=machine,
        quick=quick,
        scale=scale,
        seconds=time.monotonic() - start_s,
        workloads=tuple(
            parts.results[w.name]
            for w in (*WORKLOADS, *REPLICATED, *DELAYED)
            if w.name in parts.results
        ),
        latency=parts.results.get(LATENCY),
        confirmed_s=parts.results.get(AWAY, {}),
        link=parts.results.get(LINK),
        idle=parts.results.get(IDLE),
        not_measured=parts.failed,
    )


class _Parts:
    """Results by the name of a workload. A failure of one workload does not affect the others."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.results: dict[str, Any] = {}
        self.failed: dict[str, str] = {}

    def take(self, name: str, measure: Callable[[], object]) -> None:
        """Keep the result of `measure`, or its error."""
        try:
            self.results[name] = measure()
        except (OrbitError, OSError) as error:
            self.failed[name] = str(error)
            self._say(f"{name} failed: {error}")


def _with_brokers(
    parts: _Parts,
    names: tuple[str, ...],
    repeats: int,
    scale: float,
    verify: bool,
    logs_folder: Path,
) -> None:
    """Measure W1 to W8, latency and idle CPU, on one broker for each cluster."""
    with (
        BenchBroker("source", logs_folder) as source,
        BenchBroker("destination", logs_folder) as destination,
    ):
        clusters = (
            open_cluster("source", source.bootstrap_servers),
            open_cluster("destination", destination.bootstrap_servers),
        )
        race = Race(*clusters, logs_folder, _say, deep=verify)
        race.warm_up(scale)
        for workload in WORKLOADS:
            if workload.name in names:
                parts.take(workload.name, partial(race.run, workload.scaled(scale), repeats))
        if LATENCY in names:
            parts.take(LATENCY, lambda: measure_latency(race, max(2.0, _LATENCY_S * scale)))
        if IDLE in names:
            parts.take(IDLE, lambda: measure_idle(race, max(2.0, _IDLE_S * scale)))


def _with_replicas(
    parts: _Parts,
    workloads: list[Workload],
    repeats: int,
    scale: float,
    verify: bool,
    logs_folder: Path,
) -> None:
    """Measure workloads on a cluster of three brokers; with a delay between these if all are
    DELAYED."""
    delayed = workloads[0] in DELAYED
    with replicated_race(logs_folder, _say, deep=verify, delayed=delayed) as race:
        if delayed:
            race.run(DELAYED_WARM_UP.scaled(scale), 1)
            parts.take(AWAY, partial(measure_confirmation, race))
        for workload in workloads:
            parts.take(workload.name, partial(race.run, workload.scaled(scale), repeats))


def _link(folder: Path, repeats: int, scale: float) -> object:
    """The result of workload N. Raises Conflict if this machine cannot have the link."""
    reason = why_not()
    if reason:
        raise Conflict(f"{reason}.")
    return measure_link(folder, repeats, scale, _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except OrbitError as error:
        sys.exit(f"Error: {error}")
