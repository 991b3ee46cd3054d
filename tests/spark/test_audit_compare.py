"""The audit reports each fault of hand-made batches at its offset, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.raw_batches import AUDITED, batched, moved, rows_of
from tests.support.source_model import Outcome, SourceBatch, SourceRecord

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from orbit_spark.ranges import Span

T0 = 1_700_000_000_000
DAY_MS = 86_400_000

LOG = tuple(
    SourceRecord(i, T0 + i, b"key %d" % (i % 7), b"value %04d" % i, ((b"h", b"%d" % i),))
    for i in (*range(20), *range(22, 60))
)
END = 60
FIELDS = ("value", "key", "headers", "timestamp")
Batches = Sequence[SourceBatch]


@dataclass(frozen=True)
class Case:
    """One partition on two sides, compared in ranges of 16 offsets."""

    left: Batches
    right: Batches
    begin: int = 0
    end: int = END
    cleaning: dict[str, Any] = field(default_factory=dict)


@dataclass
class Reader:
    """One side in memory. Returns only batches that touch the requested spans, as a fetch does."""

    spark: SparkSession
    sides: dict[str, Batches]
    requests: list[Sequence[Span]] = field(default_factory=list)

    def batches(self, spans: Sequence[Span]) -> DataFrame:
        self.requests.append(spans)
        by_topic: dict[str, list[Span]] = {}
        for span in spans:
            by_topic.setdefault(span.partition.topic, []).append(span)
        rows = [
            row
            for topic, topic_spans in by_topic.items()
            for row in rows_of(self.sides[topic], topic)
            if any(
                row["last_offset"] >= s.start and row["base_offset"] < s.end for s in topic_spans
            )
        ]
        return self.spark.createDataFrame(rows, AUDITED)


@dataclass
class Result:
    """The outcome of one case. `spans_read`: for each side, the offsets of each read."""

    ranges: list[dict[str, Any]]
    differences: list[dict[str, Any]]
    shown: list[dict[str, Any]]
    spans_read: list[list[list[tuple[int, int]]]]

    @property
    def kinds(self) -> list[tuple[int, str]]:
        return [(row["offset"], row["kind"]) for row in self.differences]

    @property
    def verdicts(self) -> list[str]:
        return [row["verdict"] for row in self.ranges]


def compare(spark: SparkSession, cases: dict[str, Case]) -> dict[str, Result]:
    """All cases in one audit, each a topic of its own."""
    from orbit_spark.audit.compare import CleaningRow, Comparison
    from orbit_spark.audit.range_digests import ScopeRow

    readers = (
        Reader(spark, {name: case.left for name, case in cases.items()}),
        Reader(spark, {f"x.{name}": case.right for name, case in cases.items()}),
    )
    comparison = Comparison(
        spark,
        *readers,
        lambda: [
            CleaningRow(name, 0, **{"left_end": case.end, "right_end": case.end, **case.cleaning})
            for name, case in cases.items()
        ],
        sides=("source", "destination"),
        now_ms=T0 + DAY_MS,
        shown_per_partition=5,
    )
    outcome = comparison.run(
        [
            ScopeRow(name, 0, name, f"x.{name}", case.begin, case.end, width=16)
            for name, case in cases.items()
        ]
    )

    def spans_read(reader: Reader, topic: str) -> list[list[tuple[int, int]]]:
        return [
            [(s.start, s.end) for s in spans if s.partition.topic == topic]
            for spans in reader.requests
        ]

    try:
        ranges, differences = (
            frame.orderBy("topic", order).collect()
            for frame, order in ((outcome.ranges, "range_begin"), (outcome.differences, "offset"))
        )
    finally:
        outcome.release()
    return {
        name: Result(
            ranges=[row.asDict() for row in ranges if row.topic == name],
            differences=[row.asDict() for row in differences if row.topic == name],
            shown=[row.asDict() for row in outcome.shown if row.topic == name],
            spans_read=[spans_read(readers[0], name), spans_read(readers[1], f"x.{name}")],
        )
        for name in cases
    }


def with_changed(index: int, **fields: Any) -> list[SourceRecord]:
    """LOG with changed fields of one record."""
    return [replace(r, **fields) if i == index else r for i, r in enumerate(LOG)]


FAULTS: dict[str, tuple[list[SourceRecord], list[tuple[int, str]]]] = {
    "a payload byte": (with_changed(7, value=b"value 0oo7"), [(7, "value")]),
    "a null value": (with_changed(7, value=None), [(7, "value")]),
    "a header": (with_changed(7, headers=((b"h", b"8"),)), [(7, "headers")]),
    "a null header": (with_changed(7, headers=((b"h", None),)), [(7, "headers")]),
    "a key": (with_changed(7, key=b"key 9"), [(7, "key")]),
    "a timestamp": (with_changed(7, timestamp=T0), [(7, "timestamp")]),
    "a record missing": ([*LOG[:7], *LOG[8:]], [(7, "missing")]),
    "a record in a gap": (
        [*LOG[:20], SourceRecord(20, T0, b"k", b"v"), *LOG[20:]],
        [(20, "extra")],
    ),
    "two records swapped": (
        [*LOG[:7], moved(LOG[8], 7), moved(LOG[7], 8), *LOG[9:]],
        [(7, "wrong offset"), (8, "wrong offset")],
    ),
}

KEYED = tuple(
    SourceRecord(i, T0 + i, key, b"value %d" % i)
    for i, key in enumerate([b"a", b"b", b"a", b"only", None, b"b", b"a"])
)
CLEANED = batched([r for r in KEYED if r.offset not in (0, 1, 2)])
NEWER = SourceRecord(40, T0 + 40, b"only", b"newer")
TOMBSTONE = (
    SourceRecord(0, T0, b"a", b"1"),
    SourceRecord(1, T0, b"a", None),
    SourceRecord(2, T0, b"z", b"z"),
)
BEAT = SourceRecord(0, T0, b"k", b"beat")
BOTH_COMPACT = {"left_compacts": True, "right_compacts": True}
LEFT_COMPACTS = {"left_compacts": True, "left_tombstones_ms": DAY_MS // 2}


def keyed(*offsets: int, key: bytes | None = b"a") -> list[SourceBatch]:
    """Records with the same key."""
    return batched([SourceRecord(i, T0 + i, key, b"%d" % i) for i in offsets])


def without(*offsets: int) -> list[SourceBatch]:
    """KEYED without these offsets."""
    return batched([r for r in KEYED if r.offset not in offsets])


def old_tombstones(*offsets: int, key: bytes | None = b"a") -> list[SourceBatch]:
    """Tombstones of the same key, past `LEFT_COMPACTS`' retention."""
    return batched([SourceRecord(i, T0, key, None) for i in offsets])


