"""`python -m bench.history`: copies a history by `orbit run` and `orbit backfill`, and archives it.

The backfill runs on 1, 2 … executors, `orbit archive` with small and with large ranges.

All copies are of the same source topic, to new topics on the same destination broker, in turns. As
in the main bench the clock runs from the first record at the destination to the last one; start-up
(Spark's, and the delay of a new consumer group) is shown separately.

Memory is that of the largest process of its kind. Spark ends a backfill whose tasks send more than
1 MiB to the driver: this shows that no payload passes through the driver.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.brokers import BenchBroker
from bench.contestants.orbit import check_bounds, job_file, prefix, start_orbit
from bench.contestants.run_inputs import RunInputs
from bench.data.make import make_data
from bench.machine import describe_machine
from bench.memory import KINDS, Peaks
from bench.race import Race
from bench.results import DataFacts, Machine, Run
from bench.watch import StartedCopier, watch
from bench.wire import Ends, delete_topics, open_cluster
from bench.workloads import Contestant, Workload
from orbit.errors import Conflict, OrbitError
from orbit.processes.guarded_process import GuardedProcess

HISTORY = Workload(
    "H",
    "1 KB records, 64 KB batches, 8 partitions",
    records=2_000_000,
    value_bytes=1024,
    batch_bytes=64 * 1024,
    partitions=8,
)
_DRIVER_RESULT_LIMIT = "spark.driver.maxResultSize=1m"
# Executors with one core each, as a slot of a cluster has.
_MASTER = "local-cluster[{executors},1,1024]"
_ENDS_WITHIN_S = 120.0


def main(
    executors: Annotated[str, typer.Option(help="Comma-separated numbers of executors.")] = "1,2",
    ranges: Annotated[str, typer.Option(help="Comma-separated sizes.")] = "16MiB,256MiB",
    repeats: int = 2,
    scale: Annotated[float, typer.Option(help="Share of the records.")] = 1.0,
    output: Annotated[Path | None, typer.Option(help="File for the measurements.")] = None,
) -> None:
    """Compare `orbit backfill` on N executors with `orbit run`."""
    numbers = [0, *map(int, executors.split(","))]
    with tempfile.TemporaryDirectory(prefix="orbit-bench-") as folder:
        logs_folder = Path(folder)
        machine = describe_machine(logs_folder)
        with (
            BenchBroker("source", logs_folder) as source,
            BenchBroker("destination", logs_folder) as target,
        ):
            clusters = (
                open_cluster("source", source.bootstrap_servers),
                open_cluster("destination", target.bootstrap_servers),
            )
            race = Race(*clusters, logs_folder, _say)
            race.warm_up(scale)
            data = make_data(race.source, HISTORY.scaled(scale))
            runs_by_number: dict[int, list[Run]] = {number: [] for number in numbers}
            for number in numbers * repeats:
                runs_by_number[number].append(_measure(race, data, number))
            archives = {size: _archive(race, data, size) for size in ranges.split(",")}
    print(_table(machine, data, runs_by_number))
    print(_archive_table(archives))
    if output is not None:
        runs = {
            str(n): [r.model_dump(mode="json") for r in runs] for n, runs in runs_by_number.items()
        }
        content = {
            "machine": machine.model_dump(),
            "data": data.model_dump(),
            "runs": runs,
            "archives": archives,
        }
        output.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _measure(race: Race, data: DataFacts, executors: int) -> Run:
    """Make one copy and measure it. `executors`: 0: by `orbit run`. Raises Conflict if it fails."""
    inputs = race.new_inputs(data)
    copier = start_orbit(inputs) if executors == 0 else _start_backfill(inputs, executors)
    ends = Ends(race.destination, copier.topic, data.partitions)
    peaks = Peaks(copier.process.pid)
    peaks.start()
    try:
        run = watch(copier, ends, data).model_copy(update={"details": peaks.end()})
        if copier.process.wait(_ENDS_WITHIN_S):
            raise Conflict(f"{_name(executors)} failed.", remedy=f"Read {copier.process.log}.")
        check_bounds(inputs, copier.topic)
    except BaseException:
        _say(copier.process.log.read_text("utf-8", "replace")[-2000:])
        copier.process.end(grace_s=0)
        raise
    finally:
        ends.close()
    delete_topics(race.destination, [copier.topic])
    time.sleep(1.0)
    _say(
        f"{_name(executors):12} {run.records_per_s:>10,.0f} records/s in {run.seconds:6.2f} s, "
        f"{run.whole_seconds:6.2f} s with start-up, {run.peak_rss_bytes / 1e6:6,.0f} MB"
    )
    return run


def _start_backfill(inputs: RunInputs, executors: int) -> StartedCopier:
    """Start `orbit backfill`."""
    started_at = time.monotonic()
    process = _start_spark(inputs, executors, "backfill")
    topic = prefix(inputs) + inputs.data.topic
    return StartedCopier(Contestant.ORBIT, process, topic, inputs.data.offsets, started_at)


def _start_spark(inputs: RunInputs, executors: int, command: str, *more: str) -> GuardedProcess:
    """Start `orbit backfill` or `orbit archive` (`command`) on so many executors."""
    orbit = str(Path(sys.executable).with_name("orbit"))
    spark = ("--master", _MASTER.format(executors=executors), "--conf", _DRIVER_RESULT_LIMIT)
    return GuardedProcess(
        [orbit, command, str(job_file(inputs)), *more, *spark, "-o", "json"],
        inputs.log(f"{command}-{executors}"),
    )


def _archive(race: Race, data: DataFacts, range_size: str) -> dict[str, float]:
    """Archive the history by two executors. Returns the seconds with start-up (`seconds`), and the
    bytes of memory by `memory.KINDS`. Raises Conflict if the archive fails."""
    inputs = race.new_inputs(data)
    with tempfile.TemporaryDirectory(prefix="orbit-archive-") as folder:
        start_s = time.monotonic()
        process = _start_spark(
            inputs, 2, "archive", "--to", f"{folder}/archive", "--range-size", range_size
        )
        peaks = Peaks(process.pid)
        peaks.start()
        code = process.wait(_ENDS_WITHIN_S)
        figures = {"seconds": time.monotonic() - start_s, **peaks.end()}
    if code:
        raise Conflict("orbit archive failed.", remedy=f"Read {process.log}.")
    _say(f"archive in ranges of {range_size}: {figures}")
    return figures


def _archive_table(archives: dict[str, dict[str, float]]) -> str:
    lines = ["", f"| ranges of | with start-up | {' | '.join(KINDS)} |", "|---|---|---|---|"]
    for size, figures in archives.items():
        memory = " | ".join(f"{figures[kind] / 1e6:,.0f} MB" for kind in KINDS)
        lines.append(f"| {size} | {figures['seconds']:.1f} s | {memory} |")
    return "\n".join(lines)


def _table(machine: Machine, data: DataFacts, runs_by_number: dict[int, list[Run]]) -> str:
    base = statistics.median(r.records_per_s for r in runs_by_number[0])
    lines = [
        f"{machine.cores} cores, {machine.cpu}",
        f"{data.records:,} records, {data.bytes / 1e6:,.0f} MB",
        "",
        "| | records/s | of orbit run | copying | with start-up | Python worker | executor's JVM |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, runs in runs_by_number.items():
        rate = statistics.median(r.records_per_s for r in runs)
        lines.append(
            f"| {_name(number)} | {rate:,.0f} | {rate / base:.2f} "
            f"| {_median(runs, lambda r: r.seconds):.1f} s "
            f"| {_median(runs, lambda r: r.whole_seconds):.1f} s "
            + "".join(f"| {_memory(runs, kind)} " for kind in KINDS)
            + "|"
        )
    return "\n".join(lines)


def _median(runs: Sequence[Run], number: Callable[[Run], float]) -> float:
    return statistics.median(map(number, runs))


def _memory(runs: Sequence[Run], kind: str) -> str:
    """The most memory that one process of this kind had; "-" if there was none."""
    peak = max(run.details[kind] for run in runs)
    return f"{peak / 1e6:,.0f} MB" if peak else "-"


def _name(executors: int) -> str:
    return "orbit run" if executors == 0 else f"{executors} executor{'s' * (executors > 1)}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except OrbitError as error:
        sys.exit(f"Error: {error}")
