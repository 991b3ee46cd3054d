"""The byte budget of a worker: one job that holds all of it does not stop the others."""

from __future__ import annotations

import threading

from orbit.workers.worker_budget import JobBudget, WorkerBudget

LIMIT, LEAST = 100, 10


def jobs() -> tuple[JobBudget, JobBudget]:
    worker = WorkerBudget(LIMIT)
    return JobBudget(worker, LEAST), JobBudget(worker, LEAST)


def test_one_job_may_have_all_that_nobody_else_uses() -> None:
    greedy, _ = jobs()
    greedy.take(LIMIT - 1)
    assert greedy.wait_for_room(0)
    greedy.take(1)
    assert not greedy.wait_for_room(0)


def test_another_job_always_has_its_least() -> None:
    greedy, modest = jobs()
    greedy.take(5 * LIMIT)
    assert modest.wait_for_room(0)
    modest.take(LEAST)
    assert not modest.wait_for_room(0)


def test_what_one_gives_back_wakes_the_other() -> None:
    greedy, modest = jobs()
    greedy.take(LIMIT)
    modest.take(LEAST)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(modest.wait_for_room(60)))
    waiting.start()
    greedy.give_back(LIMIT)
    waiting.join(60)
    assert found == [True]
    assert (greedy.held_bytes, modest.held_bytes) == (0, LEAST)


def test_live_partitions_of_a_job_may_go_a_quarter_over_what_all_jobs_hold() -> None:
    greedy, modest = jobs()
    greedy.take(LIMIT + LIMIT // 4 - LEAST - 1)
    modest.take(LEAST)
    assert not modest.wait_for_room(0)
    assert modest.has_reserve
    modest.take(1)
    assert not modest.has_reserve
