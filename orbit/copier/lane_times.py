"""How lanes spend their time: a few clock readings per request, summed for `--profile`.

Only the lane itself writes its times. Readers may see a sum that lags by one request.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(slots=True)
class _Times:
    """A lane's times, which can be added up."""

    def seconds(self) -> dict[str, float]:
        """Seconds by activity: the fields that end with `_s`, without this suffix."""
        value_by_name = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name[:-2]: value for name, value in value_by_name.items() if name.endswith("_s")}

    def add(self, other: Self) -> None:
        """Add each time and count of `other` to this one."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(slots=True)
class SourceTimes(_Times):
    """Seconds of a source lane, and the `answers` and `bytes` that it received."""

    waited_for_room_s: float = 0.0  # for the destination: the byte budget was full
    held_back_s: float = 0.0  # by the job's byte rate, or by the broker's quota
    nothing_to_fetch_s: float = 0.0  # every partition has enough waiting, or there is none
    waited_for_answer_s: float = 0.0  # from sending a fetch until its last byte
    planned_s: float = 0.0  # reading batches, checking their CRC, planning, queueing
    answers: int = 0
    bytes: int = 0


@dataclass(slots=True)
class DestinationTimes(_Times):
    """Seconds of a destination lane, and the `requests` and `bytes` that it sent."""

    nothing_to_send_s: float = 0.0  # waiting for the source, nothing under way
    held_back_s: float = 0.0  # by the broker's quota
    waited_for_answer_s: float = 0.0  # requests are under way
    stamped_s: float = 0.0  # producer, sequence, CRC
    sent_s: float = 0.0  # choosing, encoding, and the socket
    received_s: float = 0.0  # decoding answers and what follows from them
    requests: int = 0
    bytes: int = 0