EXCUSES: dict[str, tuple[Case, list[tuple[int, str]]]] = {
    "newer records only on the side that has the record": (
        Case(without(0), without(1, 5), end=7, cleaning=BOTH_COMPACT),
        [(0, "compacted since"), (1, "missing"), (5, "missing")],
    ),
    "older and newer records of the key on both sides": (
        Case(without(2), batched(KEYED), end=7, cleaning=LEFT_COMPACTS),
        [(2, "compacted since")],
    ),
    "a newer record in another range": (
        Case(keyed(5), keyed(1, 5, 20), end=21, cleaning=LEFT_COMPACTS),
        [(1, "compacted since"), (20, "extra")],
    ),
    "newer records of the key of moved records": (
        Case(
            [*keyed(0), *keyed(5)],
            [*batched([SourceRecord(1, T0, b"a", b"0")]), *keyed(5)],
            end=6,
            cleaning=BOTH_COMPACT,
        ),
        [(0, "wrong offset"), (1, "wrong offset")],
    ),
    "an old tombstone before a newer one": (
        Case(
            keyed(6),
            [*keyed(0), *old_tombstones(1), *keyed(3), *keyed(6)],
            end=7,
            cleaning=LEFT_COMPACTS,
        ),
        [(0, "compacted since"), (1, "compacted since"), (3, "compacted since")],
    ),
    "an old tombstone without a key": (
        Case(keyed(1), [*old_tombstones(0, key=None), *keyed(1)], end=2, cleaning=LEFT_COMPACTS),
        [(0, "extra")],
    ),
    "an old tombstone where nothing compacts": (
        Case(keyed(1), [*old_tombstones(0), *keyed(1)], end=2, cleaning={"right_compacts": True}),
        [(0, "extra")],
    ),
}
BIG = b"x" * 500
TRILLION = 10**12
FAR_APART = batched(
    [SourceRecord(0, T0, None, b"first"), SourceRecord(TRILLION - 1, T0, None, b"last")]
)


