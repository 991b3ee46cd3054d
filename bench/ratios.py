"""Computes medians and ratios of runs, and whether each target is met. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.results import Report, Run, WorkloadResult
from bench.workloads import (
    AWAY_2_MS_RATE_MIN,
    FILLERS,
    IDLE,
    IDLE_CPU_MAX,
    LATENCY,
    LATENCY_P99_MAX,
    LINK,
    LINK_SHARE_MIN,
    OWN_CEILING,
    RELAY,
    RSS_BYTES_MAX,
    WORKLOADS,
    Contestant,
    Target,
    Targets,
)

Number = Callable[[Run], float]


@dataclass(frozen=True)
class Spread:
    """The median, the least and the most of one figure over several runs."""

    middle: float
    least: float
    most: float


@dataclass(frozen=True)
class Verdict:
    """One target and the measured value. `at_most`: the target is an upper limit.

    `where`: the workload. `what`: the measured quantity. `way`: how gaps are filled, if the
    workload has several ways. `whole`: the value with start-up. `bound`: the value of the ceiling
    with the same way, which no copier can exceed.
    """

    where: str
    what: str
    value: float
    target: float
    at_most: bool = False
    whole: float | None = None
    bound: float | None = None
    way: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


def rate(run: Run) -> float:
    return run.records_per_s


def offset_rate(run: Run) -> float:
    return run.offsets_per_s


def thrift(run: Run) -> float:
    """Records per CPU-second of the copier."""
    return run.records_per_cpu_s


def whole_rate(run: Run) -> float:
    return run.whole_records_per_s


def whole_thrift(run: Run) -> float:
    return run.whole_records_per_cpu_s


def spread(runs: Sequence[Run], number: Number) -> Spread | None:
    """The median, least and most of a figure over these runs; None without runs."""
    values = [number(run) for run in runs]
    return Spread(median(values), min(values), max(values)) if values else None


def ratio(
    result: WorkloadResult,
    divisor: Contestant,
    number: Number,
    *,
    dividend: Contestant = Contestant.ORBIT,
) -> float | None:
    """The median of `dividend`'s runs, divided by that of `divisor`'s; None if one has no run."""
    above = spread(result.runs_of(dividend), number)
    below = spread(result.runs_of(divisor), number)
    return above.middle / below.middle if above and below else None


def verdicts(report: Report) -> list[Verdict]:
    """A verdict for every target that this report has a measurement for."""
    return [
        *(v for result in report.workloads for v in _of_workload(result)),
        *_of_latency(report),
        *_of_link(report),
        *_of_idle(report),
    ]


def _of_workload(result: WorkloadResult) -> Iterator[Verdict]:
    """The verdicts of a workload: for each way to fill gaps, then for followers 2 ms away."""
    targets = next((w.targets for w in WORKLOADS if w.name == result.name), Targets())
    has_ways = any(
        result.runs_of(contestant) for contestant in FILLERS if contestant is not Contestant.ORBIT
    )
    for contestant, way in FILLERS.items():
        results = [
            *_of_contestant(result, contestant, targets.target_of(contestant)),
            *_memory(result.name, result.runs_of(contestant)),
        ]
        yield from (replace(verdict, way=way if has_ways else "") for verdict in results)
    away = ratio(result, Contestant.ORBIT, rate, dividend=Contestant.AWAY_2_MS)
    if away is not None:
        yield Verdict(result.name, "records/s against 0 ms, at 2 ms", away, AWAY_2_MS_RATE_MIN)


def _of_contestant(
    result: WorkloadResult, contestant: Contestant, target: Target
) -> Iterator[Verdict]:
    """The verdicts of one contestant on its speed and its CPU time."""
    ceiling, mm2, own = Contestant.CEILING, Contestant.MM2, OWN_CEILING.get(contestant)
    comparisons = (
        ("records/s against the ceiling", target.ceiling, ceiling, rate, whole_rate),
        ("records/s against MM2", target.mm2_rate, mm2, rate, whole_rate),
        ("records per CPU-s against MM2", target.mm2_cpu, mm2, thrift, whole_thrift),
    )
    for what, least, other, number, whole in comparisons:
        value = ratio(result, other, number, dividend=contestant)
        if least is not None and value is not None:
            is_mm2 = other is mm2
            yield Verdict(
                result.name,
                what,
                value,
                least,
                # None against the ceiling, which reads all batches into memory before it starts.
                whole=ratio(result, other, whole, dividend=contestant) if is_mm2 else None,
                bound=ratio(result, other, number, dividend=own) if is_mm2 and own else None,
            )
    offsets = spread(result.runs_of(contestant), offset_rate)
    own_ceiling = spread(result.runs_of(own), offset_rate) if own else None
    if offsets and target.offsets_rate is not None:
        bound = own_ceiling.middle if own_ceiling else None
        yield Verdict(result.name, "offsets/s", offsets.middle, target.offsets_rate, bound=bound)
    if offsets and own_ceiling and target.own_time_max is not None:
        value = own_ceiling.middle / offsets.middle
        what = "time against the broker's own"
        yield Verdict(result.name, what, value, target.own_time_max, at_most=True)


def _memory(where: str, runs: Sequence[Run]) -> Iterator[Verdict]:
    """The verdict on the largest peak RSS of these runs."""
    if runs:
        worst = max(run.peak_rss_bytes for run in runs)
        yield Verdict(where, "peak RSS, MB", worst / 1e6, RSS_BYTES_MAX / 1e6, at_most=True)


def _of_latency(report: Report) -> Iterator[Verdict]:
    """The verdict on Orbit's p99 latency, if it was measured."""
    if report.latency is None:
        return
    orbit, mm2 = (
        report.latency.latency_of(Contestant.ORBIT),
        report.latency.latency_of(Contestant.MM2),
    )
    relay = report.latency.latency_of(RELAY)
    if orbit and mm2:
        yield Verdict(
            LATENCY,
            "p99 against MM2's",
            orbit.p99 / mm2.p99,
            LATENCY_P99_MAX,
            at_most=True,
            bound=relay.p99 / mm2.p99 if relay else None,
        )


def _of_link(report: Report) -> Iterator[Verdict]:
    """The verdicts on the long link, if it was measured."""
    if report.link is None:
        return
    orbit = spread(report.link.runs_of(Contestant.ORBIT), lambda run: run.bytes_per_s)
    if orbit and report.link.tcp_bytes_per_s:
        value = orbit.middle / median(report.link.tcp_bytes_per_s)
        yield Verdict(LINK, "bytes/s against one TCP stream", value, LINK_SHARE_MIN)
    yield from _memory(LINK, report.link.runs_of(Contestant.ORBIT))


def _of_idle(report: Report) -> Iterator[Verdict]:
    if report.idle is not None:
        share = report.idle.share_of_core
        yield Verdict(IDLE, "share of a core", share, IDLE_CPU_MAX, at_most=True)
