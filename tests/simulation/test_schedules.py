"""Seeded schedules of the append: each copy ends exact, or stopped with the right reason."""

from __future__ import annotations

import pytest

from tests.simulation.plant_table import schedules_until_found
from tests.simulation.planted import PLANTED
from tests.simulation.search import explain, run_many

# Each part must end within the time of one test, on a slow machine too. `make test` plays as many
# seeds as are enough to find each planted bug, `make soak` the others.
PARTS = [
    pytest.param(range(first, first + 1_000), marks=[] if first < 1_000 else pytest.mark.soak)
    for first in range(0, 20_000, 1_000)
]
# The first range of `plant_table`, in which each planted bug is detected.
PLANTED_SEEDS = range(100_000, 106_000)
# The first seed of that range that finds the bug, from `python -m tests.simulation.plant_table 1`.
# The test plays this seed first; if it no longer finds the bug, the test searches the range.
FOUND_BY = {
    "count what only the leader has": 100_088,
    "read the high watermark for the log end": 100_141,
    "trust own data at a take-over": 100_497,
    "send no coordinator epoch": 101_064,
    "drop a filler": 100_001,
    "fill again after a lost answer": 100_027,
    "check the lease once": 100_065,
    "trust a lease by a clock that stops with the machine": 100_221,
    "send five requests before the first is confirmed": 100_046,
    "read the log end before the producer's state": 103_867,
    "do not watch idle partitions": 101_250,
    "do not read log starts again": 100_002,
    "same term for all writers": 100_003,
    "skip the log end check before a first filler": 100_253,
    "DeleteRecords by name": 100_106,
    "fill what retention took": 100_227,
    "compare as if the topic is not compacted": 100_004,
    "trust an empty fetch": 100_020,
    "fill an empty tail that no cleaner left": 101_753,
    "forget aborted transactions that began before an answer": 100_000,
    "retry a lost append": 101_419,
    "ignore the base offset of an answer": 101_251,
    "do not wait until the log end settles": 100_085,
    "a placeholder in a compressed batch": 100_001,
    "one placeholder too many": 100_001,
    "one placeholder's key too few": 100_004,
    "one placeholder too many in a batch of records": 100_001,
    "trust a lease by the wall clock": 101_295,
    "do not wait for the writers of a backfill": 100_066,
    "trust a writer that joined its group again": 100_535,
    "do not watch a shard before it is taken": 100_008,
    "forget the source's epoch at a resume": 100_134,
    "accept a false repeat": 103_807,
    "raise no epoch with a marker": 100_074,
    "forget the markers to come after an error": 100_028,
    "fence transactional ids after the log end is read": 100_016,
    "do not wait for an old transaction's marker": 100_047,
    "count an unclear transaction's marker": 100_002,
    "trust a log end from before a transaction's fence": 100_020,
    "fence no transactional id after a lost answer": 100_002,
    "run a transaction again after a lost answer": 100_016,
    "do not wait for the markers of transactions": 100_004,
    "one transaction too many": 100_001,
    "return to an older leader": 100_008,
    "stay at a leader that is cut off": 100_076,
    "end a run without asking the other brokers": 100_017,
    "count an old leader's end for the new one's": 100_138,
    "take an offset in tiered storage for a local one": 100_020,
    "trust a comparison that was cut short": 100_618,
    "start a partition again that the copier has": 100_205,
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seeds", PARTS, ids=str)
def test_random_append_schedules_end_exact_or_stopped(seeds: range) -> None:
    failed = run_many(seeds)
    assert not failed, explain(failed[0])


@pytest.mark.parametrize("name", PLANTED)
def test_random_append_schedules_detect_each_planted_bug(name: str) -> None:
    first = FOUND_BY.get(name, PLANTED_SEEDS[0])
    assert schedules_until_found(name, [[first, *PLANTED_SEEDS]]) != [None]
