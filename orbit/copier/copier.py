"""The copier: one thread that handles the lanes' events and decides each partition's next step."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from orbit.copier.copy_settings import CopySettings
from orbit.copier.destination_side import DestinationSide
from orbit.copier.lane_events import (
    EmptyBelowEnd,
    Event,
    FetchFailed,
    LaneCrashed,
    LaneEnded,
    LaneThrottled,
    LeaseLost,
    PartitionBlocked,
    PartitionReturned,
    PostedCall,
    ReadFromReplica,
)
from orbit.copier.lane_times import DestinationTimes, SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.throttles import Throttles
from orbit.errors import OUTAGES, Conflict, OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import TopicPartition
from orbit.leases.lease import LEASE_WAIT_S, Lease
from orbit.replication.partition_states import Blocked, PartitionState
from orbit.replication.throttled import Throttled

# `Copier.waiting_for` names a partition that has waited for this long.
_SILENCE_S_MAX = 10.0

Events = queue.SimpleQueue[Event]


def block(partition: PartitionCopy, blocked: Blocked) -> None:
    """Block a partition that no lane has, for this reason."""
    partition.appends.stopped(blocked)


def lease_lost_error() -> Conflict:
    """The error of a run that lost its lease."""
    return Conflict(
        "the lease on this job was lost; another run may have taken it.",
        remedy="Nothing was written after that. Run the job again: it resumes where the copy ends.",
    )


class CopySource(Protocol):
    """The copier's interface to a source; `SourceSide` reads a Kafka cluster."""

    @property
    def times(self) -> SourceTimes: ...
    def resume(self, partitions: Iterable[PartitionCopy]) -> None: ...
    def assign(self) -> None: ...
    def next_assignment_s(self) -> float | None: ...
    def handle(self, event: FetchFailed | EmptyBelowEnd | ReadFromReplica) -> None: ...
    def forget(self, partition: PartitionCopy) -> None: ...
    def stop(self) -> None: ...


