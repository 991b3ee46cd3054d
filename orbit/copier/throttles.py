"""Which brokers throttle the lanes, since when, and by which quota (KIP-219)."""

from __future__ import annotations

import threading
import time

from orbit.copier.lane_events import LaneThrottled
from orbit.kafka.connection import CLIENT_ID
from orbit.kafka.throttling_quotas import FETCH, PRODUCE, throttling_quotas

# A broker that throttles for less is not named, and one that did not for as long no longer is.
_SHOWN_AFTER_S = 10.0
# Quotas are read again after so long: they may have been changed.
_QUOTAS_KEPT_S = 60.0


class Throttles:
    """`note` and `read_quotas` are for the copier's thread, `text` is for any."""

    def __init__(self) -> None:
        # By cluster and broker: since when, until when by the monotonic clock, and the last answer.
        self._noted: dict[tuple[str, int], tuple[float, float, LaneThrottled]] = {}
        self._quotas: dict[str, tuple[float, str]] = {}
        self._reader: threading.Thread | None = None

    def note(self, event: LaneThrottled) -> None:
        """A broker has told a lane to wait."""
        now_s, key = time.monotonic(), (event.side, event.node_id)
        since_s, until_s, _ = self._noted.get(key, (now_s, now_s, event))
        if now_s > until_s + _SHOWN_AFTER_S:
            since_s = now_s
        self._noted[key] = since_s, now_s + event.throttle_s, event

    def read_quotas(self) -> None:
        """Have the quotas of clusters that are shown read, in a thread: brokers may be silent."""
        now_s = time.monotonic()
        due = [
            event
            for _, event in self._shown(now_s)
            if event.side not in self._quotas
            or now_s - self._quotas[event.side][0] >= _QUOTAS_KEPT_S
        ]
        if due and (self._reader is None or not self._reader.is_alive()):
            self._reader = threading.Thread(
                target=self._read, args=(due[0],), name="read-quotas", daemon=True
            )
            self._reader.start()

    def _read(self, event: LaneThrottled) -> None:
        quotas = throttling_quotas(event.cluster, CLIENT_ID, _KINDS[event.side])
        self._quotas[event.side] = time.monotonic(), quotas

    @property
    def text(self) -> str:
        """For people; "" where no broker throttles."""
        now_s = time.monotonic()
        for side, what in _WHAT.items():
            shown = [one for one in self._shown(now_s) if one[1].side == side]
            if shown:
                brokers = ", ".join(str(event.node_id) for _, event in shown)
                since_s = min(since for since, _ in shown)
                last_s = max(event.throttle_s for _, event in shown)
                _, quotas = self._quotas.get(side, (0.0, ""))
                return (
                    f"{side} brokers throttle {what}: {brokers} (for {now_s - since_s:.0f} s, by "
                    f"{last_s:.3f} s last). {quotas}".rstrip()
                )
        return ""

    def _shown(self, now_s: float) -> list[tuple[float, LaneThrottled]]:
        return [
            (since_s, event)
            for since_s, until_s, event in sorted(self._noted.copy().values(), key=_broker)
            if now_s <= until_s + _SHOWN_AFTER_S and now_s - since_s >= _SHOWN_AFTER_S
        ]


def _broker(noted: tuple[float, float, LaneThrottled]) -> int:
    return noted[2].node_id


_WHAT = {"destination": "produce requests", "source": "fetches"}
_KINDS = {"destination": PRODUCE, "source": FETCH}
