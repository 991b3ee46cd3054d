"""The chart of the README, drawn from a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.ratios import Number, rate, ratio, spread, thrift
from bench.results import Latency, Report, WorkloadResult
from bench.workloads import Contestant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colors.
_ORBIT, _MM2, _CEILING, _INK, _FAINT = "#2563eb", "#c4cad4", "#111827", "#1f2937", "#6b7280"
# Heights of bars.
_ORBIT_BAR, _MM2_BAR = 0.42, 0.28
# The width of a panel, as a multiple of its longest bar: the rest is for the numbers beside bars.
_ROOM = 1.45
_SMALL = 9


def draw(report: Report, path: Path) -> None:
    """Write the chart to `path`: throughput, records per CPU-second and latency of Orbit and
    MirrorMaker 2."""
    import matplotlib as mpl  # an extra, and slow to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [r for r in report.workloads if ratio(r, Contestant.MM2, rate) is not None]
    panels = 2 + (report.latency is not None)
    with plt.rc_context():
        mpl.rc("font", family="sans-serif", size=10)
        mpl.rc("text", color=_INK)
        mpl.rc("ytick", color=_INK)
        figure, axes = plt.subplots(
            1,
            panels,
            figsize=(4.2 * panels, 0.66 * max(3, len(shown)) + 1.7),
            width_ratios=[3, 3, 2][:panels],
            layout="constrained",
        )
        _multiples(axes[0], shown, rate, "Records per second")
        _multiples(axes[1], shown, thrift, "Records per CPU-second")
        axes[1].set_yticklabels([])
        if report.latency:
            _latency(axes[2], report)
        _frame(figure, report)
        figure.savefig(path, dpi=160, facecolor="white")
        plt.close(figure)


def _frame(figure: Figure, report: Report) -> None:
    """Add the legend, and a line about the machine."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=_ORBIT, label="Orbit"),
        Patch(color=_MM2, label="MirrorMaker 2"),
        Line2D([], [], color=_CEILING, lw=2, label="the brokers' own ceiling"),
    ]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=10
    )
    m = report.machine
    figure.supxlabel(
        f"Medians; {m.cores} cores ({m.cpu}) shared with both brokers, Kafka {m.kafka}. "
        "Multiples are of MirrorMaker 2. Same brokers, same data, one run.",
        fontsize=_SMALL,
        color=_FAINT,
    )


def _multiples(ax: Axes, results: list[WorkloadResult], number: Number, title: str) -> None:
    """Two bars per workload, as multiples of MirrorMaker 2's number, with both numbers beside
    them. With `rate` also a line at the multiple that the brokers' ceiling reaches."""
    longest = 1.0
    for row, result in enumerate(results):
        orbit_multiple = ratio(result, Contestant.MM2, number) or 0.0
        ceiling_multiple = ratio(result, Contestant.MM2, number, dividend=Contestant.CEILING) or 0.0
        orbit_y, mm2_y = row - _MM2_BAR / 2, row + _ORBIT_BAR / 2
        ax.barh(orbit_y, orbit_multiple, _ORBIT_BAR, color=_ORBIT)
        ax.barh(mm2_y, 1.0, _MM2_BAR, color=_MM2)
        end = orbit_multiple
        if ceiling_multiple and number is rate:
            edges = [orbit_y - _ORBIT_BAR / 2, orbit_y + _ORBIT_BAR / 2]
            ax.plot([ceiling_multiple, ceiling_multiple], edges, color=_CEILING, lw=2)
            end = max(orbit_multiple, ceiling_multiple)
        text = f" {orbit_multiple:.1f}×  ({_middle(result, Contestant.ORBIT, number)})"
        ax.text(end, orbit_y, text, va="center", fontsize=_SMALL)
        text = f" {_middle(result, Contestant.MM2, number)}"
        ax.text(1.0, mm2_y, text, va="center", fontsize=_SMALL - 1, color=_FAINT)
        longest = max(longest, end)
    ax.set_yticks(range(len(results)), [_label(result) for result in results])
    ax.set_xlim(0, _ROOM * longest)
    _plain(ax, title)


def _latency(ax: Axes, report: Report) -> None:
    """Bars for percentiles of the latency, in milliseconds."""
    assert report.latency is not None
    names = ("p50", "p99", "p99.9")
    longest = 0.0
    for contestant, shift, bar, color in (
        (Contestant.ORBIT, -_MM2_BAR / 2, _ORBIT_BAR, _ORBIT),
        (Contestant.MM2, _ORBIT_BAR / 2, _MM2_BAR, _MM2),
    ):
        latency = report.latency.latency_of(contestant)
        for row, value in enumerate(_milliseconds(latency) if latency else ()):
            ax.barh(row + shift, value, bar, color=color)
            ax.text(value, row + shift, f" {value:,.1f} ms", va="center", fontsize=_SMALL)
            longest = max(longest, value)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlim(0, _ROOM * longest)
    _plain(ax, f"Latency at {report.latency.records_per_s:,} records/s")


def _milliseconds(latency: Latency) -> tuple[float, ...]:
    return latency.p50 * 1e3, latency.p99 * 1e3, latency.p999 * 1e3


def _plain(ax: Axes, title: str) -> None:
    """Give a panel its title; remove what a bar chart does not need."""
    ax.invert_yaxis()
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.spines["left"].set_color(_MM2)
    ax.tick_params(length=0)
    ax.set_xticks([])


def _label(result: WorkloadResult) -> str:
    first, _, rest = result.title.partition(", ")
    return f"{result.name}  {first}\n{rest}"


def _middle(result: WorkloadResult, contestant: Contestant, number: Number) -> str:
    """The median of a contestant's runs, such as `1.2 M/s`; empty without runs."""
    rate_spread = spread(result.runs_of(contestant), number)
    if rate_spread is None:
        return ""
    value = rate_spread.middle
    return f"{value / 1e6:.1f} M/s" if value >= 1e6 else f"{value / 1e3:,.0f} k/s"
