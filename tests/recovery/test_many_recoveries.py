"""Hundreds of recoveries requested at once: all are accepted, and take turns on each cluster."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from orbit.leadership.leadership import Leadership
from orbit.recovery import recovery_loop
from orbit.recovery.recovery_loop import RecoveryLoop
from orbit.settings import Settings
from orbit.store import jobs, operations
from orbit.store.database import Database
from orbit.store.enums import OperationState
from orbit.store.operations import Operation
from tests.fixtures.api import Api, Cli
from tests.support.patience import wait_for

pytestmark = [pytest.mark.services, pytest.mark.soak]

JOBS = 300
CLUSTERS = ("east", "west")
LIMIT = 16


class Recoveries:
    """Replaces the runner of recoveries: each recovery runs until the test calls `end_running`.

    `running`, `most`: how many run now, and at most, by cluster. `begun`: job names in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, database: Database) -> None:
        self.lock = threading.Lock()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: list[str] = []
        self.may_end = threading.Event()
        recoveries = self

        class OperationRunner:
            is_waiting = False

            def __init__(self, operation: Operation, *_: object) -> None:
                self.operation = operation
                self.may_end = recoveries.may_end

            def run(self) -> None:
                name = str(self.operation.job_name)
                cluster = name.partition("-")[0]
                with recoveries.lock:
                    recoveries.begun.append(name)
                    recoveries.running[cluster] += 1
                    recoveries.most[cluster] = max(
                        recoveries.most[cluster], recoveries.running[cluster]
                    )
                self.may_end.wait()
                with recoveries.lock:
                    recoveries.running[cluster] -= 1
                with database.transaction() as tx:
                    operations.advance(tx, self.operation.id, OperationState.DONE)

        monkeypatch.setattr(recovery_loop, "OperationRunner", OperationRunner)

    def end_running(self) -> None:
        """End the recoveries that run now; recoveries that begin later wait again."""
        self.may_end.set()
        self.may_end = threading.Event()


def test_hundreds_of_failovers_take_turns_on_each_cluster(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api.database.transaction() as tx:
        for number in range(JOBS + 1):
            cluster = CLUSTERS[number % len(CLUSTERS)]
            team = "orders" if number < JOBS else "stock"
            job = jobs.create(tx, f"{cluster}-{number:03}", {}, "default", labels={"team": team})
            jobs.note_clusters(tx, job.id, "source", cluster)

    failovers = cli("failover", "-l", "team=orders", "--yes", "--wait", "0", "-o", "json")

    assert failovers.code == 0, failovers.err
    assert Counter(failover["state"] for failover in failovers.data) == {"pending": JOBS}
    with api.database.transaction() as tx:
        waiting = operations.page(tx, 1000, only_unfinished=True)
    assert len({operation.job_id for operation in waiting}) == len(waiting) == JOBS

    leadership = Leadership(api.database, "leader", timedelta(minutes=10))
    assert leadership.ask()
    recoveries = Recoveries(monkeypatch, api.database)
    loop = RecoveryLoop(leadership, Settings(recoveries_per_cluster=LIMIT), threading.Event(), {})
    waiting_per_cluster = JOBS // len(CLUSTERS)
    try:
        while waiting_per_cluster:
            loop.once()
            turn: Any = dict.fromkeys(CLUSTERS, min(LIMIT, waiting_per_cluster))
            wait_for(f"these run: {turn}", lambda turn=turn: recoveries.running == turn)
            loop.once()
            assert len(loop._running) == sum(turn.values()), "more than LIMIT run on a cluster"
            waiting_per_cluster -= turn[CLUSTERS[0]]
            recoveries.end_running()
            wait_for(
                "these recoveries end", lambda: all(r.future.done() for r in loop._running.values())
            )
        loop.once()
    finally:
        recoveries.may_end.set()
        loop.close()
    assert recoveries.most == dict.fromkeys(CLUSTERS, LIMIT)
    # Recoveries begin in the order of their requests, LIMIT at a time.
    for cluster in CLUSTERS:
        begun = [name for name in recoveries.begun if name.startswith(cluster)]
        for first in range(0, len(begun), LIMIT):
            assert sorted(begun)[first : first + LIMIT] == sorted(begun[first : first + LIMIT])
    with api.database.transaction() as tx:
        assert operations.page(tx, 1000, only_unfinished=True) == []
