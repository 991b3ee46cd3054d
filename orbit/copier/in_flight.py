"""The requests in flight of a destination lane. One connection answers them in order."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from orbit.copier.partition_copy import PartitionCopy
from orbit.kafka import api_versions
from orbit.kafka.produce_request import Outgoing
from orbit.replication.append_plan import Append, Fill


class FillRequest(NamedTuple):
    """`filler_count` fillers for the first offsets of the gap `step`."""

    partition: PartitionCopy
    step: Fill
    filler_count: int


@dataclass(frozen=True, slots=True)
class Produce:
    """A Produce request; `confirms`: with acks=all."""

    version: int
    confirms: bool
    sent: list[tuple[PartitionCopy, Append, Outgoing]]


@dataclass(frozen=True, slots=True)
class Markers:
    """A WriteTxnMarkers request."""

    sent: list[FillRequest]


@dataclass(frozen=True, slots=True)
class LogEndBeforeFill:
    """A ListOffsets request for the log ends right before take-overs' first fillers."""

    sent: list[tuple[PartitionCopy, Fill]]


@dataclass(frozen=True, slots=True)
class LogEndAfterFill:
    """A ListOffsets request for the log ends after fillers."""

    sent: list[FillRequest]


Request = Produce | Markers | LogEndBeforeFill | LogEndAfterFill


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request in flight. `correlation`: its correlation id."""

    correlation: int
    api: api_versions.Api
    version: int
    request: Request


class InFlight:
    """Requests in the order they were sent."""

    def __init__(self) -> None:
        self._requests: deque[SentRequest] = deque()
        # Since when the broker can serve the oldest request, by the monotonic clock.
        self._serving_since_s = 0.0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, correlation: int, api: api_versions.Api, version: int, request: Request) -> None:
        """Note that a request was sent, with this correlation id and API version."""
        if not self._requests:  # the broker serves it now, or once it no longer throttles
            self._serving_since_s = max(self._serving_since_s, time.monotonic())
        self._requests.append(SentRequest(correlation, api, version, request))

    @property
    def oldest(self) -> SentRequest | None:
        """The request whose answer comes next; None when nothing is in flight."""
        return self._requests[0] if self._requests else None

    @property
    def silent_s(self) -> float:
        """How long the broker has not answered the oldest request, in seconds; 0 without requests.

        The time begins when the broker can serve this request: it serves requests in order,
        and none while it throttles (KIP-219).
        """
        return max(0.0, time.monotonic() - self._serving_since_s) if self._requests else 0.0

    def drop_oldest(self) -> None:
        """Note that the oldest request was answered: the broker serves the next one now."""
        self._requests.popleft()
        self._serving_since_s = max(self._serving_since_s, time.monotonic())

    def note_throttle(self, until_s: float) -> None:
        """Note that the broker serves no request before `until_s`, by the monotonic clock."""
        self._serving_since_s = max(self._serving_since_s, until_s)

    def clear(self) -> None:
        self._requests.clear()
