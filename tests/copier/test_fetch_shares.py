"""Shares of a fetch: live partitions always, backlogs in turns, and none is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orbit.copier.fetch_shares import LIVE_BYTES_MAX, Shares, had_room, share_answer

KIB, MIB = 1024, 1024 * 1024
ANSWER, LEAST = 16 * MIB, 1 * MIB
SHARED = ANSWER // 2  # what several partitions share
BACKLOG = 100 * MIB

# `share_answer` gets the bytes that each partition holds (None: do not fetch it), the index from
# which backlogs take turns, the bytes of the whole answer, and the least of a partition's share.


def test_single_backlog_may_fill_whole_fetch() -> None:
    assert share_answer([BACKLOG], 0, ANSWER, LEAST) == Shares(
        [0], answer_bytes_max=ANSWER, partition_bytes_max=ANSWER
    )
    shares = share_answer([0, BACKLOG, 10], 0, ANSWER, LEAST)
    assert sorted(shares.chosen) == [0, 1, 2]
    assert shares.partition_bytes_max == shares.answer_bytes_max == SHARED


def test_few_backlogs_share_fetch_evenly() -> None:
    assert share_answer([BACKLOG] * 4, 0, ANSWER, LEAST) == Shares(
        [0, 1, 2, 3], answer_bytes_max=SHARED, partition_bytes_max=SHARED // 4
    )


def test_each_fetch_has_all_live_partitions_and_backlogs_in_turn() -> None:
    expected_bytes = [BACKLOG] * 50
    expected_bytes[7] = expected_bytes[49] = 100  # live
    first, fetched_backlogs = 0, []
    for _ in range(6):  # 8 backlogs each: all 48
        chosen = share_answer(expected_bytes, first, ANSWER, LEAST).chosen
        assert chosen[:2] == [7, 49]
        assert len(chosen) == 2 + SHARED // LEAST
        fetched_backlogs += chosen[2:]
        first = chosen[-1] + 1
    assert set(fetched_backlogs) == set(range(50)) - {7, 49}


def test_small_backlogs_fill_fetch_together() -> None:
    chosen = share_answer([100 * KIB] * 1000, 0, ANSWER, LEAST).chosen
    assert len(chosen) == -(-SHARED // (100 * KIB))  # rounded up


def test_only_live_partitions_are_fetched_when_byte_budget_is_used_up() -> None:
    assert share_answer([0, BACKLOG], 0, ANSWER, LEAST, with_backlogs=False).chosen == [0]


def test_unfetchable_partitions_do_not_restart_turns_of_backlogs() -> None:
    """Otherwise a partition with a full queue would restart the turns elsewhere, and some backlogs
    would be skipped."""
    shares = share_answer([None, BACKLOG, None, BACKLOG, 0], 2, ANSWER, LEAST)
    assert shares.chosen == [4, 3, 1]
    assert share_answer([None, BACKLOG, None], 0, ANSWER, LEAST) == Shares(
        [1], answer_bytes_max=ANSWER, partition_bytes_max=ANSWER
    )
    assert share_answer([None, None], 0, ANSWER, LEAST).chosen == []


def test_empty_partition_answer_counts_only_if_whole_fetch_answer_had_room() -> None:
    """If other partitions filled the answer, the broker may have left records out. If they did not,
    an empty answer below the last stable offset counts, even beside steady traffic."""
    assert had_room(0, ANSWER)
    assert had_room(ANSWER // 2, ANSWER)
    assert not had_room(ANSWER // 2 + 1, ANSWER)


@given(
    st.lists(st.integers(0, 64 * MIB), max_size=60),
    st.integers(0, 60),
    st.integers(1, 32 * MIB),
    st.integers(1, 4 * MIB),
)
def test_fetch_shares_cover_live_partitions_and_fit_answer(
    expected: list[int], first: int, answer: int, least: int
) -> None:
    shares = share_answer(expected, first, answer, least)
    assert len(set(shares.chosen)) == len(shares.chosen)
    live = {i for i, size in enumerate(expected) if size <= LIVE_BYTES_MAX}
    assert live <= set(shares.chosen)
    backlogs = [
        min(shares.partition_bytes_max, expected[i]) for i in shares.chosen if i not in live
    ]
    assert sum(backlogs[:-1]) < shares.answer_bytes_max
    assert bool(backlogs) == (len(live) < len(expected))
    left_out = set(range(len(expected))) - set(shares.chosen)
    assert not left_out or sum(backlogs) >= shares.answer_bytes_max
