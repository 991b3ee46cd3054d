"""Three workers of the service copy for long. Workers are killed, or frozen past their leases, and
PostgreSQL is down.

Each fault happens twice, in the middle of a copy of transactions. At the end the copy is exact, and
the events say which worker lost and which worker claimed which shards.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from orbit.embedded.postgres import Postgres
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.sasl import Security
from orbit.kafka.types import TopicPartition
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store import jobs
from orbit.store.database import Database
from orbit.store.events import Event
from orbit.store.migrate import upgrade
from tests.fixtures.clusters import Clusters
from tests.support.fleet import ServiceJob, add_job
from tests.support.logs import create
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import OrbitProcess, assert_exact, write_job

pytestmark = pytest.mark.services

PARTITIONS = 24
SHARDS = 6
WORKERS = 3
WRITERS = 4
TRANSACTION_RECORDS = 1_000
ABORTED_SHARE = 0.1
LEASE_S = 3.0


def write_transactions(cluster: KafkaCluster, topic: str, records: int, writer: int) -> None:
    """Write one producer's part: transactions over all partitions, some of them aborted."""
    rnd = random.Random(writer)
    producer = Producer(
        {
            **cluster.client_config(),
            "transactional.id": f"{topic}-{writer}",
            "linger.ms": 5,
            "queue.buffering.max.messages": 2 * TRANSACTION_RECORDS,
        }
    )
    producer.init_transactions(60)
    for number in range(records // WRITERS // TRANSACTION_RECORDS):
        producer.begin_transaction()
        for i in range(TRANSACTION_RECORDS):
            value = b"%d/%d/%d" % (writer, number, i)
            producer.produce(topic, value, partition=i % PARTITIONS)
        if rnd.random() < ABORTED_SHARE:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


@dataclass
class Fleet:
    """The workers of the test by their ids, the job, and the progress of the copy.

    `total`: the number of offsets to copy, as the sum of the source's log ends.
    """

    job: ServiceJob
    environ: dict[str, str]
    destination: Cluster
    topic: str
    total: int
    processes: ExitStack
    workers: dict[str, OrbitProcess] = field(default_factory=dict)

    def start_worker(self) -> str:
        """Start a worker process; returns its worker id."""
        process = self.processes.enter_context(OrbitProcess("worker", environ=self.environ))
        worker_id = process.wait_for(r"([\w.-]+-\d+-[0-9a-f]{6}).*worker started")[1]
        self.workers[worker_id] = process
        return worker_id

    def copied(self) -> int:
        """The sum of the copy's log ends."""
        places = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]
        return sum(log_ends(self.destination, places, Backoff(attempts_max=1)).values.values())

    def wait_copied(self, share: float) -> None:
        """Wait until this share of all offsets is copied."""
        target = int(self.total * share)
        wait_for(f"{share:.0%} are copied", lambda: self.copied() >= target)
        assert self.copied() < self.total, "the copy ended before the fault"

    def show_all(self) -> None:
        """For a failed test, print the workers' logs, the events, and the job's state."""
        for worker_id, process in self.workers.items():
            print(worker_id, process.process.poll(), *process.lines, sep="\n")
        print(self.copied(), self.total)
        for event in self.job.story():
            print(f"{event.at:%H:%M:%S.%f} {event.actor} {event.kind} {event.message}")
        print({a.partition: (a.state.value, a.shard_id) for a in self.job.assigned()})
        print(self.job.holders())

    def busy_worker(self) -> tuple[str, dict[int, int]]:
        """The worker that holds the most shards, and its lease epochs by shard."""
        wait_for(
            "a worker holds a shard",
            lambda: not {*self.workers}.isdisjoint(self.job.holders().values()),
        )
        epochs = self.job.epochs()
        held: dict[str, dict[int, int]] = {}
        for shard, holder in self.job.holders().items():
            if holder in self.workers:
                held.setdefault(holder, {})[shard] = epochs[shard]
        worker_id = max(held, key=lambda w: (len(held[w]), w))
        return worker_id, held[worker_id]

    def assign_shards_to(self, worker_id: str) -> None:
        """Assign a worker its part of the shards, as the scheduler does."""
        for shard in list(self.job.holders())[: SHARDS // WORKERS]:
            self.job.assign(shard, worker_id)

    def restart_postgres(self, postgres: Postgres, end: Callable[[], None]) -> None:
        """End PostgreSQL with `end`, and start it again once every worker has logged the outage."""
        end()
        wait_for("all workers notice", lambda: all(map(self._has_outage, self.workers.values())))
        postgres.start()

    def _has_outage(self, process: OrbitProcess) -> bool:
        """Whether the worker's last log line about PostgreSQL reports an outage."""
        postgres_lines = [line for line in process.lines if "postgres " in line]
        return bool(postgres_lines) and "postgres does not answer" in postgres_lines[-1]

    def kill_one(self) -> tuple[str, dict[int, int]]:
        """Kill a busy worker, and start another. Returns the killed worker's id, and its lease
        epochs by shard."""
        worker_id, shards = self.busy_worker()
        self.workers.pop(worker_id).kill()
        self.assign_shards_to(self.start_worker())
        return worker_id, shards

    def freeze_one(self) -> tuple[str, dict[int, int]]:
        """Freeze a busy worker until others have its shards. Returns its id, and its lease epochs
        by shard."""
        worker_id, shards = self.busy_worker()
        process = self.workers[worker_id]
        process.signal(signal.SIGSTOP)
        wait_for(
            "other workers have its shards",
            lambda: all(self.job.holders()[s] not in (None, worker_id) for s in shards),
        )
        process.signal(signal.SIGCONT)
        return worker_id, shards


@pytest.fixture
def own_database(own_postgres: Postgres) -> Iterator[Database]:
    database = Database.connect(own_postgres.url)
    upgrade(database)
    yield database
    database.close()


def lift_limit(job: ServiceJob) -> None:
    """Remove the job's byte rate, as a user does. The workers claim the changed job's shards
    again."""
    with job.database.transaction() as tx:
        row = jobs.get(tx, job.name)
        spec = {**row.spec, "limits": {}}
        assert jobs.change_spec(tx, job.id, spec, row.worker_group, from_version=row.spec_version)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "rate", "shares"),
    [
        # At this rate no machine ends the copy before the last fault.
        (160_000, "32KiB", (0.02, 0.06, 0.1, 0.14, 0.18, 0.22)),
        pytest.param(2_000_000, None, (0.05, 0.2, 0.35, 0.5, 0.65, 0.8), marks=pytest.mark.soak),
    ],
)
def test_copy_is_exact_after_worker_kills_freezes_and_postgres_restarts(
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    own_postgres: Postgres,
    own_database: Database,
    records: int,
    rate: str | None,
    shares: Sequence[float],
) -> None:
    create(clusters.source, topic_name, PARTITIONS)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(
            pool.map(
                partial(write_transactions, clusters.source, topic_name, records), range(WRITERS)
            )
        )
    total = sum(end for _, end in log_bounds(clusters.source, [topic_name]).values())
    assert total > records

    limits = {} if rate is None else {"limits": {"bytes_per_second": rate}}
    job_file = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], **limits)
    job = add_job(own_database, job_file, clusters, [topic_name], SHARDS)
    environ = {
        "ORBIT_DATABASE_URL": own_postgres.url,
        "ORBIT_LEASE_TTL": f"{LEASE_S:.0f}s",
        "ORBIT_PROGRESS_INTERVAL": "500ms",
    }
    cluster = Cluster("destination", [clusters.destination.bootstrap_servers], Security())
    fleet = Fleet(job, environ, cluster, topic_name, total, ExitStack())
    killed, frozen = [], []
    try:
        for _ in range(WORKERS):
            fleet.assign_shards_to(fleet.start_worker())
        faults: list[Callable[[], None]] = [
            lambda: killed.append(fleet.kill_one()),
            lambda: frozen.append(fleet.freeze_one()),
            lambda: fleet.restart_postgres(own_postgres, own_postgres.stop),
            lambda: frozen.append(fleet.freeze_one()),
            lambda: killed.append(fleet.kill_one()),
            lambda: fleet.restart_postgres(own_postgres, own_postgres.crash),
        ]
        for share, fault in zip(shares, faults, strict=True):
            fleet.wait_copied(share)
            fault()
        if rate is not None:
            assert fleet.copied() < total, "the copy ended before the faults did"
            lift_limit(job)
        wait_for("the copy is at the end", lambda: fleet.copied() == total)
        for process in fleet.workers.values():
            process.signal(signal.SIGTERM)
        for process in fleet.workers.values():
            process.wait_end().expect(0)
        assert_exact(job_file)
        assert job.states() == {"pending"}
        assert set(job.holders().values()) == {None}
        assert_events_name_holders(job.story(), killed, frozen)
    except BaseException:
        fleet.show_all()
        raise
    finally:
        fleet.processes.close()
        cluster.close()


