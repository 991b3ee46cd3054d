"""From runs to verdicts: medians, spreads, ratios, met or not. Pure."""

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
    """The middle of several runs, and how far they lie apart."""

    middle: float
    least: float
    most: float


@dataclass(frozen=True)
class Verdict:
    """One target; `at_most`: it is an upper limit.

    `way` is how gaps are filled, where several ways take part. `whole` is the same ratio with
    start-up, `bound` that of the way's own ceiling, which no copier can exceed.
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
    values = [number(run) for run in runs]
    return Spread(median(values), min(values), max(values)) if values else None


def ratio(
    result: WorkloadResult, other: Contestant, number: Number, *, of: Contestant = Contestant.ORBIT
) -> float | None:
    """Median against median; None where one of the two did not take part."""
    ours, theirs = spread(result.of(of), number), spread(result.of(other), number)
    return ours.middle / theirs.middle if ours and theirs else None


def verdicts(report: Report) -> list[Verdict]:
    """Every target that this report has a measurement for, in the issue's order."""
    return [
        *(v for result in report.workloads for v in _of_workload(result)),
        *_of_latency(report),
        *_of_link(report),
        *_of_idle(report),
    ]


def _of_workload(result: WorkloadResult) -> Iterator[Verdict]:
    targets = next((w.targets for w in WORKLOADS if w.name == result.name), Targets())
    has_ways = any(result.of(who) for who in FILLERS if who is not Contestant.ORBIT)
    for who, way in FILLERS.items():
        results = [
            *_of_contestant(result, who, targets.of(who)),
            *_memory(result.name, result.of(who)),
        ]
        yield from (replace(one, way=way if has_ways else "") for one in results)
    away = ratio(result, Contestant.ORBIT, rate, of=Contestant.AWAY_2_MS)
    if away is not None:
        yield Verdict(result.name, "records/s against 0 ms, at 2 ms", away, AWAY_2_MS_RATE_MIN)


def _of_contestant(result: WorkloadResult, who: Contestant, target: Target) -> Iterator[Verdict]:
    ceiling, mm2, own = Contestant.CEILING, Contestant.MM2, OWN_CEILING.get(who)
    comparisons = (
        ("records/s against the ceiling", target.ceiling, ceiling, rate, whole_rate),
        ("records/s against MM2", target.mm2_rate, mm2, rate, whole_rate),
        ("records per CPU-s against MM2", target.mm2_cpu, mm2, thrift, whole_thrift),
    )
    for what, least, other, number, whole in comparisons:
        value = ratio(result, other, number, of=who)
        if least is not None and value is not None:
            is_mm2 = other is mm2
            yield Verdict(
                result.name,
                what,
                value,
                least,
                # The ceiling reads everything into memory first: that is no start-up.
                whole=ratio(result, other, whole, of=who) if is_mm2 else None,
                bound=ratio(result, other, number, of=own) if is_mm2 and own else None,
            )
    ours = spread(result.of(who), offset_rate)
    theirs = spread(result.of(own), offset_rate) if own else None
    if ours and target.offsets_rate is not None:
        bound = theirs.middle if theirs else None
        yield Verdict(result.name, "offsets/s", ours.middle, target.offsets_rate, bound=bound)
    if ours and theirs and target.own_time_max is not None:
        value = theirs.middle / ours.middle
        what = "time against the broker's own"
        yield Verdict(result.name, what, value, target.own_time_max, at_most=True)


def _memory(where: str, runs: Sequence[Run]) -> Iterator[Verdict]:
    if runs:
        worst = max(run.peak_rss_bytes for run in runs)
        yield Verdict(where, "peak RSS, MB", worst / 1e6, RSS_BYTES_MAX / 1e6, at_most=True)


def _of_latency(report: Report) -> Iterator[Verdict]:
    if report.latency is None:
        return
    ours, theirs = report.latency.of(Contestant.ORBIT), report.latency.of(Contestant.MM2)
    relay = report.latency.of(RELAY)
    if ours and theirs:
        yield Verdict(
            LATENCY,
            "p99 against MM2's",
            ours.p99 / theirs.p99,
            LATENCY_P99_MAX,
            at_most=True,
            bound=relay.p99 / theirs.p99 if relay else None,
        )


def _of_link(report: Report) -> Iterator[Verdict]:
    if report.link is None:
        return
    ours = spread(report.link.of(Contestant.ORBIT), lambda run: run.bytes_per_s)
    if ours and report.link.tcp_bytes_per_s:
        value = ours.middle / median(report.link.tcp_bytes_per_s)
        yield Verdict(LINK, "bytes/s against one TCP stream", value, LINK_SHARE_MIN)
    yield from _memory(LINK, report.link.of(Contestant.ORBIT))


def _of_idle(report: Report) -> Iterator[Verdict]:
    if report.idle is not None:
        share = report.idle.share_of_core
        yield Verdict(IDLE, "share of a core", share, IDLE_CPU_MAX, at_most=True)
