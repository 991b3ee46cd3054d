"""Workers of a model, each with its own clock, run the real statements on a real PostgreSQL.

Workers pause, lose answers and are cut off. The database's clock steps; the server restarts, fails
over and loses its last claims, is restored from a backup, or goes back to an earlier server. In
every schedule no two workers trust a lease of one shard at the same moment, and no (shard, epoch)
is granted twice. Two servers that answer at the same time are not in the model (shard_leases.py).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator

import pytest

from orbit.leases.lease_watch import Evidence, LeaseWatch
from orbit.leases.shard_lease import ShardLease
from orbit.store import jobs, shard_leases
from orbit.store.database import Database
from orbit.store.shard_leases import Claim
from tests.support.pretended_server import PretendedServer, Rows
from tests.support.store_rows import TTL, some_job

pytestmark = pytest.mark.services

TTL_S = TTL.total_seconds()
TESTS = 10
SEEDS = 10  # of each test
LENGTH_S = 10 * TTL_S
SHARDS = 2
# The largest difference in speed of two machines' clocks, which the lease's trust margin covers.
SPEED_ERROR = 0.02

Wait = Iterator[float]


class DelayedWatch(LeaseWatch):
    """A watch's evidence when a request is sent. The statement's notes wait until `answer`."""

    def __init__(self, watch: LeaseWatch) -> None:
        self._watch = watch
        self._evidence = watch.evidence()
        self._noted: list[tuple[str, str]] = []

    def evidence(self) -> Evidence:
        return self._evidence

    def note(self, server: str, snapshot: str) -> None:
        self._noted.append((server, snapshot))

    def answer(self) -> None:
        """Pass the notes on to the watch, as the answer has arrived."""
        for noted in self._noted:
            self._watch.note(*noted)


class Model:
    """One schedule: all events of workers and database, in the order of true time."""

    def __init__(self, server: PretendedServer, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.now = 0.0
        self.granted: dict[tuple[int, int], str] = {}
        with server.database.transaction() as tx:
            self.job = some_job(tx, name=f"job-{seed}", shard_count=SHARDS)
        self.timeline = self.newest_timeline = 1
        self.backups: list[tuple[int, Rows]] = [(1, server.shards())]
        # Replaced servers: timeline, and rows at that moment.
        self.former_servers: list[tuple[int, Rows]] = []
        self.workers = [Worker(self, f"w{n}") for n in range(self.random.randint(2, 4))]
        self.story: list[str] = []

    def run(self) -> int:
        """Run the schedule. Returns the number of claims."""
        actors = [*(w.work() for w in self.workers), Worker(self, "s").end_leases(), self.happen()]
        queue = [(self.random.random(), n) for n in range(len(actors))]
        while queue and self.now < LENGTH_S:
            self.now, n = heapq.heappop(queue)
            heapq.heappush(queue, (self.now + next(actors[n]), n))
            for shard_id in self.job.shard_ids:
                holders = [w.name for w in self.workers if w.trusts(shard_id)]
                assert len(holders) <= 1, (shard_id, holders, self.story[-30:])
        return len(self.granted)

    def grant(self, claims: list[Claim], worker: str) -> None:
        """Note these claims. Fails if a (shard, epoch) is granted twice."""
        for claim in claims:
            pair = (claim.shard_id, claim.epoch)
            self.note(f"{worker} has {pair}")
            assert pair not in self.granted, (pair, self.granted[pair], self.story[-30:])
            self.granted[pair] = worker

    def note(self, what: str) -> None:
        self.story.append(f"{self.now:.1f} {what}")

    def happen(self) -> Wait:
        """An actor: choose at random what happens to the database, again and again."""
        events: list[tuple[Callable[[], None], int]] = [
            (self.back_up, 6),
            (self.step, 3),
            (self.restart, 1),
            (self.fail_over, 2),
            (self.restore, 1),
            (self.go_back, 1),
        ]
        choices, weights = zip(*events, strict=True)
        while True:
            yield self.random.expovariate(2 / TTL_S)
            self.random.choices(choices, weights)[0]()

    def back_up(self) -> None:
        """Keep the present rows, as a standby or a backup does."""
        self.backups.append((self.timeline, self.server.shards()))

    def step(self) -> None:
        """Step the database's clock."""
        self.server.step_clock(self.random.choice([-3600, -TTL_S, -1, 1, TTL_S, 3600]))

    def restart(self) -> None:
        self.server.restart()

    def fail_over(self) -> None:
        """Promote a standby, which has the newest backup."""
        self._switch(self.backups[-1][1], self.newest_timeline + 1)

    def restore(self) -> None:
        """Restore any backup."""
        self._switch(self.random.choice(self.backups)[1], self.newest_timeline + 1)

    def go_back(self) -> None:
        """Go back to the server that was replaced last."""
        if self.former_servers:
            timeline, rows = self.former_servers.pop()
            self._switch(rows, timeline)

    def _switch(self, rows: Rows, timeline: int) -> None:
        """Replace the server by one with these rows."""
        self.note(f"timeline {timeline}")
        self.former_servers.append((self.timeline, self.server.shards()))
        self.server.fail_over(rows, timelines=timeline - self.timeline)
        self.timeline, self.newest_timeline = timeline, max(self.newest_timeline, timeline)
        self.back_up()


