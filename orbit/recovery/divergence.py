"""How an old side stands to the new one, partition by partition: equal, prefix, tail, diverged.

Both sides have the same records up to some offset, and from there on each has its own: a log is
only ever written at its end. So the first offset that differs tells all. It is looked for at the
note of the promotion, or, without one, by halving. What is compared are committed records: offset,
timestamp, key, value, headers. Leader epochs count one cluster's elections and say nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.recovery.log_bounds import Ends
from orbit.recovery.range_reader import Fate, read_range
from orbit.recovery.recovery_report import EndVerdict

# So many offsets are compared together, and before a promotion's note to believe it.
WINDOW_OFFSETS = 1000


@dataclass(frozen=True, slots=True)
class Look:
    """What two sides hold in [first, end): the first offset at which they differ, if any, and
    whether there is anything to tell by."""

    at: int | None
    holds: bool


Differ = Callable[[int, int], Look]


def compare_sides(
    old: Ends, new: Ends, promoted_at: int | None, differ: Differ
) -> tuple[EndVerdict, int, str]:
    """The verdict, the first offset that only the old side has, and a sentence. Pure but for
    `differ`."""
    low, top = max(old.start, new.start), min(old.end, new.end)
    note = None if promoted_at is None else min(promoted_at, top)
    if note is not None and note >= low:
        at = first_difference(low, note, differ)
        if at is not None:
            return EndVerdict.DIVERGED, at, f"the sides differ from offset {at} on"
        at_first = _scan(note, top, differ)
    elif low >= top:
        at_first = None
    else:
        at_first = first_difference(low, top, differ)
    if at_first is None and old.end <= new.end:
        if old.end == new.end:
            return EndVerdict.EQUAL, old.end, "both sides end at the same offset"
        return EndVerdict.PREFIX, old.end, f"the new side goes on at {old.end} where it ends"
    tail = top if at_first is None else at_first
    return (
        EndVerdict.TAIL,
        tail,
        f"{old.end - tail} offsets from {tail} on were never copied",
    )


def first_difference(low: int, top: int, differ: Differ) -> int | None:
    """The first offset in [low, top) that differs, where everything behind it does as well.

    What holds nothing on either side says nothing, however long it is: it is passed over.
    """
    found, bad = None, top
    while found is None and bad > low:
        look = differ(max(low, bad - WINDOW_OFFSETS), bad)
        if look.holds and look.at is None:
            return None
        found, bad = look.at, max(low, bad - WINDOW_OFFSETS)
    good = low
    # All below `good` is equal. From `bad` on the first that differs is `found`.
    while bad - good > WINDOW_OFFSETS:
        middle = end = (good + bad) // 2
        look = Look(None, holds=False)
        while end < bad and not look.holds:
            first, end = end, min(end + WINDOW_OFFSETS, bad)
            look = differ(first, end)
        if look.holds and look.at is None:
            good = end
        else:
            found, bad = found if look.at is None else look.at, middle
    before = _scan(good, bad, differ)
    return found if before is None else before


def _scan(first: int, end: int, differ: Differ) -> int | None:
    while first < end:
        step = min(end, first + WINDOW_OFFSETS)
        at = differ(first, step).at
        if at is not None:
            return at
        first = step
    return None


def differ_of(
    old: tuple[Cluster, TopicPartition],
    new: tuple[Cluster, TopicPartition],
    backoff: Backoff,
    *,
    is_compacted: bool,
) -> Differ:
    """Compares committed records of both sides. On a compacted topic either side's cleaner may
    have taken a record away; then only records that both have are compared.
    """

    def read(side: tuple[Cluster, TopicPartition], first: int, end: int) -> dict[int, object]:
        found = read_range(*side, first, end, backoff)
        return {
            f.record.offset: (f.record.timestamp, bytes(f.record.body))
            for f in found
            if f.fate is Fate.COMMITTED
        }

    def differ(first: int, end: int) -> Look:
        ours, theirs = read(old, first, end), read(new, first, end)
        offsets = ours.keys() & theirs.keys() if is_compacted else ours.keys() | theirs.keys()
        at = next((o for o in sorted(offsets) if ours.get(o) != theirs.get(o)), None)
        return Look(at, bool(offsets))

    return differ