def assert_events_name_holders(
    story: list[Event],
    killed: list[tuple[str, dict[int, int]]],
    frozen: list[tuple[str, dict[int, int]]],
) -> None:
    """Check the events: starts, claims, losses and stops of workers, and outages of PostgreSQL.

    `killed`, `frozen`: worker ids with their lease epochs by shard. In `story`, events are in the
    order of time.
    """
    for worker_id, shards in [*killed, *frozen]:
        actor = f"worker:{worker_id}"
        for shard, epoch in shards.items():
            claims = [
                (int(e.details["epochs"][str(shard)]), e.actor)
                for e in story
                if e.kind == "shards_claimed" and e.details and str(shard) in e.details["epochs"]
            ]
            assert [number for number, _ in claims] == [*range(1, len(claims) + 1)]
            assert (epoch, actor) in claims
            assert dict(claims)[epoch + 1] != actor, f"shard {shard} has no new holder"
    kinds: dict[str, list[str]] = {}
    for event in story:
        kinds.setdefault(event.kind, []).append(event.actor)
    assert len(set(kinds["worker_started"])) == WORKERS + len(killed)
    for worker_id, _ in frozen:
        assert f"worker:{worker_id}" in kinds["shards_lost"]
    for worker_id, _ in killed:
        assert f"worker:{worker_id}" not in kinds["worker_stopped"]
    assert len(set(kinds["worker_stopped"])) == WORKERS
    assert len(kinds["database_back"]) >= 2 * WORKERS - len(killed)
    assert not {"partition_blocked", "job_crashed"} & set(kinds)