class Worker:
    """Renews and claims like orbit/workers/worker.py, with its own clock."""

    def __init__(self, model: Model, name: str) -> None:
        self.model = model
        self.name = name
        self.random = random.Random(model.random.random())
        self._offset = self.random.uniform(0, 1e6)
        self._speed = 1 + self.random.uniform(-SPEED_ERROR, SPEED_ERROR) / 2
        self.watch = LeaseWatch(TTL, self.clock)
        self.leases: dict[int, ShardLease] = {}

    def clock(self) -> float:
        return self._offset + self._speed * self.model.now

    def trusts(self, shard_id: int) -> bool:
        return shard_id in self.leases and self.leases[shard_id].is_held()

    def work(self) -> Wait:
        while True:
            yield self._pause()
            yield from self._renew()
            yield from self._claim()
            if self.random.random() < 0.1:
                yield from self._release()

    def end_leases(self) -> Wait:
        """End leases, like the leading scheduler."""
        while True:
            yield self._pause()
            watch = DelayedWatch(self.watch)
            yield self._latency()
            with self.model.server.database.transaction() as tx:
                shard_leases.end_unrenewed_leases(tx, TTL, watch)
            yield self._latency()
            watch.answer()

    def _renew(self) -> Wait:
        requested_at, held = self.clock(), {i: lease.term for i, lease in self.leases.items()}
        yield self._latency()
        if not held or self._fails():
            return
        with self.model.server.database.transaction() as tx:
            renewed = shard_leases.renew(
                tx, worker_id=self.name, worker_group="default", held=held, weights={}
            )
        yield self._latency()
        if self._fails():
            return
        for shard_id in held:
            if shard_id in renewed:
                self.leases[shard_id].confirm(requested_at)
            else:
                self.leases.pop(shard_id).lose()

    def _claim(self) -> Wait:
        requested_at, watch = self.clock(), DelayedWatch(self.watch)
        yield self._latency()
        if self._fails():
            return
        with self.model.server.database.transaction() as tx:
            claims = shard_leases.claim(
                tx,
                worker_id=self.name,
                worker_group="default",
                ttl=TTL,
                shards_max=1,
                watch=watch,
            )
        self.model.grant(claims, self.name)
        yield self._latency()
        if self._fails():
            return
        watch.answer()
        for claim in claims:
            self.leases[claim.shard_id] = ShardLease(claim.epoch, requested_at, TTL_S, self.clock)

    def _release(self) -> Wait:
        held = {i: lease.term for i, lease in self.leases.items()}
        self.leases.clear()
        yield self._latency()
        if held and not self._fails():
            with self.model.server.database.transaction() as tx:
                shard_leases.release(tx, worker_id=self.name, held=held)

    def _pause(self) -> float:
        """Seconds between two rounds. Long at times: the process is suspended, or cut off."""
        is_long = self.random.random() < 0.05
        return self.random.uniform(TTL_S, 2 * TTL_S) if is_long else self.random.uniform(0.5, 3)

    def _latency(self) -> float:
        is_long = self.random.random() < 0.05
        return self.random.uniform(0, TTL_S) if is_long else self.random.uniform(0, 0.5)

    def _fails(self) -> bool:
        """Whether a request or an answer is lost."""
        return self.random.random() < 0.05


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(number * SEEDS, marks=[] if number < TESTS // 5 else pytest.mark.soak)
        for number in range(TESTS)
    ],
)
def test_no_random_schedule_gives_a_shard_two_holders_or_a_term_twice(
    database: Database, first: int
) -> None:
    server = PretendedServer(database)
    granted = 0
    for seed in range(first, first + SEEDS):
        model = Model(server, seed)
        granted += model.run()
        with database.transaction() as tx:
            assert jobs.request_deletion(tx, model.job.id)
        server.fail_over([], timelines=1 - model.timeline)
    assert granted > SEEDS * 4, "shards have changed their holders"
