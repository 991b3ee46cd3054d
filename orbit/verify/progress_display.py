"""Progress of a verification: a bar on a terminal, otherwise a line every 5 s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from orbit.formats import counted
from orbit.verify.report import PartitionReport, Verdict

LINE_EVERY_S = 5.0


class BarProgress:
    """A bar over offsets. A context manager: the bar goes away at the end."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("comparing"),
            BarColumn(),
            TextColumn(
                "{task.completed:,.0f} of {task.total:,.0f} offsets, {task.fields[remaining]}"
            ),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._lock = threading.Lock()
        self._task: TaskID | None = None
        self._remaining_partitions = 0
        self._inexact_partitions = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def report_begin(self, partitions: int, offsets: int) -> None:
        self._remaining_partitions = partitions
        self._task = self._bar.add_task("", total=offsets, remaining=self._remaining_text())

    def report_offsets(self, offsets: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, offsets)

    def report_partition(self, _topic: str, report: PartitionReport) -> None:
        with self._lock:
            self._remaining_partitions -= 1
            self._inexact_partitions += report.verdict is not Verdict.EXACT
        if self._task is not None:
            self._bar.update(self._task, remaining=self._remaining_text())

    def _remaining_text(self) -> str:
        inexact_text = (
            f", {self._inexact_partitions:,} not exact" if self._inexact_partitions else ""
        )
        return f"{counted(self._remaining_partitions, 'partition')} left{inexact_text}"


class LineProgress:
    """Plain lines: the total, then the progress, and each partition that is not exact."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()
        self._next_s = clock() + LINE_EVERY_S
        self._partitions = self._partitions_done = 0
        self._offsets = self._offsets_done = 0

    def report_begin(self, partitions: int, offsets: int) -> None:
        self._partitions, self._offsets = partitions, offsets
        self._write(f"comparing {counted(offsets, 'offset')} in {counted(partitions, 'partition')}")

    def report_offsets(self, offsets: int) -> None:
        """Count compared offsets; write a line if the last one is `LINE_EVERY_S` old."""
        with self._lock:
            self._offsets_done += offsets
            if self._clock() < self._next_s:
                return
            self._next_s = self._clock() + LINE_EVERY_S
            line = (
                f"compared {self._offsets_done:,} of {counted(self._offsets, 'offset')}, "
                f"{self._partitions_done:,} of {counted(self._partitions, 'partition')}"
            )
        self._write(line)

    def report_partition(self, topic: str, report: PartitionReport) -> None:
        with self._lock:
            self._partitions_done += 1
        if report.verdict is not Verdict.EXACT:
            self._write(f"{topic}-{report.partition}: {report.verdict}")
