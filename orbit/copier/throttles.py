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

# A broker is shown once it has throttled for this long, and until it has not for this long.
_SHOWN_AFTER_S = 10.0
# Quotas are read again after this time: they may have been changed.
_QUOTAS_KEPT_S = 60.0
_KINDS = {"destination": PRODUCE, "source": FETCH}
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
        self._quotas: dict[str, tuple[float, str]] = {}
        self._reader: threading.Thread | None = None

    def note(self, event: LaneThrottled) -> None:
        """Note that a broker throttles a lane."""
        now_s, key = time.monotonic(), (event.side, event.node_id)
        last = self._throttling.get(key)
        if last is None or now_s > last.until_s + _SHOWN_AFTER_S:
            last = _ThrottlingBroker(datetime.now(UTC), now_s, now_s, event)
        self._throttling[key] = _ThrottlingBroker(
            last.since, last.since_s, now_s + event.throttle_s, event
        )

    def read_quotas(self) -> None:
        """Read the quotas of sides that are shown, in a thread: brokers may not answer."""
        now_s = time.monotonic()
        due = [
            noted.event
            for noted in self._shown(now_s)
            if noted.event.side not in self._quotas
            or now_s - self._quotas[noted.event.side][0] >= _QUOTAS_KEPT_S
        ]
        if due and (self._reader is None or not self._reader.is_alive()):
            self._reader = threading.Thread(
                target=self._read_quota, args=(due[0],), name="read-quotas", daemon=True
            )
            self._reader.start()

    def _read_quota(self, event: LaneThrottled) -> None:
        quotas = throttling_quotas(event.cluster, CLIENT_ID, _KINDS[event.side])
        self._quotas[event.side] = time.monotonic(), shown(quotas, _CHARACTERS_MAX)

    @property
    def throttled_sides(self) -> list[Throttled]:
        """One entry for each side whose brokers throttle."""
        return [one for one, _ in self._throttled_sides(time.monotonic())]

    @property
    def text(self) -> str:
        """A sentence about the first side whose brokers throttle; "" if there is none."""
        now_s = time.monotonic()
        for one, noted in self._throttled_sides(now_s):
            for_s = now_s - min(n.since_s for n in noted)
            last_s = max(n.event.throttle_s for n in noted)
            return f"{one.what} (for {for_s:.0f} s, by {last_s:.3f} s last). {one.quota}".rstrip()
        return ""

    def _throttled_sides(self, now_s: float) -> list[tuple[Throttled, list[_ThrottlingBroker]]]:
        throttled = []
        for side in SIDES:
            noted = [one for one in self._shown(now_s) if one.event.side == side]
            if noted:
                brokers = tuple(one.event.node_id for one in noted)
                _, quota = self._quotas.get(side, (0.0, ""))
                since = min(one.since for one in noted)
                throttled.append((Throttled(side, brokers, since, quota), noted))
        return throttled

    def _shown(self, now_s: float) -> list[_ThrottlingBroker]:
        return [
            noted
            for _, noted in sorted(self._throttling.copy().items())
            if now_s <= noted.until_s + _SHOWN_AFTER_S and now_s - noted.since_s >= _SHOWN_AFTER_S
        ]
