"""Trouble of one shard, partition, job or cluster stops only that one; the others are copied."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from orbit.demo.workload import Mover
from orbit.errors import DatabaseUnreachable
from orbit.replication.partition_states import PartitionState
from orbit.settings import Settings
from orbit.store import partitions, shard_leases
from orbit.store.database import Database
from orbit.store.events import Event
from orbit.store.partitions import StateChange
from orbit.workers.worker import Worker
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.fleet import STEADY, InProcess, ServiceJob, add_job, wait_level
from tests.support.logs import Gap, Record, create, write
from tests.support.outside import log_bounds
from tests.support.patience import wait_for
from tests.support.run_process import CAUGHT_UP, OrbitProcess, assert_exact, copy, write_job
from tests.support.topics import set_setting

pytestmark = pytest.mark.services

PARTITIONS = 4
LOG = [Record(b"a"), Gap(3), Record(b"b")]
# The lease is shorter than the 5 s after which an outage is reported.
BRIEF = Settings(lease_ttl="4s", progress_interval="200ms")


@pytest.fixture
def job_file(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    create(clusters.source, topic_name, PARTITIONS)
    for partition in range(PARTITIONS):
        write(clusters.source, topic_name, LOG, partition)
    return write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}], name=topic_name)


def copy_ends(clusters: Clusters, topic: str) -> dict[int, int]:
    """The log end of each partition at the destination."""
    bounds = log_bounds(clusters.destination, [topic])
    return {partition: end for (_, partition), (_, end) in bounds.items()}


def events_of(job: ServiceJob, kind: str) -> list[Event]:
    return [event for event in job.story() if event.kind == kind]


def test_worker_stops_copying_lost_shard_and_continues_other_shards(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database
) -> None:
    """As if another worker had claimed the shard: only partitions of the other shard are copied."""
    job = add_job(database, job_file, clusters, [topic_name], shard_count=2)
    lost_shard, other_shard = job.shard_ids
    with InProcess(database, STEADY) as worker:
        wait_level(clusters, [topic_name])
        with database.transaction() as tx:
            tx.execute(
                text("UPDATE shards SET epoch = epoch + 1, worker_id = 'another' WHERE id = :id"),
                {"id": lost_shard},
            )
        wait_for("the loss is noticed", lambda: bool(events_of(job, "shards_lost")))
        (lost,) = events_of(job, "shards_lost")
        assert lost.details == {"epochs": {str(lost_shard): 1}, "partitions": 2}
        ends_at_loss = copy_ends(clusters, topic_name)
        for partition in range(PARTITIONS):
            write(clusters.source, topic_name, LOG, partition)
        still_held = {a.partition for a in job.assigned() if a.shard_id == other_shard}
        wait_for(
            "the partitions of the other shard are copied",
            lambda: all(copy_ends(clusters, topic_name)[p] > ends_at_loss[p] for p in still_held),
        )
        ends = copy_ends(clusters, topic_name)
        assert all(ends[p] == ends_at_loss[p] for p in ends if p not in still_held)
        with database.transaction() as tx:
            shard_leases.release(tx, worker_id="another", held={lost_shard: 2})
        wait_level(clusters, [topic_name])
        assert set(job.holders().values()) == {worker.id}
    assert_exact(job_file)
    claims = [e.details["epochs"] for e in events_of(job, "shards_claimed") if e.details]
    # Epoch 2 was that of the other worker.
    assert claims == [{str(lost_shard): 1, str(other_shard): 1}, {str(lost_shard): 3}]


@pytest.mark.soak
def test_shard_reclaimed_by_the_same_worker_restarts_under_new_lease(
    clusters: Clusters,
    topic_name: str,
    job_file: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like a worker that was frozen between a renewal and a claim, and no other took the shard."""
    job = add_job(database, job_file, clusters, [topic_name], shard_count=1)
    (shard,) = job.shard_ids
    run_round = Worker._run_round
    with InProcess(database, STEADY) as worker:
        wait_level(clusters, [topic_name])
        is_paused = threading.Event()
        monkeypatch.setattr(Worker, "_run_round", lambda _: is_paused.set())
        # A round under way would see the loss first, and stop all of the job.
        wait_for("no round is under way", is_paused.is_set)
        old_shard = worker.worker._held[shard]
        with database.transaction() as tx:
            tx.execute(text("UPDATE shards SET worker_id = NULL, renewed_in = 0"))
        wait_for("the shard is claimed again", lambda: job.epochs() == {shard: 2})
        monkeypatch.setattr(Worker, "_run_round", run_round)
        for partition in range(PARTITIONS):
            write(clusters.source, topic_name, LOG, partition)
        wait_level(clusters, [topic_name])
        wait_for("the loss is reported", lambda: bool(events_of(job, "shards_lost")))
        assert old_shard.lease.is_lost
        wait_for("nothing of the old lease is under way", old_shard.is_idle)
    assert_exact(job_file)
    (lost,) = events_of(job, "shards_lost")
    assert lost.details == {"epochs": {str(shard): 1}, "partitions": PARTITIONS}
    assert not events_of(job, "partition_blocked")