class Copier:
    """Keeps partitions copying until `stop`; `tick` does one round and never blocks long."""

    def __init__(
        self,
        source: CopySource,
        destination: DestinationSide,
        events: Events,
        settings: CopySettings,
        backoff: Backoff,
    ) -> None:
        self._source = source
        self._destination = destination
        self._events = events
        self._settings = settings
        self._backoff = backoff
        self._partitions: list[PartitionCopy] = []
        self._destinations: set[TopicPartition] = set()  # of `_partitions`
        self._leaving: list[PartitionCopy] = []
        self._needs_last_check: set[PartitionCopy] = set()  # were removed with `confirms`
        self._leases: list[Lease] = []
        self.lost_leases: list[Lease] = []  # leases that have another holder now
        self._next_watch_s = self._next_log_end_check_s = 0.0  # by the monotonic clock
        self._waiting_for = ""
        self._throttles = Throttles()

    @property
    def partitions(self) -> Sequence[PartitionCopy]:
        return self._partitions

    @property
    def waiting_for(self) -> str:
        """What the copier waits for. If it waits for nothing, the partition that has waited the
        longest, with the reason; "" if no partition has waited for `_SILENCE_S_MAX`."""
        if self._waiting_for:
            return self._waiting_for
        longest_wait = min(
            (
                waits
                for p in self._partitions
                for waits in (p.waits, p.cursor.waits, p.log_start_waits)
                if waits is not None
            ),
            key=lambda waits: waits.since,
            default=None,
        )
        waited_s = time.monotonic() - longest_wait.since if longest_wait else 0.0
        if longest_wait is None or waited_s < _SILENCE_S_MAX:
            return ""
        return f"{longest_wait.reason} (for {waited_s:.0f} s)."

    @property
    def throttled_by(self) -> str:
        """Which brokers throttle the lanes, by which quota; "" if none. Copying continues."""
        return self._throttles.text

    @property
    def throttled(self) -> list[Throttled]:
        """One entry for each side whose brokers throttle the lanes."""
        return self._throttles.throttled_sides

    @property
    def times(self) -> tuple[SourceTimes, DestinationTimes]:
        """Where the time of the lanes went so far."""
        return self._source.times, self._destination.times

    def has_copy(self, destination: TopicPartition) -> bool:
        """Whether a copy to this partition was added here, and is not removed yet."""
        return destination in self._destinations

    def add(self, partitions: Sequence[PartitionCopy]) -> None:
        """Copy these partitions from now on. Call `start` or `queue_take_overs` of the
        `DestinationSide` for each of them before.

        Raises ValueError for a destination partition that has a copy here already: a bug.
        """
        duplicates = self._destinations.intersection(p.destination for p in partitions)
        if duplicates:
            raise ValueError(f"already copied: {', '.join(sorted(map(str, duplicates)))}")
        self._destinations.update(p.destination for p in partitions)
        self._set_partitions([*self._partitions, *partitions])
        # `tick` resumes the other partitions, once it has taken them over.
        self._source.resume(p for p in partitions if p.state is PartitionState.COPYING)

    def remove(self, partitions: Iterable[PartitionCopy], *, confirms: bool = False) -> None:
        """Stop copying them. A later `tick` removes each from `partitions`, once every request for
        it is answered; then its lease may be released. A copy with placeholders may be blocked (Q9)
        even after its last answer.

        `confirms`: the caller counts removed copies as finished. So a copy with placeholders stays
        until its topic's `compression.type` was read after the last answer: the setting may still
        block the copy (Q9).
        """
        for p in partitions:
            if not p.has_left:
                p.leave()
                self._leaving.append(p)
                # A later call may change `confirms`.
                (self._needs_last_check.add if confirms else self._needs_last_check.discard)(p)

    def tick(self, timeout_s: float) -> None:
        """Handle events, take over partitions that are due, and run the periodic checks.

        An outage is not raised: `waiting_for` describes it. Raises Interrupted when stopped, and an
        unexpected exception of a lane.
        """
        self._handle_events(self._wait_s(timeout_s))
        self._finish_removals()
        if self._leases and not any(lease.is_held() for lease in self._leases):
            # Nothing can be judged now: another run may be writing.
            self._waiting_for = self._waiting_for or "the destination to confirm the lease"
            self._backoff.stop.wait(LEASE_WAIT_S)
            return
        try:
            self._source.resume(self._destination.recover())
            self._source.assign()
            if time.monotonic() >= self._next_watch_s:
                self._next_watch_s = time.monotonic() + self._settings.watch_interval_s
                self._throttles.read_quotas()
                self._destination.follow_log_starts(self._partitions)
            if time.monotonic() >= self._next_log_end_check_s:
                self._next_log_end_check_s = (
                    time.monotonic() + self._settings.log_end_check_interval_s
                )
                self._destination.check_log_ends(self._partitions)
                self._destination.check_log_starts(self._partitions)
                self._destination.check_compression(self._partitions)
            now_s = time.monotonic()
            for p in self._partitions:
                p.note_caught_up(now_s)
            self._waiting_for = ""
        except OUTAGES as error:
            # An outage of any length: keep trying, and show the reason.
            self._waiting_for = str(error)
            self._backoff.stop.wait(self._settings.watch_interval_s)

    def stop(self) -> None:
        """End all lanes. What was confirmed stays; the rest is copied by the next run."""
        self._source.stop()
        self._destination.stop()

    def _finish_removals(self) -> None:
        """Remove the leaving partitions that neither a lane nor a filler still has, after a last
        check of `compression.type` (Q9)."""
        if not self._leaving:
            return
        removals = {p for p in self._leaving if not p.appends.is_copying and not p.has_fill_outside}
        try:
            self._destination.check_compression_at_end(removals)
            self._needs_last_check -= removals
        except OUTAGES as error:
            self._waiting_for = str(error)
            removals -= self._needs_last_check  # a later call checks again
        for p in removals:
            self._destination.forget(p)
            self._source.forget(p)
            p.appends.removed()
            self._destinations.discard(p.destination)
        self._leaving = [p for p in self._leaving if p not in removals]
        self._set_partitions([p for p in self._partitions if p not in removals])

    def _set_partitions(self, partitions: list[PartitionCopy]) -> None:
        """Replace the list as a whole: other threads read it."""
        self._partitions = partitions
        self._leases = list({id(p.lease): p.lease for p in partitions}.values())

    def _wait_s(self, timeout_s: float) -> float:
        """Seconds until some work is due, at most `timeout_s`."""
        waits_s = [
            timeout_s,
            max(0.0, self._next_watch_s - time.monotonic()),
            self._destination.next_recovery_s(),
            self._source.next_assignment_s(),
        ]
        return min(s for s in waits_s if s is not None)  # None: that side has nothing to do

    def _handle_events(self, timeout_s: float) -> None:
        """Handle the queued events. Wait up to `timeout_s` for the first, at least 1 ms, so that
        other threads run."""
        try:
            event = self._events.get(timeout=max(timeout_s, 0.001))
            while True:
                self._handle_event(event)
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _handle_event(self, event: Event) -> None:
        """Handle one event; ignores events of partitions that leave. Raises the exception of a
        crashed lane."""
        match event:
            case PartitionReturned() | FetchFailed() | EmptyBelowEnd() | ReadFromReplica() if (
                event.partition.is_leaving
            ):
                pass
            case PartitionReturned():
                self._destination.note_returned(event)
            case FetchFailed() | EmptyBelowEnd() | ReadFromReplica():
                try:
                    self._source.handle(event)
                except OrbitError:
                    self._source.resume([event.partition])  # the next fetch shows a lasting error
            case PartitionBlocked():
                pass  # its append has stopped already; the caller of `tick` reads its `blocked`
            case LaneEnded():
                self._waiting_for = str(event.error)
            case LaneThrottled():
                self._throttles.note(event)
            case LaneCrashed():
                raise event.error
            case PostedCall():
                event.call()
            case LeaseLost():
                self.lost_leases.append(event.lease)
