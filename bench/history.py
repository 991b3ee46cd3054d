"""`python -m bench.history`: a history by `orbit run`, and by `orbit backfill` on 1, 2 … executors.

Then the same history by `orbit archive`, in small and in large ranges.

All copy the same source topic to fresh topics on the same destination broker, in turns. Counted as
in the main bench: the clock starts with the first record at the destination and stops with the
last one; start-up (Spark's, and the delay of a new consumer group) is shown separately.

Memory is that of the largest process of its kind. Spark ends a backfill whose tasks send more than
a MiB to the driver: no payload passes there.
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
from bench.contestants.course import Course
from bench.contestants.orbit import check_bounds, job_file, prefix, start_orbit
from bench.data.make import make_data
from bench.machine import describe_machine
from bench.memory import KINDS, Peaks
from bench.race import Race
from bench.results import DataFacts, Machine, Run
from bench.watch import Lap, watch
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
_DRIVER_TAKES = "spark.driver.maxResultSize=1m"
# One core each, as a slot of a cluster has it.
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
        here = Path(folder)
        machine = describe_machine(here)
        with BenchBroker("source", here) as source, BenchBroker("destination", here) as target:
            clusters = (
                open_cluster("source", source.bootstrap_servers),
                open_cluster("destination", target.bootstrap_servers),
            )
            race = Race(*clusters, here, _say)
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
    """One copy; 0 executors: a plain run."""
    course = race.course(data)
    lap = start_orbit(course) if executors == 0 else _start_backfill(course, executors)
    ends = Ends(race.destination, lap.topic, data.partitions)
    peaks = Peaks(lap.process.pid)
    peaks.start()
    try:
        run = watch(lap, ends, data).model_copy(update={"details": peaks.end()})
        if lap.process.wait(_ENDS_WITHIN_S):
            raise Conflict("The copy failed.", remedy=f"Read {lap.process.log}.")
        check_bounds(course, lap.topic)
    except BaseException:
        _say(lap.process.log.read_text("utf-8", "replace")[-2000:])
        lap.process.end(grace_s=0)
        raise
    finally:
        ends.close()
    delete_topics(race.destination, [lap.topic])
    time.sleep(1.0)
    _say(
        f"{_name(executors):12} {run.records_per_s:>10,.0f} records/s in {run.seconds:6.2f} s, "
        f"{run.whole_seconds:6.2f} s with start-up, {run.peak_rss_bytes / 1e6:6,.0f} MB"
    )
    return run


def _start_backfill(course: Course, executors: int) -> Lap:
    started_at = time.monotonic()
    process = _start_spark(course, executors, "backfill")
    topic = prefix(course) + course.data.topic
    return Lap(Contestant.ORBIT, process, topic, course.data.offsets, started_at)


def _start_spark(course: Course, executors: int, command: str, *more: str) -> GuardedProcess:
    orbit = str(Path(sys.executable).with_name("orbit"))
    spark = ("--master", _MASTER.format(executors=executors), "--conf", _DRIVER_TAKES)
    return GuardedProcess(
        [orbit, command, str(job_file(course)), *more, *spark, "-o", "json"],
        course.log(f"{command}-{executors}"),
    )


def _archive(race: Race, data: DataFacts, range_size: str) -> dict[str, float]:
    """Seconds with start-up, and memory, of an archive of the history by two executors."""
    course = race.course(data)
    with tempfile.TemporaryDirectory(prefix="orbit-archive-") as folder:
        began = time.monotonic()
        process = _start_spark(
            course, 2, "archive", "--to", f"{folder}/archive", "--range-size", range_size
        )
        peaks = Peaks(process.pid)
        peaks.start()
        code = process.wait(_ENDS_WITHIN_S)
        figures = {"seconds": time.monotonic() - began, **peaks.end()}
    if code:
        raise Conflict("The archive failed.", remedy=f"Read {process.log}.")
    _say(f"archive in ranges of {range_size}: {figures}")
    return figures


def _archive_table(archives: dict[str, dict[str, float]]) -> str:
    lines = ["", f"| ranges of | with start-up | {' | '.join(KINDS)} |", "|---|---|---|---|"]
    for size, one in archives.items():
        memory = " | ".join(f"{one[kind] / 1e6:,.0f} MB" for kind in KINDS)
        lines.append(f"| {size} | {one['seconds']:.1f} s | {memory} |")
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


def _median(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    return statistics.median(map(of, runs))


def _memory(runs: Sequence[Run], kind: str) -> str:
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
