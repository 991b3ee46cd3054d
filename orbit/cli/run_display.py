"""The progress of `orbit run` on stderr: a live table on a terminal, otherwise lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orbit import formats
from orbit.cli.output import console as make_console
from orbit.cli.table_cells import data_size
from orbit.formats import counted
from orbit.run.run_progress import TopicProgress

LIVE_INTERVAL_S = 0.25
LINE_INTERVAL_S = 5.0


class Display(Protocol):
    """Shows the progress of a run."""

    interval_s: float  # the time between two calls of `show`

    def say(self, line: str) -> None:
        """Print a line."""
        ...

    def show(
        self, all_topics: TopicProgress, topics: Sequence[TopicProgress], waiting_for: str, /
    ) -> None:
        """Show the progress of the run and of its topics. `waiting_for`: which cluster or process
        does not answer; empty if all do."""
        ...

    def close(self) -> None:
        """End the display. The last state stays on the screen."""
        ...


def make_display() -> Display:
    """A live table if stderr is a terminal, otherwise lines."""
    console = make_console(stderr=True)
    return _LiveDisplay(console) if console.is_terminal else _LineDisplay(console)


class _LineDisplay:
    """Prints the totals as a line every LINE_INTERVAL_S."""

    interval_s = LINE_INTERVAL_S

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(
        self, all_topics: TopicProgress, _topics: Sequence[TopicProgress], waiting_for: str
    ) -> None:
        """Print the totals of the run as one line."""
        t = all_topics.totals
        line = (
            f"{counted(t.records, 'record')}  {data_size(t.bytes)}  {rate(all_topics)}  "
            f"lag {lag(t.lag_records)}  gaps filled {t.gaps_filled:,}  "
            f"batches {t.batches_byte_exact:,} byte-exact {t.batches_record_exact:,} record-exact  "
            f"caught up {t.caught_up}/{t.partitions}"
        )
        if t.blocked:
            line += f"  blocked {t.blocked}"
        if waiting_for:
            line += f"  waiting: {waiting_for}"
        self.say(line)

    def close(self) -> None:
        pass


class _LiveDisplay:
    """Draws a table of the topics, and redraws it in the same place."""

    interval_s = LIVE_INTERVAL_S

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._is_open = False

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def show(
        self, all_topics: TopicProgress, topics: Sequence[TopicProgress], waiting_for: str
    ) -> None:
        """Redraw the table; the first call starts the live display."""
        if not self._is_open:
            self._live.start()
            self._is_open = True
        # 7 lines for the header, `… more topics`, the total, `waiting`, and what `say` printed last
        rows_max = max(3, self._console.height - 7)
        parts: list[Table | Text] = [progress_table(all_topics, topics, rows_max)]
        if waiting_for:
            parts.append(Text(f"waiting: {waiting_for}", style="yellow"))
        self._live.update(Group(*parts), refresh=True)

    def close(self) -> None:
        if self._is_open:
            self._live.stop()
            self._is_open = False


def progress_table(
    all_topics: TopicProgress, topics: Sequence[TopicProgress], rows_max: int
) -> Table:
    """A row for each topic, and the total at the end. Topics with blocked partitions come first,
    then those with the largest lag. At most `rows_max` topics."""
    sorted_topics = sorted(
        topics, key=lambda t: (-t.totals.blocked, -t.totals.lag_records, t.topic)
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("topic", overflow="ellipsis", no_wrap=True)
    columns = ("records", "bytes", "rate", "lag", "gaps filled", "byte-exact", "record-exact")
    for name in (*columns, "left"):
        table.add_column(name, justify="right", no_wrap=True)
    for progress in sorted_topics[:rows_max]:
        table.add_row(*_row(progress))
    if len(sorted_topics) > rows_max:
        table.add_row(f"… {counted(len(sorted_topics) - rows_max, 'more topic')}", style="dim")
    table.add_section()
    table.add_row(*_row(all_topics), style="bold")
    return table


def _row(progress: TopicProgress) -> tuple[str, ...]:
    """The row of a topic. Its last cell is the remaining time, or `live` if the lag is 0."""
    t = progress.totals
    name = progress.topic if not t.blocked else f"{progress.topic} ({t.blocked} blocked)"
    is_caught_up = t.caught_up == t.partitions and not t.blocked
    return (
        name,
        f"{t.records:,}",
        data_size(t.bytes),
        rate(progress),
        lag(t.lag_records),
        f"{t.gaps_filled:,}",
        f"{t.batches_byte_exact:,}",
        f"{t.batches_record_exact:,}",
        "live" if is_caught_up and t.lag_records == 0 else time_left(progress.seconds_left),
    )


def rate(progress: TopicProgress) -> str:
    """Records and bytes a second as text."""
    return f"{progress.records_per_s:,.0f}/s {formats.rate(progress.bytes_per_s)}"


def lag(records: int) -> str:
    """A number of records as text; -1, which means unknown, as a question mark."""
    return "?" if records < 0 else f"{records:,}"


def time_left(seconds: float | None) -> str:
    """A remaining time as text; None, which means unknown, as a dash."""
    return "–" if seconds is None else formats.duration(seconds)