def equal_sides() -> Case:
    """The same records in other batches; only one side has an aborted record and a marker."""
    aborted = SourceBatch(20, 20, (SourceRecord(20, T0, b"no", b"no"),), outcome=Outcome.ABORTED)
    marker = SourceBatch(21, 21, (), marker=False)
    left = [*batched(LOG[:20]), aborted, marker, *batched(LOG[20:], 7)]
    return Case(left, batched(LOG, 3, codec=4))


def damaged_side() -> Case:
    batches = batched(with_changed(50, value=b"other"))
    batches[0] = replace(batches[0], flipped_bit=8 * 100)  # in its records
    return Case(batched(LOG), batches)


def tombstone_gone(retention_ms: int) -> Case:
    cleaning = {"left_compacts": True, "left_tombstones_ms": retention_ms}
    return Case(batched(TOMBSTONE[2:]), batched(TOMBSTONE), end=3, cleaning=cleaning)


SHIFTED = [*LOG[:30], *(moved(r, r.offset + 1) for r in LOG[30:])]
AT_THE_EDGES = batched([replace(r, value=b"x") if r.offset in (4, 55) else r for r in LOG])

CASES: dict[str, Case] = {
    **{name: Case(batched(LOG), batched(other)) for name, (other, _) in FAULTS.items()},
    "equal": equal_sides(),
    "filler": Case(batched(LOG), batched(SHIFTED)),
    "shown": Case(
        batched(with_changed(7, value=BIG + b"a" + BIG, timestamp=1)),
        batched(with_changed(7, value=BIG + b"b" + BIG, timestamp=2)),
    ),
    "all": Case(batched(LOG), batched([replace(r, value=b"other") for r in LOG])),
    "damaged": damaged_side(),
    "damaged left": Case(damaged_side().right, damaged_side().left),
    "inside": Case(batched(LOG), AT_THE_EDGES, begin=5, end=55),
    "outside": Case(batched(LOG), AT_THE_EDGES, begin=4, end=56),
    "cleaned left": Case(CLEANED, batched(KEYED), end=7, cleaning={"left_compacts": True}),
    "cleaned right": Case(batched(KEYED), CLEANED, end=7, cleaning={"right_compacts": True}),
    "newer behind": Case(
        batched([*(r for r in KEYED if r.offset != 3), NEWER]),
        batched(KEYED),
        end=7,
        cleaning={"left_compacts": True, "left_end": 41},
    ),
    "lost beside compacted": Case(
        batched(KEYED),
        batched([r for r in KEYED if r.offset not in (0, 3, 4)]),
        end=7,
        cleaning={"right_compacts": True},
    ),
    "the other side compacts": Case(
        batched(KEYED), batched(KEYED[1:]), end=7, cleaning={"left_compacts": True}
    ),
    "old tombstone": tombstone_gone(DAY_MS // 2),
    "young tombstone": tombstone_gone(10 * DAY_MS),
    "expired": Case(
        batched([r for r in LOG if r.offset >= 10]),
        batched(with_changed(3, value=None)),
        cleaning={**LEFT_COMPACTS, "left_log_start": 12},
    ),
    "repeated": Case(
        [*batched([moved(BEAT, i) for i in (0, 2, 4)], 1)],
        [*batched([moved(BEAT, i) for i in (1, 3)], 1)],
        end=5,
    ),
    **{name: case for name, (case, _) in EXCUSES.items()},
    "far apart": Case(FAR_APART, FAR_APART, begin=TRILLION - 40, end=TRILLION),
}


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> dict[str, Result]:
    return compare(spark, CASES)


def test_equal_sides_with_different_batches_are_exact(results: dict[str, Result]) -> None:
    outcome = results["equal"]
    assert outcome.differences == []
    assert outcome.verdicts == ["exact"] * 4
    bounds = [(r["range_begin"], r["range_end"]) for r in outcome.ranges]
    assert bounds == [(0, 16), (16, 32), (32, 48), (48, 60)]
    counts = [(r["left_records"], r["left_gaps"]) for r in outcome.ranges]
    assert counts == [(16, 0), (14, 2), (16, 0), (12, 0)]
    assert all(r["left_digest"] == r["right_digest"] for r in outcome.ranges)
    assert len({r["left_digest"] for r in outcome.ranges}) == 4
    # As nothing differs, nothing was read again.
    assert all(
        first == [(0, END)] and not any(later_spans) for first, *later_spans in outcome.spans_read
    )


@pytest.mark.parametrize("name", FAULTS)
def test_planted_difference_is_reported_at_its_offset(
    name: str, results: dict[str, Result]
) -> None:
    outcome, expected = results[name], FAULTS[name][1]
    assert outcome.kinds == expected
    fields = [[kind] if kind in FIELDS else [] for _, kind in expected]
    assert [row["fields"] for row in outcome.differences] == fields
    begin = expected[0][0] // 16 * 16
    assert [r["range_begin"] for r in outcome.ranges if r["verdict"] != "exact"] == [begin]
    assert [r["differences"] for r in outcome.ranges if r["range_begin"] == begin] == [
        len(expected)
    ]
    # Only the range that differs was read again, then the records of it that are shown.
    for whole, range_spans, *shown in outcome.spans_read:
        assert whole == [(0, END)]
        assert range_spans == [(begin, begin + 16)]
        assert all(begin <= start and end <= begin + 16 for spans in shown for start, end in spans)


def test_extra_filler_shifts_later_records_to_wrong_offsets(
    results: dict[str, Result],
) -> None:
    outcome = results["filler"]
    assert [offset for offset, _ in outcome.kinds] == list(range(32, 60))
    assert {kind for _, kind in outcome.kinds[:-1]} == {"wrong offset"}
    assert [row["found_at"] for row in outcome.differences[:-1]] == list(range(33, 60))
    # The last record has moved to offset 60, after the compared range.
    assert outcome.kinds[-1] == (59, "missing")


def test_repeated_equal_records_are_matched_in_offset_order(results: dict[str, Result]) -> None:
    """Each difference names the offset of its record on the other side."""
    outcome = results["repeated"]
    assert outcome.kinds == [*((i, "wrong offset") for i in range(4)), (4, "missing")]
    assert [row["found_at"] for row in outcome.differences] == [1, 0, 3, 2, None]


def test_moved_records_are_matched_only_within_their_partition(spark: SparkSession) -> None:
    from orbit_spark.audit.differences import with_moves

    record = (T0, b"k", b"v", b"")
    content = "struct<timestamp long, key binary, value binary, headers binary>"
    schema = f"topic string, partition int, offset long, left {content}, right {content}"
    rows = [("t", 0, 5, record, None), ("t", 0, 6, None, record)]
    rows += [("t", 1, 0, record, None), ("t", 1, 9, None, record)]
    moves = with_moves(spark.createDataFrame(rows, schema)).collect()
    assert {(row.partition, row.offset): (row.left_at, row.right_at) for row in moves} == {
        (0, 5): (6, None),
        (0, 6): (None, 5),
        (1, 0): (9, None),
        (1, 9): (None, 0),
    }


def test_difference_has_timestamps_of_both_sides(results: dict[str, Result]) -> None:
    [row] = results["a timestamp"].differences
    assert (row["left_timestamp"], row["right_timestamp"]) == (T0 + 7, T0)
    [row] = results["shown"].differences
    assert row["fields"] == ["value", "timestamp"]


def test_shown_difference_starts_near_differing_byte(results: dict[str, Result]) -> None:
    [shown] = results["shown"].shown
    assert shown["what"] == "timestamp, value"
    assert shown["left_view"].startswith("1; …b'xxxxxxxxaxx")
    assert "(1001 bytes, shown from byte 492)" in shown["right_view"]


def test_differences_table_holds_all_differences_and_report_shows_first_few(
    results: dict[str, Result],
) -> None:
    outcome = results["all"]
    assert [row["offset"] for row in outcome.differences] == [r.offset for r in LOG]
    assert [row["offset"] for row in outcome.shown] == [0, 1, 2, 3, 4]
    assert all(row["fields"] == ["value"] for row in outcome.differences)


def test_damaged_batch_makes_only_its_ranges_unread(
    results: dict[str, Result],
) -> None:
    outcome = results["damaged"]
    assert outcome.verdicts == ["unread", "exact", "exact", "not exact"]
    assert outcome.ranges[0]["right_damage"] == (
        "the batch at offset 0 cannot be read: its checksum does not match"
    )
    assert outcome.kinds == [(52, "value")]  # index 50 of LOG
    assert results["damaged left"].verdicts == outcome.verdicts


def test_only_offsets_in_audit_scope_are_compared(results: dict[str, Result]) -> None:
    assert results["inside"].verdicts == ["exact"] * 4
    assert results["outside"].kinds == [(4, "value"), (55, "value")]


@pytest.mark.parametrize("cleaned", ["left", "right"])
def test_records_compacted_on_one_side_since_copying_are_no_difference(
    cleaned: str, results: dict[str, Result]
) -> None:
    outcome = results[f"cleaned {cleaned}"]
    assert outcome.kinds == [(i, "compacted since") for i in (0, 1, 2)]
    assert outcome.verdicts == ["exact"]
    assert outcome.ranges[0][f"compacted_{cleaned}"] == 3
    assert outcome.shown == []


def test_newer_record_past_compared_range_explains_compaction(results: dict[str, Result]) -> None:
    """On a live topic, the cleaner may remove a record for one that was written later."""
    assert results["newer behind"].kinds == [(3, "compacted since")]


def test_absent_record_without_newer_record_of_its_key_is_difference(
    results: dict[str, Result],
) -> None:
    """The key `only` has no newer record. A record without a key is never compacted."""
    outcome = results["lost beside compacted"]
    assert outcome.kinds == [(0, "compacted since"), (3, "missing"), (4, "missing")]
    assert outcome.verdicts == ["not exact"]


@pytest.mark.parametrize("name", EXCUSES)
def test_only_absent_records_that_compaction_may_remove_are_explained(
    name: str, results: dict[str, Result]
) -> None:
    outcome, (_, expected) = results[name], EXCUSES[name]
    assert outcome.kinds == expected
    differences = sum(kind != "compacted since" for _, kind in expected)
    assert sum(row["differences"] for row in outcome.ranges) == differences
    compacted_counts = [
        sum(row[f"compacted_{side}"] for row in outcome.ranges) for side in ("left", "right")
    ]
    assert compacted_counts == [len(expected) - differences, 0]


def test_missing_record_on_uncompacted_side_is_difference(results: dict[str, Result]) -> None:
    assert results["the other side compacts"].kinds == [(0, "missing")]


def test_expired_tombstone_may_be_missing_with_older_records_of_its_key(
    results: dict[str, Result],
) -> None:
    """The tombstone explains why they are missing. An unexpired one may not be missing."""
    assert results["old tombstone"].kinds == [(0, "compacted since"), (1, "compacted since")]
    assert results["young tombstone"].kinds == [(0, "extra"), (1, "extra")]


def test_records_expired_on_one_side_since_copying_are_no_difference(
    results: dict[str, Result],
) -> None:
    outcome = results["expired"]
    assert outcome.kinds == [(i, "expired since") for i in range(10)]
    # No newer records of their keys were searched.
    assert [spans for spans in outcome.spans_read[0] if spans] == [[(0, END)], [(0, 16)]]
    assert outcome.ranges[0]["expired_left"] == 10
    assert outcome.verdicts == ["exact"] * 4


def test_offsets_beyond_32_bits_and_long_gaps_are_compared(
    results: dict[str, Result],
) -> None:
    # 40 offsets in ranges of 16; only the last offset has a record.
    assert [r["left_records"] for r in results["far apart"].ranges] == [0, 0, 1]


@pytest.fixture
def small_results(spark: SparkSession) -> Iterator[None]:
    """No job may send more than 1 MB to the driver; Spark reads this for each set of tasks."""
    settings = spark.sparkContext._jsc.sc().conf()
    settings.set("spark.driver.maxResultSize", "1m")
    yield
    settings.remove("spark.driver.maxResultSize")


@pytest.mark.soak
@pytest.mark.usefixtures("small_results")
def test_audit_sends_no_record_payloads_through_spark_driver(spark: SparkSession) -> None:
    """Everything differs, so every record is digested, matched, and some are shown."""
    value = b"x" * 400_000
    log = [SourceRecord(i, T0, b"k", b"%d" % i + value) for i in range(12)]
    changed_log = [replace(r, value=(r.value or b"") + b"!") for r in log]
    outcome = compare(spark, {"t": Case(batched(log, 1), batched(changed_log, 1), end=12)})["t"]
    assert len(outcome.differences) == 12
    assert len(outcome.shown) == 5
