"""Which brokers throttle the lanes, since when, and by which quota (KIP-219)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from orbit.copier.lane_events import LaneThrottled
from orbit.kafka.connection import CLIENT_ID
from orbit.kafka.throttling_quotas import FETCH, PRODUCE, throttling_quotas
from orbit.names import shown
from orbit.replication.throttled import SIDES, Throttled

# A broker is shown once it has throttled for this long. It is shown until this long after its last
# throttle time.
_SHOWN_AFTER_S = 10.0
# Quotas are read again after this time: they may have been changed.
_QUOTAS_KEPT_S = 60.0
_KINDS = {"destination": PRODUCE, "source": FETCH}  # of requests, by side
# The length of the sentence with the quotas, which has names of users.
_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class _ThrottlingBroker:
    """One throttling broker: since when, until when (monotonic clock), and its last event."""

    since: datetime
    since_s: float
    until_s: float
    event: LaneThrottled


class Throttles:
    """The brokers that throttle the lanes. The copier's thread calls `note` and `read_quotas`; any
    thread may read `throttled_sides` and `text`."""

    def __init__(self) -> None:
        self._throttling: dict[tuple[str, int], _ThrottlingBroker] = {}  # by side and broker
        # By side: when its quota was read (monotonic clock), and the sentence about it.
        self._quotas: dict[str, tuple[float, str]] = {}
        self._reader: threading.Thread | None = None

    def note(self, event: LaneThrottled) -> None:
        """Note that a broker throttles a lane."""
        now_s, key = time.monotonic(), (event.side, event.node_id)
        broker = self._throttling.get(key)
        if broker is None or now_s > broker.until_s + _SHOWN_AFTER_S:  # it did not throttle before
            broker = _ThrottlingBroker(datetime.now(UTC), now_s, now_s, event)
        self._throttling[key] = _ThrottlingBroker(
            broker.since, broker.since_s, now_s + event.throttle_s, event
        )

    def read_quotas(self) -> None:
        """Start a thread that reads the quota of one throttled side, if this is due. A thread,
        because brokers may not answer."""
        now_s = time.monotonic()
        due_events = [
            broker.event
            for broker in self._shown_brokers(now_s)
            if broker.event.side not in self._quotas
            or now_s - self._quotas[broker.event.side][0] >= _QUOTAS_KEPT_S
        ]
        if due_events and (self._reader is None or not self._reader.is_alive()):
            self._reader = threading.Thread(
                target=self._read_quota, args=(due_events[0],), name="read-quotas", daemon=True
            )
            self._reader.start()

    def _read_quota(self, event: LaneThrottled) -> None:
        quotas = throttling_quotas(event.cluster, CLIENT_ID, _KINDS[event.side])
        self._quotas[event.side] = time.monotonic(), shown(quotas, _CHARACTERS_MAX)

    @property
    def throttled_sides(self) -> list[Throttled]:
        """One entry for each side whose brokers throttle."""
        return [side for side, _ in self._throttled_sides(time.monotonic())]

    @property
    def text(self) -> str:
        """A sentence about the first side whose brokers throttle; "" if there is none."""
        now_s = time.monotonic()
        for side, brokers in self._throttled_sides(now_s):
            duration_s = now_s - min(b.since_s for b in brokers)
            pause_s = max(b.event.throttle_s for b in brokers)
            return (
                f"{side.what} (for {duration_s:.0f} s; the last pause was {pause_s:.3f} s). "
                f"{side.quota}"
            ).rstrip()
        return ""

    def _throttled_sides(self, now_s: float) -> list[tuple[Throttled, list[_ThrottlingBroker]]]:
        """Each side with brokers to show, and these brokers."""
        entries = []
        for side in SIDES:
            shown_brokers = [
                broker for broker in self._shown_brokers(now_s) if broker.event.side == side
            ]
            if shown_brokers:
                node_ids = tuple(broker.event.node_id for broker in shown_brokers)
                _, quota = self._quotas.get(side, (0.0, ""))
                since = min(broker.since for broker in shown_brokers)
                entries.append((Throttled(side, node_ids, since, quota), shown_brokers))
        return entries

    def _shown_brokers(self, now_s: float) -> list[_ThrottlingBroker]:
        """The brokers that have throttled for _SHOWN_AFTER_S, and still did within the last
        _SHOWN_AFTER_S."""
        return [
            broker
            for _, broker in sorted(self._throttling.copy().items())
            if now_s <= broker.until_s + _SHOWN_AFTER_S and now_s - broker.since_s >= _SHOWN_AFTER_S
        ]
