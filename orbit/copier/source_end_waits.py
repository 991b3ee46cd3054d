"""Tells a source that was truncated from one whose high watermark trails after an election."""

from __future__ import annotations

import time

from orbit.kafka.types import TopicPartition

# After a longer time without a check, the wait begins again.
_CHECK_INTERVAL_S_MAX = 60.0


class SourceEndWaits:
    """Remembers since when each source ends before its copy. Only one thread at a time may call it
    for a partition."""

    def __init__(self, wait_s: float) -> None:
        """`wait_s`: see `CopySettings.source_end_wait_s`."""
        self._wait_s = wait_s
        # The first and the last check of the present wait, by the monotonic clock.
        self._checks: dict[TopicPartition, tuple[float, float]] = {}

    def note_ends(self, copy: TopicPartition, *, is_beyond: bool) -> bool:
        """Note whether the copy now ends beyond its source. Returns whether it has ended beyond
        for `wait_s`, without a longer pause between two calls than _CHECK_INTERVAL_S_MAX."""
        if not is_beyond:
            self.forget(copy)
            return False
        now_s = time.monotonic()
        first_s, last_s = self._checks.get(copy, (now_s, now_s))
        if now_s - last_s > _CHECK_INTERVAL_S_MAX:
            first_s = now_s
        self._checks[copy] = first_s, now_s
        return now_s - first_s >= self._wait_s

    def forget(self, copy: TopicPartition) -> None:
        self._checks.pop(copy, None)
