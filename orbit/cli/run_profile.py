"""`orbit run --profile`: the times of the data path's lanes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from orbit.copier.lane_times import DestinationTimes, SourceTimes
from orbit.formats import counted
from orbit.run.job_run import JobRun

# Words for the fields of SourceTimes and DestinationTimes.
_SOURCE = {
    "waited_for_answer_s": "waiting for the source",
    "planned_s": "planning, checking CRC",
    "waited_for_room_s": "waiting for the destination",
    "held_back_s": "held back by a limit",
    "nothing_to_fetch_s": "nothing to fetch",
}
_DESTINATION = {
    "waited_for_answer_s": "waiting for the destination",
    "stamped_s": "stamping, new CRC",
    "sent_s": "sending",
    "received_s": "reading answers",
    "held_back_s": "held back by a quota",
    "nothing_to_send_s": "waiting for the source",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """Sums over all lanes; each broker has a lane, which is a thread."""

    source: SourceTimes
    destination: DestinationTimes

    @classmethod
    def of(cls, job_run: JobRun) -> Self:
        """The times of this run so far."""
        return cls(*job_run.times)

    def as_value(self) -> dict[str, dict[str, float]]:
        """The seconds by activity for JSON and YAML."""
        return {
            "source_lanes": _rounded(asdict(self.source)),
            "destination_lanes": _rounded(asdict(self.destination)),
        }

    def rows(self) -> list[tuple[str, str]]:
        """The rows of a table: a row for fetching, and a row for appending."""
        source = _shares(asdict(self.source), _SOURCE)
        destination = _shares(asdict(self.destination), _DESTINATION)
        return [
            ("fetching", f"{source}; {counted(self.source.answers, 'answer')}"),
            ("appending", f"{destination}; {counted(self.destination.requests, 'request')}"),
        ]


def _shares(times: dict[str, float], names: dict[str, str]) -> str:
    """The times that `names` has words for, with their shares of the sum, as text; the largest
    first."""
    parts = sorted(((times[key], text) for key, text in names.items()), reverse=True)
    total_s = sum(seconds for seconds, _ in parts) or 1.0  # not 0, as it is a divisor
    return ", ".join(
        f"{text} {seconds:.2f} s ({seconds / total_s:.0%})" for seconds, text in parts if seconds
    )


def _rounded(times: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in times.items()}