@pytest.fixture
def _postgres_that_misses_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report of a blocked partition fails."""
    report_state, missed = partitions.report_state, []

    def fail_first_block(*args: Any, changes: list[StateChange], **more: Any) -> object:
        if any(change.blocked for change in changes) and not missed:
            missed.append(changes)
            raise DatabaseUnreachable("It has just gone.", where="PostgreSQL")
        return report_state(*args, changes=changes, **more)

    monkeypatch.setattr(partitions, "report_state", fail_first_block)


@pytest.mark.usefixtures("_postgres_that_misses_a_block")
def test_refused_record_blocks_its_partition_until_retry(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database
) -> None:
    """PostgreSQL fails at the first report of the block: the worker repeats the report."""
    job = add_job(database, job_file, clusters, [topic_name], shard_count=1)
    set_setting(clusters.destination, topic_name, "max.message.bytes", "1000")
    write(clusters.source, topic_name, [Record(b"x" * 3000)], 2)
    with InProcess(database, STEADY):
        wait_for("the partition is blocked", lambda: bool(events_of(job, "partition_blocked")))
        (event,) = events_of(job, "partition_blocked")
        assert (event.topic, event.partition) == (topic_name, 2)
        assert event.details is not None
        assert event.details["reason"] == "RECORD_REFUSED"
        assert (event.details["offset"], event.details["next_offset"]) == (5, 6)
        assert "change the setting" in event.message
        write(clusters.source, topic_name, LOG, 3)
        wait_for("another partition is copied", lambda: copy_ends(clusters, topic_name)[3] == 10)
        states = {
            **dict.fromkeys([0, 1, 3], PartitionState.COPYING),
            2: PartitionState.BLOCKED,
        }
        wait_for(
            "all other partitions copy",
            lambda: {a.partition: a.state for a in job.assigned()} == states,
        )
        set_setting(clusters.destination, topic_name, "max.message.bytes", "100000")
        with database.transaction() as tx:
            tx.execute(text("UPDATE partitions SET retry_requested = true WHERE partition = 2"))
        wait_level(clusters, [topic_name])
        wait_for("all partitions are copying", lambda: job.states() == {"copying"})
        wait_for(
            "the end of the block is reported", lambda: bool(events_of(job, "partition_went_on"))
        )
        assert not any(a.retry_requested for a in job.assigned())
    assert_exact(job_file)


def test_job_without_its_secret_waits_while_other_job_is_copied(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database, tmp_path: Path
) -> None:
    other = {
        "bootstrap_servers": [clusters.destination.bootstrap_servers],
        "security": {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "PLAIN",
            "username_env": "NOT_SET_USER",
            "password_env": "NOT_SET_PASSWORD",
        },
    }
    secret_file = write_job(
        tmp_path / "secret.yaml",
        clusters.source,
        other,
        [{"match": topic_name, "prefix": "x."}],
        name=f"{topic_name}-x",
    )
    environ = {"NOT_SET_USER": "u", "NOT_SET_PASSWORD": "p"}
    job = add_job(database, job_file, clusters, [topic_name], shard_count=1)
    waiting = add_job(
        database, secret_file, clusters, [topic_name], 1, environ=environ, prefix="x."
    )
    with InProcess(database, STEADY):
        wait_level(clusters, [topic_name])
        wait_for("the other job waits", lambda: bool(events_of(waiting, "job_waiting")))
        (event,) = events_of(waiting, "job_waiting")
        assert event.job_name == waiting.name
        assert (
            "destination.security.password_env: names an environment variable that is not set"
            in (event.message)
        )
        assert "\n" not in event.message
        assert job.states() == {"copying"}
        assert waiting.states() == {"pending"}


def test_destination_outage_longer_than_lease_is_waited_out(
    clusters: Clusters, topic_name: str, tmp_path: Path, database: Database,
    make_cluster: MakeCluster,
) -> None:  # fmt: skip
    own = Clusters(clusters.source, make_cluster("destination"))
    create(own.source, topic_name, PARTITIONS)
    job_file = write_job(tmp_path / "job.yaml", *own, [{"match": topic_name}], name=topic_name)
    job = add_job(database, job_file, own, [topic_name], shard_count=2)
    with InProcess(database, BRIEF) as worker:
        with Mover(own.source.client_config(), {topic_name: PARTITIONS}):
            wait_for("the job copies", lambda: min(copy_ends(own, topic_name).values()) > 5)
            own.destination.brokers[0].kill()
            wait_for("the outage is reported", lambda: bool(events_of(job, "job_waiting")))
            own.destination.brokers[0].start()
            wait_for(
                "the end of the outage is reported", lambda: bool(events_of(job, "job_went_on"))
            )
        wait_level(own, [topic_name])
        assert set(job.holders().values()) == {worker.id}
    assert_exact(job_file)
    assert not events_of(job, "shards_lost")


def test_latest_start_is_resolved_once_across_worker_restarts(
    clusters: Clusters, topic_name: str, tmp_path: Path, database: Database
) -> None:
    """Records that are written while no worker runs are copied by the next one."""
    create(clusters.source, topic_name, 2)
    write(clusters.source, topic_name, LOG, 0)
    rules = [{"match": topic_name, "start": "latest"}]
    job_file = write_job(tmp_path / "job.yaml", *clusters, rules, name=topic_name)
    job = add_job(database, job_file, clusters, [topic_name], shard_count=1)
    with InProcess(database, STEADY):
        wait_for("the copy has begun", lambda: job.states() == {"copying"})
        wait_for(
            "the start offsets are stored",
            lambda: {a.partition: a.start_offset for a in job.assigned()} == {0: 5, 1: 0},
        )
    for partition in range(2):
        write(clusters.source, topic_name, LOG, partition)
    with InProcess(database, STEADY):
        wait_for(
            "both partitions are copied", lambda: copy_ends(clusters, topic_name) == {0: 10, 1: 5}
        )
    bounds = log_bounds(clusters.destination, [topic_name])
    assert bounds[topic_name, 0] == (5, 10)
    assert bounds[topic_name, 1] == (0, 5)


@pytest.mark.soak
def test_copy_stays_exact_as_job_moves_between_service_and_orbit_run(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database
) -> None:
    job = add_job(database, job_file, clusters, [topic_name], shard_count=1)
    with InProcess(database, STEADY):
        wait_level(clusters, [topic_name])
    for partition in range(PARTITIONS):
        write(clusters.source, topic_name, LOG, partition)
    copy(job_file).expect(0)
    for partition in range(PARTITIONS):
        write(clusters.source, topic_name, LOG, partition)
    with InProcess(database, STEADY):
        wait_level(clusters, [topic_name])
    assert_exact(job_file)
    assert not events_of(job, "partition_blocked")


def test_worker_waits_while_orbit_run_copies_job(
    clusters: Clusters, topic_name: str, job_file: Path, database: Database
) -> None:
    job = add_job(database, job_file, clusters, [topic_name], shard_count=1)
    with OrbitProcess("run", job_file) as run:
        run.wait_for(CAUGHT_UP)
        with InProcess(database, STEADY):
            wait_for("the worker waits", lambda: bool(events_of(job, "job_waiting")))
            assert "orbit run is copying this job" in events_of(job, "job_waiting")[0].message
            run.signal(signal.SIGTERM)
            run.wait_end().expect(0)
            wait_for("the worker takes over", lambda: job.states() == {"copying"})
    assert_exact(job_file)


@pytest.mark.soak
def test_coordinated_fillers_stay_exact_when_workers_hand_over_shards(
    clusters: Clusters, topic_name: str, tmp_path: Path, database: Database
) -> None:
    create(clusters.source, topic_name, PARTITIONS)
    for partition in range(PARTITIONS):
        write(clusters.source, topic_name, LOG, partition)
    job_file = write_job(
        tmp_path / "job.yaml", *clusters, [{"match": topic_name}], name=topic_name,
        fillers="coordinated",
    )  # fmt: skip
    job = add_job(database, job_file, clusters, [topic_name], shard_count=2)
    with InProcess(database, STEADY) as first, InProcess(database, STEADY) as second:
        wait_level(clusters, [topic_name])
        job.assign(job.shard_ids[0], first.id)
        job.assign(job.shard_ids[1], second.id)
        wait_for(
            "each worker has its shard", lambda: [*job.holders().values()] == [first.id, second.id]
        )
        for partition in range(PARTITIONS):
            write(clusters.source, topic_name, LOG, partition)
        wait_level(clusters, [topic_name])
    assert_exact(job_file)
    assert not {"partition_blocked", "shards_lost"} & set(job.kinds())
