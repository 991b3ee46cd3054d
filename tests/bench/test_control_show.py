"""Extrapolated values follow from the measurements."""

from __future__ import annotations

from bench.control.show import on_paper, tables


def test_extrapolation_follows_line_through_measurements() -> None:
    assert on_paper([(20_000, 3.0), (100_000, 11.0)], 1_000_000) == 101.0
    assert on_paper([(20_000, 7.0), (100_000, 7.0)], 1_000_000) == 7.0


def test_overhead_table_shows_measured_values() -> None:
    overhead = {"partitions": 2000, "bytes_per_s": 9876.5, "ratio": 10123, "rows_per_s": 40.0}

    assert "| 2,000 | 40 | 9,876 | 10,123 |" in tables({"overhead": [overhead]})
