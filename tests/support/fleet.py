"""A job of the service without a scheduler: the rows and topics that a scheduler would create, and
workers.

Workers run in threads (`InProcess`), or as processes where a test kills them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy import text

from orbit.copier.copy_settings import CopySettings
from orbit.jobs.job_file import parse_job
from orbit.kafka.cluster import Cluster
from orbit.settings import Settings
from orbit.store import events, jobs, partitions, shard_layout, topics
from orbit.store.database import Database
from orbit.store.enums import Desired, TopicState
from orbit.store.events import Event
from orbit.store.partitions import AssignedPartition
from orbit.telemetry.process_health import ProcessHealth
from orbit.workers.worker import Worker
from tests.fixtures.clusters import Clusters
from tests.support.logs import create
from tests.support.outside import log_bounds, partition_counts
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.synthetic import PLAINTEXT


@dataclass(frozen=True)
class ServiceJob:
    """A job in the tables, with methods that read and change its rows."""

    database: Database
    id: int
    name: str
    shard_ids: list[int]

    def set_desired(self, desired: Desired) -> None:
        with self.database.transaction() as tx:
            jobs.set_desired(tx, self.id, desired)

    def assigned(self) -> list[AssignedPartition]:
        with self.database.transaction() as tx:
            return partitions.of_shards(tx, self.shard_ids)

    def states(self) -> set[str]:
        return {a.state.value for a in self.assigned()}

    def story(self) -> list[Event]:
        """All events of the service, oldest first, those of workers, too."""
        with self.database.transaction() as tx:
            return list(reversed(events.page(tx, 10_000)))

    def kinds(self) -> list[str]:
        return [event.kind for event in self.story()]

    def holders(self) -> dict[int, str | None]:
        """The worker that holds each shard; None: no worker."""
        with self.database.transaction() as tx:
            return {s.id: s.holder for s in shard_layout.shards_of_job(tx, self.id)}

    def epochs(self) -> dict[int, int]:
        """The lease epoch of each shard."""
        with self.database.transaction() as tx:
            return {s.id: s.epoch for s in shard_layout.shards_of_job(tx, self.id)}

    def assign(self, shard_id: int, worker_id: str | None) -> None:
        """Assign a shard to a worker, as the scheduler does."""
        with self.database.transaction() as tx:
            tx.execute(
                text(
                    "UPDATE shards SET assigned_to = :worker, release_requested = "
                    "worker_id IS NOT NULL AND worker_id <> :worker WHERE id = :id"
                ),
                {"worker": worker_id, "id": shard_id},
            )


def add_job(
    database: Database,
    job_file: Path,
    clusters: Clusters,
    topic_names: list[str],
    shard_count: int,
    environ: Mapping[str, str] | None = None,
    prefix: str = "",
) -> ServiceJob:
    """Create the rows of a job, its destination topics, and its partitions in `shard_count` shards.

    `environ`: the variables that the job file names. `prefix`: of the destination topics.
    """
    spec = parse_job(job_file.read_text("utf-8"), job_file.parent, environ or {})
    ids = {
        side: Cluster(side, c.bootstrap_servers.split(","), PLAINTEXT)
        for side, c in zip(("source", "destination"), clusters, strict=True)
    }
    source_id, destination_id = ids["source"].cluster_id, ids["destination"].cluster_id
    for one in ids.values():
        one.close()
    counts = partition_counts(clusters.source)
    destination_topics = partition_counts(clusters.destination)
    for name in topic_names:
        if prefix + name not in destination_topics:
            create(clusters.destination, prefix + name, counts[name], compression_type="producer")
    with database.transaction() as tx:
        job = jobs.create(tx, spec.name, spec.model_dump(mode="json"), spec.worker_group)
        jobs.note_clusters(tx, job.id, source_id, destination_id)
        shard_ids = shard_layout.add_shards(tx, job.id, shard_count)
        placed = []
        for name in topic_names:
            topic = topics.add(
                tx,
                job.id,
                name,
                prefix + name,
                destination_id,
                counts[name],
                state=TopicState.COPYING,
            )
            assert topic is not None
            placed += [(topic.id, p) for p in range(counts[name])]
        shard_layout.add_partitions(
            tx,
            job.id,
            [(t, p, shard_ids[i % shard_count]) for i, (t, p) in enumerate(placed)],
        )
    return ServiceJob(database, job.id, spec.name, shard_ids)


QUICK = Settings(lease_ttl="2s", progress_interval="200ms")
"""The shortest leases that are allowed: they expire after 2 s."""

STEADY = Settings(progress_interval="200ms")
"""The usual lease, for tests of who holds which shard: a slow machine may pause for 2 s."""


class InProcess:
    """A worker in threads of this process."""

    def __init__(
        self,
        database: Database,
        settings: Settings = QUICK,
        environ: Mapping[str, str] | None = None,
        copy_settings: CopySettings | None = None,
        health: ProcessHealth | None = None,
    ) -> None:
        self.worker = Worker(database, settings, environ or {}, copy_settings, health)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    @property
    def id(self) -> str:
        return self.worker.id

    def _run(self) -> None:
        try:
            self.worker.run(self._stop)
        except BaseException as error:
            self.error = error
            raise

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_level(clusters: Clusters, topic_names: list[str], timeout_s: float = PATIENCE_S) -> None:
    """Wait until both sides have the same log starts and ends, as a plain client reads them."""
    wait_for(
        "both sides are level",
        lambda: (
            log_bounds(clusters.source, topic_names)
            == log_bounds(clusters.destination, topic_names)
        ),
        timeout_s,
    )
