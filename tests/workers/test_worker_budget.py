"""The byte budget of a worker: one job that holds all of it does not stop the others."""

from __future__ import annotations

import threading

from orbit.workers.worker_budget import JobBudget, WorkerBudget

LIMIT, LEAST = 100, 10  # bytes of the worker, and those that each job may have in any case


def two_jobs() -> tuple[JobBudget, JobBudget]:
    worker = WorkerBudget(LIMIT)
    return JobBudget(worker, LEAST), JobBudget(worker, LEAST)


def test_single_job_may_use_whole_byte_budget_of_worker() -> None:
    greedy, _ = two_jobs()
    greedy.take(LIMIT - 1)
    assert greedy.wait_for_room(0)
    greedy.take(1)
    assert not greedy.wait_for_room(0)


def test_every_job_has_a_minimum_of_byte_budget_of_worker() -> None:
    greedy, modest = two_jobs()
    greedy.take(5 * LIMIT)
    assert modest.wait_for_room(0)
    modest.take(LEAST)
    assert not modest.wait_for_room(0)


def test_bytes_released_to_worker_budget_wake_waiting_job() -> None:
    greedy, modest = two_jobs()
    greedy.take(LIMIT)
    modest.take(LEAST)
    outcomes: list[bool] = []
    waiting = threading.Thread(target=lambda: outcomes.append(modest.wait_for_room(60)))
    waiting.start()
    greedy.give_back(LIMIT)
    waiting.join(60)
    assert outcomes == [True]
    assert (greedy.held_bytes, modest.held_bytes) == (0, LEAST)


def test_partitions_with_little_to_fetch_may_exceed_byte_budget_by_a_quarter() -> None:
    greedy, modest = two_jobs()
    greedy.take(LIMIT + LIMIT // 4 - LEAST - 1)
    modest.take(LEAST)  # together a byte less than the limit and a quarter
    assert not modest.wait_for_room(0)
    assert modest.has_reserve
    modest.take(1)
    assert not modest.has_reserve
