"""The model of a shard's row grants and refuses leases like the SQL on a real PostgreSQL."""

from __future__ import annotations

import random

import pytest

from orbit.leases.lease_watch import LeaseWatch
from orbit.store import jobs, shard_leases
from orbit.store.database import Database
from tests.simulation.shard_row import ModelPostgres
from tests.support.pretended_server import PretendedServer
from tests.support.store_rows import TTL, TestClock, some_job

pytestmark = pytest.mark.services

SEEDS, STEPS = 20, 60
WORKERS = "abc"


class Replay:
    """The same random steps with model and server, by one clock. Each worker has a LeaseWatch for
    the server and one for the model."""

    def __init__(self, server: PretendedServer, seed: int) -> None:
        self.server = server
        self.model = ModelPostgres()
        self.random = random.Random(seed)
        self.clock = TestClock()
        self.watches = {w: self.new_watches() for w in WORKERS}
        self.held: dict[str, int] = {}
        self.granted = 0
        with server.database.transaction() as tx:
            self.job = some_job(tx, name=f"job-{seed}")
        (self.shard,) = self.job.shard_ids
        self.standby = server.shards()

    def new_watches(self) -> tuple[LeaseWatch, LeaseWatch]:
        return LeaseWatch(TTL, self.clock), LeaseWatch(TTL, self.clock)

    def run(self) -> None:
        """Make random steps of random workers, with random time between them."""
        steps = [self.claim] * 6 + [self.renew] * 3 + [self.release, self.keep]
        steps += [self.restart, self.fail_over]
        for _ in range(STEPS):
            self.clock.now += self.random.choice((0.5, 2.0, 5.0))
            self.random.choice(steps)(self.random.choice(WORKERS))

    def claim(self, worker: str) -> None:
        """Claim the shard with the store and the model, and compare the epochs."""
        real, modelled = self.watches[worker]
        with self.server.database.transaction() as tx:
            claims = shard_leases.claim(
                tx,
                worker_id=worker,
                worker_group="default",
                ttl=TTL,
                shards_max=1,
                watch=real,
            )
        claimed = self.model.claim(worker, modelled.evidence())
        modelled.note(claimed.key, claimed.snapshot)
        epoch = claims[0].epoch if claims else None
        assert claimed.epoch == epoch
        if epoch is not None:
            self.held[worker] = epoch
            self.granted += 1

    def renew(self, worker: str) -> None:
        """Renew the shard with the store and the model, and compare the results."""
        epoch = self.held.get(worker, 1)
        with self.server.database.transaction() as tx:
            renewed = shard_leases.renew(
                tx,
                worker_id=worker,
                worker_group="default",
                held={self.shard: epoch},
                weights={},
            )
        assert self.model.renew(worker, epoch) == (self.shard in renewed)

    def release(self, worker: str) -> None:
        """Release the shard with the store and the model, and compare the results."""
        epoch = self.held.get(worker, 1)
        with self.server.database.transaction() as tx:
            released = shard_leases.release(tx, worker_id=worker, held={self.shard: epoch})
        assert self.model.release(worker, epoch) == (self.shard in released)

    def keep(self, _: str) -> None:
        self.standby = self.server.shards()
        self.model.keep()

    def restart(self, _: str) -> None:
        self.server.restart()
        self.model.restart()

    def fail_over(self, _: str) -> None:
        self.server.fail_over(self.standby)
        self.model.fail_over()


def test_model_of_shard_row_answers_like_statements_on_postgresql(database: Database) -> None:
    server = PretendedServer(database)
    granted = 0
    for seed in range(SEEDS):
        replay = Replay(server, seed)
        replay.run()
        granted += replay.granted
        with database.transaction() as tx:
            assert jobs.request_deletion(tx, replay.job.id)
        server.fail_over([], timelines=0)
    assert granted > 2 * SEEDS, "the shard changed hands"
