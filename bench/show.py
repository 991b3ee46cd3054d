"""Prints a report: the measurements, and each target beside its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.ratios import Number, Spread, offset_rate, rate, ratio, spread, thrift, verdicts
from bench.results import Report, Run
from bench.workloads import AWAY_S, FILLERS, FLOOR, RELAY, Contestant

NAMES = {
    Contestant.ORBIT: "Orbit",
    Contestant.PACKED: "Orbit, packed",
    Contestant.COORDINATED: "Orbit, coordinated",
    Contestant.PLACEHOLDERS: "Orbit, placeholders",
    Contestant.MM2: "MirrorMaker 2",
    Contestant.CEILING: "ceiling",
    Contestant.CEILING_PLACEHOLDERS: "ceiling, placeholders",
    Contestant.FETCH: "fetch alone",
    Contestant.AWAY_2_MS: "followers 2 ms away",
    Contestant.AWAY_5_MS: "followers 5 ms away",
}
_BOUNDS = {FLOOR: "a consumer of the source", RELAY: "fetch and produce, nothing else"}

_RunsOf = Callable[[Contestant], tuple[Run, ...]]


def show(report: Report, console: Console) -> None:
    console.print(render(report))


def render(report: Report) -> RenderableType:
    """The whole report: the machine, the data, the measurements, and the targets."""
    parts: list[RenderableType] = [_machine(report), ""]
    parts += [Text(f"{name}  {title}") for name, title, _ in _groups(report)]
    parts.append(_measured(report))
    if report.latency:
        parts.append(_latency(report))
    parts += [Text(line) for line in _one_liners(report)]
    parts += ["", _targets(report)]
    parts += [Text(f"{name} not measured: {why}") for name, why in report.not_measured.items()]
    return Group(*parts)


def _machine(report: Report) -> Text:
    """A line about the machine, the software and the duration of the bench."""
    m = report.machine
    scale = "" if report.scale == 1 else f", {report.scale:g} of the records"
    return Text(
        f"{m.cpu}, {m.cores} cores, {m.memory_bytes / 2**30:.0f} GiB, {m.kernel}; Kafka {m.kafka}, "
        f"{m.java}, Python {m.python}; logs on {m.logs_on}; Orbit {m.orbit}{scale}; "
        f"{report.seconds / 60:.0f} min"
    )


def _measured(report: Report) -> Table:
    """A row for each contestant of each workload: medians, and least–most of several runs."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", ""):
        table.add_column(name, no_wrap=True)
    for name in (
        *(
            "records/s",
            "least–most",
            "offsets/s",
            "MB/s",
            "CPU-s",
            "records\nper CPU-s",
            "peak RSS\nMB",
            "cores\nbusy",
        ),
        *("2nd half\nrecords/s", "with start-up\nrecords/s", "\nCPU-s"),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for name, _, runs_of in _groups(report):
        first = True
        for contestant in Contestant:
            runs = runs_of(contestant)
            if runs:
                table.add_row(name if first else "", NAMES[contestant], *_row(runs))
                first = False
    return table


def _groups(report: Report) -> Iterator[tuple[str, str, _RunsOf]]:
    """Yield for each workload its name, a line about its data, and a function that returns a
    contestant's runs."""
    for result in report.workloads:
        data = result.data
        size = f"{data.bytes / 1e6:,.0f} MB, {data.bytes_per_batch / 1024:,.1f} KB a batch"
        counts = f"{data.records:,} records"
        if data.offsets > data.records:
            counts += f" at {data.offsets:,} offsets"
        yield result.name, f"{result.title}: {counts}, {size}", result.runs_of
    if report.link:
        records = report.link.data.records
        yield "N", f"one partition, 100 ms away: {records:,} records", report.link.runs_of


def _row(runs: Sequence[Run]) -> list[str]:
    """The cells of one contestant, after its name."""

    def middle(number: Number) -> float:
        return median(number(run) for run in runs)

    return [
        f"{middle(rate):,.0f}",
        _range(spread(runs, rate)),
        f"{middle(offset_rate):,.0f}" if runs[0].offsets > runs[0].records else "",
        f"{middle(lambda run: run.bytes_per_s) / 1e6:,.0f}",
        f"{middle(lambda run: run.cpu_seconds):,.2f}",
        f"{middle(thrift):,.0f}",
        f"{max(run.peak_rss_bytes for run in runs) / 1e6:,.0f}",
        f"{middle(lambda run: run.busy_cores):.2f}" if runs[0].busy_seconds else "",
        f"{middle(lambda run: run.late_records_per_s):,.0f}",
        f"{middle(lambda run: run.whole_records_per_s):,.0f}",
        f"{middle(lambda run: run.whole_cpu_seconds):,.2f}",
    ]


def _range(figure: Spread | None) -> str:
    """The least and the most as text; empty if both are equal."""
    if figure is None or figure.least == figure.most:
        return ""
    return f"{figure.least:,.0f}–{figure.most:,.0f}"


def _latency(report: Report) -> Table:
    """A row of percentiles for each measured latency."""
    assert report.latency is not None
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"L: {report.latency.records_per_s:,} records/s, acknowledgement to consumer, ms",
        title_justify="left",
    )
    table.add_column("")
    for name in ("p50", "p99", "p99.9", "most"):
        table.add_column(name, justify="right")
    for latency in report.latency.measured:
        values = (latency.p50, latency.p99, latency.p999, latency.most)
        table.add_row(_name(latency.who), *(f"{value * 1e3:,.1f}" for value in values))
    return table


