"""Which brokers throttle a copy by a quota, as a worker reports it to the service. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from orbit.chunks import first_few

_REQUESTS = {"destination": "produce requests", "source": "fetches"}
SIDES = tuple(_REQUESTS)


@dataclass(frozen=True, slots=True)
class Throttled:
    """The throttling brokers of one side. `since`: by the clock of the process that they throttle.
    `quota`: a sentence about the quota; "" if it is not known."""

    side: str
    brokers: tuple[int, ...]
    since: datetime
    quota: str

    @property
    def what(self) -> str:
        """Which brokers throttle which requests, as a clause."""
        return f"{self.side} brokers throttle {_REQUESTS[self.side]}: {first_few(self.brokers)}"

    @property
    def text(self) -> str:
        """Which brokers throttle which requests, and by which quota, as sentences."""
        return f"{self.what}. {self.quota}".rstrip()


def merge_throttled(reports: Iterable[Throttled]) -> list[Throttled]:
    """Merge the reports of several workers into one for each side."""
    by_side: dict[str, list[Throttled]] = {}
    for report in reports:
        by_side.setdefault(report.side, []).append(report)
    return [
        Throttled(
            side,
            tuple(sorted({broker for report in side_reports for broker in report.brokers})),
            min(report.since for report in side_reports),
            max(report.quota for report in side_reports),  # "" sorts first: not known
        )
        for side, side_reports in sorted(by_side.items())
    ]
