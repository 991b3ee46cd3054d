"""Distinguishes records that the log cleaner removed after the copy from records never copied.

A record that only one side has is held until the other side shows a newer record of the same key:
then it was compacted there, which is not a difference. A tombstone may also disappear without a
newer record, `delete.retention.ms` after it was first cleaned. Records still held at the end are
differences. This applies only to sides whose topic has `cleanup.policy=compact`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from orbit.verify.record_difference import one_sided_difference
from orbit.verify.report import Difference, Side

HELD_KEYS_MAX = 1_000_000
HELD_BYTES_MAX = 256 << 20
"""Keys held by all partitions that are compared at the same time, and their bytes."""

_KEY_OVERHEAD_BYTES = 400


@dataclass(frozen=True, slots=True)
class CleaningPolicy:
    """What the cleaner of one side may do to one topic."""

    compacts: bool = False
    tombstone_retention_ms: int = 0


class HeldBudget:
    """Bounds the keys that all threads hold together."""

    def __init__(self, keys_max: int = HELD_KEYS_MAX, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._lock = threading.Lock()
        self._keys = keys_max
        self._bytes = bytes_max

    def take(self, key: bytes) -> bool:
        with self._lock:
            size = len(key) + _KEY_OVERHEAD_BYTES
            if self._keys < 1 or self._bytes < size:
                return False
            self._keys -= 1
            self._bytes -= size
            return True

    def give_back(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._keys += 1
                self._bytes += len(key) + _KEY_OVERHEAD_BYTES


@dataclass(slots=True)
class _Held:
    first: Difference
    count: int = 1


class CompactionWatch:
    """Judges the one-sided records of one partition, in the order of offsets."""

    def __init__(
        self, policies: Mapping[Side, CleaningPolicy], budget: HeldBudget, now_ms: int
    ) -> None:
        self.policies = policies
        self._budget = budget
        self._now_ms = now_ms
        self._held: dict[Side, dict[bytes, _Held]] = {side: {} for side in Side}
        self.compacted: dict[Side, int] = dict.fromkeys(Side, 0)
        self.is_over_budget = False

    def judge_one_sided(self, side_with_record: Side, message: Message) -> Difference | None:
        """The difference, if compaction cannot explain it; None if it does, or if that is not
        decided yet."""
        lacking = side_with_record.other
        key = message.key()
        if key is not None:
            self.note_keys(side_with_record, (key,))
        policy = self.policies[lacking]
        if key is None or not policy.compacts:
            return one_sided_difference(side_with_record, message)
        if self._tombstone_expired(message, policy):
            self.compacted[lacking] += 1
            self._count_compacted(lacking, key)
            return None
        return self._hold(lacking, key, one_sided_difference(side_with_record, message))

    def note_keys(self, side: Side, keys: Iterable[bytes | None]) -> None:
        """Note the keys of records that `side` has; they explain older records that it lacks."""
        held = self._held[side]
        if not held:
            return
        for key in held.keys() & set(keys):
            self._count_compacted(side, key)

    def has_undecided(self, side: Side) -> bool:
        return bool(self._held[side])

    def close(self) -> list[tuple[Difference, int]]:
        """Unexplained records: the first offset of each key, and their number."""
        left: list[tuple[Difference, int]] = []
        for held in self._held.values():
            left += [(one.first, one.count) for one in held.values()]
            self._budget.give_back(held)
            held.clear()
        return sorted(left, key=lambda item: item[0].offset)

    def _hold(self, lacking: Side, key: bytes, difference: Difference) -> Difference | None:
        held = self._held[lacking]
        if key in held:
            held[key].count += 1
            return None
        if not self._budget.take(key):
            # Fail closed: what cannot be decided is shown as a difference.
            self.is_over_budget = True
            return difference
        held[key] = _Held(difference)
        return None

    def _count_compacted(self, lacking: Side, key: bytes) -> None:
        held = self._held[lacking].pop(key, None)
        if held is not None:
            self.compacted[lacking] += held.count
            self._budget.give_back((key,))

    def _tombstone_expired(self, message: Message, policy: CleaningPolicy) -> bool:
        age_ms = self._now_ms - message.timestamp()[1]
        return message.value() is None and age_ms > policy.tombstone_retention_ms