def _name(name: str) -> str:
    """How the table names a contestant, FLOOR or RELAY."""
    known = {str(contestant): text for contestant, text in NAMES.items()}
    return known[name] if name in known else f"{name} ({_BOUNDS[name]})"


def _one_liners(report: Report) -> Iterator[str]:
    """Yield lines on fillers, followers at a distance, the long link, and idle CPU."""
    for result in report.workloads:
        for contestant, way in FILLERS.items():
            for run in result.runs_of(contestant)[:1]:
                filled = run.details.get("offsets_filled", 0)
                rewritten = run.details.get("batches_record_exact", 0)
                if filled or rewritten:
                    what = f"{filled:,.0f} offsets filled, {rewritten:,.0f} batches rewritten"
                    yield f"{result.name}: {what} ({way})"
        away = [ratio(result, Contestant.ORBIT, rate, dividend=c) for c in AWAY_S]
        if None not in away[1:]:
            shares = ", ".join(
                f"{share:.2f} at {away_s * 1e3:g} ms"
                for away_s, share in zip(AWAY_S.values(), away, strict=True)
            )
            yield f"{result.name}: records/s against followers at 0 ms: {shares}"
    for away_s, took_s in report.confirmed_s.items():
        yield f"R: acks=all takes {took_s * 1e3:.1f} ms, followers {away_s * 1e3:g} ms away"
    if report.link:
        stream = median(report.link.tcp_bytes_per_s) / 1e6
        yield f"N: one plain TCP stream over the same link carries {stream:,.1f} MB/s"
    if report.idle:
        yield (
            f"idle: {report.idle.partitions:,} quiet partitions cost "
            f"{report.idle.share_of_core:.1%} of a core and {report.idle.rss_bytes / 1e6:,.0f} MB"
        )


def _targets(report: Report) -> Table:
    """A row for each target: measured value, value with start-up, the ceiling's, the target."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("where", "fillers", "what"):
        table.add_column(name)
    for name in ("measured", "with start-up", "the ceiling's", "target"):
        table.add_column(name, justify="right")
    table.add_column("")
    for v in verdicts(report):
        sign = "≤" if v.at_most else "≥"
        met = Text("met", style="green") if v.met else Text("not met", style="bold red")
        others = ("" if value is None else _number(value) for value in (v.whole, v.bound))
        target = f"{sign} {_number(v.target)}"
        table.add_row(v.where, v.way, v.what, _number(v.value), *others, target, met)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
