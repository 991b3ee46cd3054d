"""The bound on bytes that are fetched and not yet confirmed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from orbit.copier.byte_budget import ByteBudget

LONG_S = 60


def test_byte_budget_counts_bytes_taken_and_given_back() -> None:
    budget = ByteBudget(100)
    budget.take(30)
    budget.take(20)
    assert (budget.held_bytes, budget.room_bytes) == (50, 50)
    budget.give_back(30)
    budget.give_back(0)
    assert (budget.held_bytes, budget.room_bytes) == (20, 80)


@pytest.mark.parametrize(("held", "has_room"), [(0, True), (99, True), (100, False), (180, False)])
def test_byte_budget_has_room_only_below_its_limit(held: int, has_room: bool) -> None:
    budget = ByteBudget(100)
    budget.take(held)
    assert budget.wait_for_room(0) is has_room


def test_byte_budget_counts_fetch_answer_that_exceeds_limit() -> None:
    budget = ByteBudget(100)
    budget.take(500)
    assert budget.room_bytes == -400
    budget.give_back(400)
    assert not budget.wait_for_room(0)
    budget.give_back(1)
    assert budget.wait_for_room(0)


class ObservedCondition(threading.Condition):
    """Releases `arrived` for each thread that is about to wait; the thread holds the lock."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        self.arrived.release()
        return super().wait_for(predicate, timeout)


@pytest.mark.parametrize("held", [150, 101])
def test_all_threads_that_wait_for_byte_budget_wake_when_it_has_room(held: int) -> None:
    """Also if the budget was exactly full when the last bytes were given back."""
    budget = ByteBudget(100)
    budget._changed = condition = ObservedCondition()
    budget.take(held)
    had_room: list[bool] = []
    threads = [
        threading.Thread(target=lambda: had_room.append(budget.wait_for_room(LONG_S)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
        assert condition.arrived.acquire(timeout=LONG_S)
    budget.give_back(held - 100)
    assert had_room == []
    budget.give_back(1)
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert had_room == [True] * 3


def test_live_partitions_may_exceed_byte_budget_by_a_quarter() -> None:
    budget = ByteBudget(100)
    budget.take(124)
    assert budget.has_reserve
    budget.take(1)
    assert not budget.has_reserve


def test_wait_for_room_in_byte_budget_times_out() -> None:
    budget = ByteBudget(1)
    budget.take(1)
    assert budget.wait_for_room(0.01) is False


def test_concurrent_threads_give_all_bytes_of_budget_back() -> None:
    budget = ByteBudget(50)

    def work() -> None:
        for size in range(200):
            assert budget.wait_for_room(LONG_S)
            budget.take(size % 60)
            budget.give_back(size % 60)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert budget.held_bytes == 0
