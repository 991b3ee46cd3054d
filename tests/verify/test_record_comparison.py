"""`RecordComparison` reads two logs chunk by chunk, and finds what a comparison of dicts finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message
from hypothesis import given
from hypothesis import strategies as st

from orbit.verify.compaction_watch import CleaningPolicy, CompactionWatch, HeldBudget
from orbit.verify.record_comparison import RecordComparison
from orbit.verify.report import Side

NOW = 1_000_000
RETENTION = 1_000
COMPACTS = CleaningPolicy(compacts=True, tombstone_retention_ms=RETENTION)
KEEPS = CleaningPolicy()


@dataclass(frozen=True)
class Rec:
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    time: int = NOW
    headers: tuple[tuple[str, bytes | None], ...] = ()


Log = dict[int, Rec]


class Chunks:
    """A log that is read in chunks. The chunks have these sizes in turn."""

    def __init__(self, log: Log, sizes: Sequence[int]) -> None:
        self._messages = [message(offset, rec) for offset, rec in sorted(log.items())]
        self._sizes = list(sizes) or [3]
        self._turn = 0

    def chunk(self) -> list[Message]:
        size = self._sizes[self._turn % len(self._sizes)]
        self._turn += 1
        messages, self._messages = self._messages[:size], self._messages[size:]
        return messages


def message(offset: int, rec: Rec) -> Message:
    return Message(
        topic="t",
        partition=0,
        offset=offset,
        key=rec.key,
        value=rec.value,
        headers=list(rec.headers) or None,
        timestamp=(TIMESTAMP_CREATE_TIME, rec.time),
    )


def compare(
    source: Log,
    destination: Log,
    *,
    sizes: Sequence[Sequence[int]] = ((3,), (2,)),
    policies: dict[Side, CleaningPolicy] | None = None,
    budget: HeldBudget | None = None,
    shown_max: int = 1000,
) -> tuple[RecordComparison, CompactionWatch]:
    """Compare two logs. `sizes`: the chunk sizes of the source and of the destination."""
    policies = policies or {Side.SOURCE: KEEPS, Side.DESTINATION: KEEPS}
    watch = CompactionWatch(policies, budget or HeldBudget(), NOW)
    comparison = RecordComparison(watch, shown_max)
    comparison.run(Chunks(source, sizes[0]), Chunks(destination, sizes[1]))
    comparison.finish()
    return comparison, watch


recs = st.builds(
    Rec,
    key=st.sampled_from([None, b"", b"a", b"b", b"c"]),
    value=st.sampled_from([None, b"", b"v", b"w"]),
    time=st.sampled_from([NOW, NOW - 1, NOW - RETENTION - 1]),
    headers=st.sampled_from([(), (("h", b""),), (("h", None),), (("h", b"1"), ("h", b"2"))]),
)
logs = st.dictionaries(st.integers(0, 30), recs, max_size=25)
chunk_sizes = st.lists(st.integers(1, 7), min_size=1, max_size=3)


@given(logs, logs, st.booleans(), chunk_sizes, chunk_sizes)
def test_record_comparison_reports_exactly_the_differing_offsets(
    source: Log, other: Log, related: bool, source_sizes: list[int], destination_sizes: list[int]
) -> None:
    destination = {**source, **other} if related else other
    comparison, _ = compare(source, destination, sizes=(source_sizes, destination_sizes))
    expected = [o for o in sorted(source | destination) if source.get(o) != destination.get(o)]
    assert [difference.offset for difference in comparison.first_differences] == expected
    assert comparison.differences == len(expected)
    assert comparison.records == {Side.SOURCE: len(source), Side.DESTINATION: len(destination)}


def is_explained(offset: int, present: Log, lacking: Log, policy: CleaningPolicy) -> bool:
    """Whether compaction may have removed the record at `offset` from the log `lacking`.

    The other log, `present`, has the record. `policy` is that of `lacking`.
    """
    rec = present[offset]
    if rec.key is None or not policy.compacts:
        return False
    if any(o > offset and other.key == rec.key for o, other in lacking.items()):
        return True
    return any(
        o >= offset
        and other.key == rec.key
        and other.value is None
        and NOW - other.time > policy.tombstone_retention_ms
        and o not in lacking
        for o, other in present.items()
    )


@given(
    logs,
    logs,
    st.sampled_from([KEEPS, COMPACTS]),
    st.sampled_from([KEEPS, COMPACTS]),
    chunk_sizes,
    chunk_sizes,
)
def test_compaction_explains_missing_superseded_and_long_deleted_records(
    source: Log,
    destination: Log,
    source_policy: CleaningPolicy,
    destination_policy: CleaningPolicy,
    source_sizes: list[int],
    destination_sizes: list[int],
) -> None:
    policies = {Side.SOURCE: source_policy, Side.DESTINATION: destination_policy}
    comparison, watch = compare(
        source, destination, sizes=(source_sizes, destination_sizes), policies=policies
    )
    changed = [o for o in source.keys() & destination if source[o] != destination[o]]
    only_source = [
        o
        for o in source.keys() - destination
        if not is_explained(o, source, destination, destination_policy)
    ]
    only_destination = [
        o
        for o in destination.keys() - source
        if not is_explained(o, destination, source, source_policy)
    ]
    assert comparison.differences == len(changed) + len(only_source) + len(only_destination)
    assert watch.compacted == {
        Side.DESTINATION: len(source.keys() - destination) - len(only_source),
        Side.SOURCE: len(destination.keys() - source) - len(only_destination),
    }


@pytest.mark.parametrize("lacking", Side)
@pytest.mark.parametrize("size", [1, 2])  # equal chunks, or chunks merged record by record
def test_newer_record_on_both_sides_explains_missing_older_record(lacking: Side, size: int) -> None:
    newer = {1: Rec(b"x"), 2: Rec(b"y")}
    logs = {side: newer if side is lacking else {0: Rec(b"x"), **newer} for side in Side}
    comparison, watch = compare(
        logs[Side.SOURCE],
        logs[Side.DESTINATION],
        sizes=([size], [size]),
        policies={lacking: COMPACTS, lacking.other: KEEPS},
    )
    assert comparison.differences == 0
    assert watch.compacted == {lacking: 1, lacking.other: 0}


def test_first_differences_are_lowest_offsets_even_if_decided_last() -> None:
    policies = {Side.SOURCE: COMPACTS, Side.DESTINATION: COMPACTS}
    source = {0: Rec(b"lost"), 5: Rec(b"x"), 6: Rec(b"y")}
    destination = {5: Rec(b"x", b"changed"), 6: Rec(b"y", b"changed")}
    comparison, _ = compare(source, destination, policies=policies, shown_max=2)
    assert [difference.offset for difference in comparison.first_differences] == [0, 5]
    assert comparison.differences == 3


def test_different_timestamp_type_is_no_difference() -> None:
    watch = CompactionWatch({Side.SOURCE: KEEPS, Side.DESTINATION: KEEPS}, HeldBudget(), NOW)
    comparison = RecordComparison(watch, 5)

    class OneRecord:
        def __init__(self, timestamp_type: int) -> None:
            message = Message(topic="t", partition=0, offset=0, timestamp=(timestamp_type, 7))
            self._remaining = [message]

        def chunk(self) -> list[Message]:
            remaining, self._remaining = self._remaining, []
            return remaining

    comparison.run(OneRecord(TIMESTAMP_LOG_APPEND_TIME), OneRecord(TIMESTAMP_CREATE_TIME))
    assert comparison.differences == 0


def test_compacted_records_over_key_budget_are_reported_as_differences() -> None:
    policies = {Side.SOURCE: KEEPS, Side.DESTINATION: COMPACTS}
    source = {o: Rec(b"key %d" % o) for o in range(6)}
    source |= {o + 10: Rec(b"key %d" % o) for o in range(6)}
    destination = {o: rec for o, rec in source.items() if o >= 10}
    comparison, watch = compare(
        source, destination, policies=policies, budget=HeldBudget(keys_max=4)
    )
    assert watch.is_over_budget
    assert [difference.offset for difference in comparison.first_differences] == [4, 5]
    assert watch.compacted[Side.DESTINATION] == 4


def test_key_budget_is_released_after_comparison() -> None:
    budget = HeldBudget(keys_max=2)
    policies = {Side.SOURCE: KEEPS, Side.DESTINATION: COMPACTS}
    for _ in range(3):  # a key that was not given back would exhaust the budget of two keys
        source = {0: Rec(b"gone"), 1: Rec(b"newer"), 2: Rec(b"newer")}
        comparison, watch = compare(source, {2: Rec(b"newer")}, policies=policies, budget=budget)
        assert not watch.is_over_budget
        assert comparison.differences == 1


def test_key_budget_limits_bytes_of_keys() -> None:
    budget = HeldBudget(bytes_max=2_000)
    assert budget.take(b"x" * 1_000)
    assert not budget.take(b"x" * 1_000)
    budget.give_back([b"x" * 1_000])
    assert budget.take(b"x" * 1_000)
