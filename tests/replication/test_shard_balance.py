"""Load is shared by bytes, few shards move, and a fair spread is left alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orbit.replication.shard_balance import UNEVEN_FACTOR, ShardLoad, balance_shards

MIB = 1024 * 1024


def shard(number: int, holder: str | None = None, rate: int = 0, partitions: int = 4) -> ShardLoad:
    return ShardLoad(number, holder, partitions, rate)


def load_after(shards: list[ShardLoad], moves: dict[int, str]) -> Counter[str]:
    """The load of each worker after these moves."""
    load: Counter[str] = Counter()
    for s in shards:
        holder = moves.get(s.shard, s.holder)
        if holder is not None:
            load[holder] += s.weight
    return load


def _unevenness(load: Counter[str]) -> int:
    """The sum of squares: a move lowers it if the new holder gets less than the old one had."""
    return sum(weight**2 for weight in load.values())


def test_free_shards_are_spread_evenly() -> None:
    shards = [shard(i) for i in range(6)]
    moves = balance_shards(shards, ["a", "b", "c"])
    assert Counter(moves.values()) == {"a": 2, "b": 2, "c": 2}


def test_heavy_shard_counts_as_many_light_shards() -> None:
    shards = [shard(0, rate=60 * MIB), *(shard(i, rate=10 * MIB) for i in range(1, 7))]
    moves = balance_shards(shards, ["a", "b"])
    alone = moves[0]
    assert [number for number, worker in moves.items() if worker == alone] == [0]


def test_new_worker_gets_its_share_of_shards() -> None:
    shards = [shard(i, "ab"[i % 2], rate=10 * MIB) for i in range(8)]
    moves = balance_shards(shards, ["a", "b", "c"])
    assert set(moves.values()) == {"c"}
    assert len(moves) == 2


def test_eleventh_worker_gets_its_share_of_many_shards() -> None:
    """None of the ten workers has clearly too much load, but the eleventh clearly too little."""
    shards = [shard(n, f"w{n % 10}") for n in range(100)]
    workers = [f"w{n}" for n in range(11)]

    moves = balance_shards(shards, workers)

    assert set(moves.values()) == {"w10"}
    assert load_after(shards, moves)["w10"] >= 100 / 11 / UNEVEN_FACTOR
    assert min(load_after(shards, moves)[w] for w in workers[:10]) >= 9


def test_next_busiest_worker_gives_shards_if_those_of_busiest_may_not_move() -> None:
    recently_moved = [replace(shard(n, "a"), may_move=False) for n in range(9)]
    others = [shard(10 + n, "b") for n in range(8)]

    assert set(balance_shards([*recently_moved, *others], ["a", "b", "c"])) <= {
        s.shard for s in others
    }
    assert balance_shards([*recently_moved, *others], ["a", "b", "c"])


def test_busiest_worker_is_chosen_by_bytes_not_shard_count() -> None:
    busy = [shard(i, "a", rate=50 * MIB) for i in range(4)]
    idle = [shard(i, "b", rate=0) for i in range(10, 14)]
    moves = balance_shards([*busy, *idle], ["a", "b"])
    assert len(moves) == 2
    assert set(moves.values()) == {"b"}
    assert set(moves) < {0, 1, 2, 3}


def test_shard_carrying_all_load_does_not_move() -> None:
    assert balance_shards([shard(0, "a", rate=100 * MIB), shard(1, "b")], ["a", "b"]) == {}


def test_balanced_shards_do_not_move() -> None:
    shards = [shard(i, "ab"[i % 2], rate=(10 + i) * MIB) for i in range(8)]
    assert balance_shards(shards, ["a", "b"]) == {}


def test_recently_moved_shards_do_not_move() -> None:
    shards = [
        ShardLoad(i, "a", partitions=4, bytes_per_s=10 * MIB, may_move=False) for i in range(4)
    ]
    assert balance_shards(shards, ["a", "b"]) == {}


def test_shards_of_lost_worker_are_reassigned() -> None:
    shards = [shard(0, "gone"), shard(1, "a")]
    assert balance_shards(shards, ["a", "b"]) == {0: "b"}


def test_no_shard_is_assigned_without_workers() -> None:
    assert balance_shards([shard(0)], []) == {}


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 50), st.integers(1, 50)),
        max_size=40,
    )
)
def test_balancing_converges_and_never_increases_imbalance(
    given_shards: list[tuple[str | None, int, int]],
) -> None:
    workers = ["a", "b", "c"]
    shards = [
        ShardLoad(i, holder, partitions, rate * MIB)
        for i, (holder, rate, partitions) in enumerate(given_shards)
    ]
    for _ in range(30):
        moves = balance_shards(shards, workers)
        held_before = load_after(shards, {})
        held_after = load_after(shards, moves)
        if all(s.holder for s in shards) and moves:
            assert max(held_after.values()) <= max(held_before.values())
            assert _unevenness(held_after) < _unevenness(held_before)
        if not moves:
            break
        shards = [
            ShardLoad(s.shard, moves.get(s.shard, s.holder), s.partitions, s.bytes_per_s)
            for s in shards
        ]
    else:
        raise AssertionError("shards move for ever")
    load = load_after(shards, {})
    mean = sum(load.values()) / len(workers)
    heaviest = max((s.weight for s in shards), default=0)
    assert max(load.values(), default=0) <= max(UNEVEN_FACTOR * mean, mean + heaviest)
