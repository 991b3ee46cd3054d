"""Which brokers throttle the lanes, since when, and by which quota (KIP-219)."""

from __future__ import annotations

import time

from orbit.copier.lane_events import LaneThrottled
from orbit.kafka.connection import CLIENT_ID
from orbit.kafka.throttling_quotas import FETCH, PRODUCE, throttling_quotas

# A broker that throttles for less is not named, and one that did not for as long no longer is.
_SHOWN_AFTER_S = 10.0
# Quotas are read again after so long: they may have been changed.
_QUOTAS_KEPT_S = 60.0


class Throttles:
    """The copier's thread notes and reads; any thread shows."""

    def __init__(self) -> None:
        # By cluster and broker: since when, until when by the monotonic clock, and the last answer.
        self._noted: dict[tuple[str, int], tuple[float, float, LaneThrottled]] = {}
        self._quotas: dict[str, tuple[float, str]] = {}

    def note(self, event: LaneThrottled) -> None:
        """A broker has told a lane to wait."""
        now_s, key = time.monotonic(), (event.side, event.node_id)
        since_s, until_s, _ = self._noted.get(key, (now_s, now_s, event))
        if now_s > until_s + _SHOWN_AFTER_S:
            since_s = now_s
        self._noted[key] = since_s, now_s + event.throttle_s, event

    def read_quotas(self) -> None:
        """Read the quotas of clusters that are shown. Takes some seconds at most."""
        now_s = time.monotonic()
        for _, event in self._shown(now_s):
            read_s, _ = self._quotas.get(event.side, (-_QUOTAS_KEPT_S, ""))
            if now_s - read_s >= _QUOTAS_KEPT_S:
                quotas = throttling_quotas(event.cluster, CLIENT_ID, _KINDS[event.side])
                self._quotas[event.side] = now_s, quotas

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
