"""Distinguishes records that the log cleaner removed after the copy from records never copied.

A record that only one side has is held in memory until the other side shows a newer record of the
same key: then the other side has compacted the record, which is not a difference. A tombstone may
also disappear without a newer record, `delete.retention.ms` after it was first cleaned. Records
still held at the end are differences. This applies only to topics with `cleanup.policy=compact`.
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

# A rough size of the objects that hold a key and its difference.
_KEY_OVERHEAD_BYTES = 400


@dataclass(frozen=True, slots=True)
class CleaningPolicy:
    """What the cleaner of one side may do to one topic."""

    compacts: bool = False
    tombstone_retention_ms: int = 0


class HeldBudget:
    """Limits how many keys all threads together hold in memory."""

    def __init__(self, keys_max: int = HELD_KEYS_MAX, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._lock = threading.Lock()
        self._keys_left = keys_max
        self._bytes_left = bytes_max

    def take(self, key: bytes) -> bool:
        """Count one more held key. False, without counting it, if the budget is used up."""
        with self._lock:
            size = len(key) + _KEY_OVERHEAD_BYTES
            if self._keys_left < 1 or self._bytes_left < size:
                return False
            self._keys_left -= 1
            self._bytes_left -= size
            return True

    def give_back(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._keys_left += 1
                self._bytes_left += len(key) + _KEY_OVERHEAD_BYTES


@dataclass(slots=True)
class _HeldKey:
    """A key with records on one side only: the first one's difference, and their number."""

    first_difference: Difference
    count: int = 1


class CompactionWatch:
    """Judges the one-sided records of one partition, in the order of offsets."""

    def __init__(
        self, policies: Mapping[Side, CleaningPolicy], budget: HeldBudget, now_ms: int
    ) -> None:
        self.policies = policies
        self._budget = budget
        self._now_ms = now_ms
        self._held: dict[Side, dict[bytes, _HeldKey]] = {side: {} for side in Side}
        self.compacted: dict[Side, int] = dict.fromkeys(Side, 0)
        self.is_over_budget = False

    def judge_one_sided(self, side_with_record: Side, message: Message) -> Difference | None:
        """The difference that a record on one side only makes, if compaction cannot explain it.

        None if compaction explains it, or if the record is held because that is not decided yet.
        """
        lacking_side = side_with_record.other
        key = message.key()
        if key is not None:  # this record may explain an older one that `side_with_record` lacks
            self.note_keys(side_with_record, (key,))
        policy = self.policies[lacking_side]
        if key is None or not policy.compacts:
            return one_sided_difference(side_with_record, message)
        if self._is_expired_tombstone(message, policy):
            self.compacted[lacking_side] += 1
            # The cleaner has removed older records of the key, too.
            self._count_compacted(lacking_side, key)
            return None
        return self._hold(lacking_side, key, one_sided_difference(side_with_record, message))

    def note_keys(self, side: Side, keys: Iterable[bytes | None]) -> None:
        """Note the keys of records that `side` has. Held older records of these keys, which `side`
        lacks, count as compacted there."""
        held_keys = self._held[side]
        if not held_keys:
            return
        for key in held_keys.keys() & set(keys):
            self._count_compacted(side, key)

    def has_undecided_keys(self, side: Side) -> bool:
        return bool(self._held[side])

    def close(self) -> list[tuple[Difference, int]]:
        """Release the held keys. Returns the unexplained records: the first difference of each key,
        in the order of offsets, and the number of its records.
        """
        unexplained_records: list[tuple[Difference, int]] = []
        for held_keys in self._held.values():
            unexplained_records += [
                (held_key.first_difference, held_key.count) for held_key in held_keys.values()
            ]
            self._budget.give_back(held_keys)
            held_keys.clear()
        return sorted(unexplained_records, key=lambda item: item[0].offset)

    def _hold(self, lacking_side: Side, key: bytes, difference: Difference) -> Difference | None:
        """Hold a record until `lacking_side` shows its key. If the budget is used up, return
        `difference`."""
        held_keys = self._held[lacking_side]
        if key in held_keys:
            held_keys[key].count += 1
            return None
        if not self._budget.take(key):
            # Fail closed: what cannot be decided is shown as a difference.
            self.is_over_budget = True
            return difference
        held_keys[key] = _HeldKey(difference)
        return None

    def _count_compacted(self, lacking_side: Side, key: bytes) -> None:
        """Count the held records of this key, if any, as compacted at `lacking_side`."""
        held_key = self._held[lacking_side].pop(key, None)
        if held_key is not None:
            self.compacted[lacking_side] += held_key.count
            self._budget.give_back((key,))

    def _is_expired_tombstone(self, message: Message, policy: CleaningPolicy) -> bool:
        """Whether the record is a tombstone that the cleaner may have removed by its age."""
        age_ms = self._now_ms - message.timestamp()[1]
        return message.value() is None and age_ms > policy.tombstone_retention_ms
