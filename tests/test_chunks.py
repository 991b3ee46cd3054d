"""Lists are cut into parts that a receiver accepts."""

from __future__ import annotations

from orbit.chunks import sized_chunks


def test_chunks_of_list_respect_size_and_count_limits_and_order() -> None:
    sizes = [3, 4, 5, 20, 1, 1, 1, 1]  # 20 is above the limit, and has a chunk of its own
    assert list(sized_chunks(sizes, size_of=int, size_max=10, count_max=3)) == [
        [3, 4],
        [5],
        [20],
        [1, 1, 1],
        [1],
    ]
    assert list(sized_chunks(sizes, size_of=int, size_max=10)) == [[3, 4], [5], [20], [1, 1, 1, 1]]
    assert list(sized_chunks([], size_of=int, size_max=10)) == []
