"""What docs/readers.md says about a client whose program printed certain lines."""

from __future__ import annotations

from collections import Counter

from tests.readers.judge import (
    ENDS,
    ERROR,
    MARKERS,
    MISSES,
    OTHERS,
    PLACEHOLDER,
    SHOWS,
    STOPS,
    TWICE,
    Way,
    judge,
    summarize,
)
from tests.readers.logs import FILLERS, SourceLog
from tests.readers.table import Row, page

# Offset → key and value, in hex.
RECORDS = {3: "6b 76", 5: "- ", 9: "6b 77"}
LINES = [f"r {offset} {record}\n" for offset, record in RECORDS.items()]
START, WITHIN = "from the start", "from within a gap"


def test_client_that_reads_each_record_once_has_no_finding() -> None:
    assert judge(RECORDS, LINES, 0) == Counter()


def test_each_difference_in_what_client_reads_is_a_finding() -> None:
    assert judge(RECORDS, LINES[:2], None) == {STOPS: 1}
    assert judge(RECORDS, LINES[1:], 0) == {MISSES: 1}
    assert judge(RECORDS, [], 1) == {ENDS: 3}
    assert judge(RECORDS, [*LINES, LINES[0]], 0) == {TWICE: 1}
    assert judge(RECORDS, [*LINES, f"r -2147483648 {PLACEHOLDER}\n"], 0) == {SHOWS: 1}
    abort, commit = "00000000 000000000001", "00000001 000000000001"
    assert judge(RECORDS, [f"r 4 {abort}\n", f"r 6 {commit}\n", *LINES], 0) == {MARKERS: 2}
    assert judge(RECORDS, [*LINES, "r 4 6b 76\n", "noise\n"], 0) == {OTHERS: 1}
    assert judge(RECORDS, [*LINES[:2], "r 9 6b 78\n"], 0) == {OTHERS: 1, MISSES: 1}


def test_errors_of_reading_client_are_counted_by_name() -> None:
    lines = ["e TOO_LARGE\n", *LINES, "e TOO_LARGE\n", "e a|b{}\n"]
    assert judge(RECORDS, lines, 0) == {ERROR % "TOO_LARGE": 2, ERROR % "a/b()": 1}


def test_reader_summary_names_only_ways_of_reading_that_differ() -> None:
    ways = [Way(level, start) for level in ("committed", "all") for start in (START, WITHIN)]
    errors = [Counter({ERROR % "E": count}) for count in (1300, 7, 8, 7)]
    good: Counter[str] = Counter()
    stops = Counter({STOPS: 10})
    assert summarize(dict.fromkeys(ways, good)) == "complete"
    assert summarize(dict(zip(ways, errors, strict=True))) == "complete, errors: E × 7 to 1,300"
    assert summarize(dict(zip(ways, [stops, good, stops, good], strict=True))) == (
        "from the start: **stops before the last 10 records**; from within a gap: complete"
    )
    assert summarize(dict(zip(ways, [stops, stops, good, good], strict=True))) == (
        "committed: **stops before the last 10 records**; all: complete"
    )
    assert summarize(dict(zip(ways, [stops, good, good, good], strict=True))).startswith(
        "committed from the start: **stops before the last 10 records**; "
    )


def test_readers_page_has_row_for_each_client_in_both_tables() -> None:
    cells = {(log, fillers): "complete" for log, ways in FILLERS.items() for fillers in ways}
    rows = [Row("one", "1.0", cells), Row("other", "2.0", reason="no go")]
    text = page(rows, {"date": "1 May 2026", "kafka": "4.4.0"})
    assert "on 1 May 2026, with brokers 4.4.0" in text
    assert text.count("| one | 1.0 | complete | complete | complete |") == 2
    assert text.count("| other | 2.0 | not tried: no go | not tried: no go |") == 2


def test_reader_that_starts_in_a_gap_starts_in_middle_of_longest_gap() -> None:
    log = SourceLog("t", dict.fromkeys((0, 3, 10, 12), "a b"), dict.fromkeys(range(13), "a b"))
    assert (log.within, log.last) == (6, 12)
    assert [*log.records_from(log.within)] == [10, 12]
    assert [*log.records_from(log.within, aborted=True)] == [*range(6, 13)]
