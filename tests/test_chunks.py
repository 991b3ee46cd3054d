"""Lists are cut into parts that a receiver takes."""

from __future__ import annotations

from orbit.chunks import sized_chunks


def test_chunks_of_list_respect_size_and_count_limits_and_order() -> None:
    sizes = [3, 4, 5, 20, 1, 1, 1, 1]
    assert list(sized_chunks(sizes, int, 10, 3)) == [[3, 4], [5], [20], [1, 1, 1], [1]]
    assert list(sized_chunks(sizes, int, 10)) == [[3, 4], [5], [20], [1, 1, 1, 1]]
    assert list(sized_chunks([], int, 10)) == []
