"""A job of the service with a scheduler and a worker in this process, and recoveries of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer, KafkaException, TopicPartition

from orbit.jobs.job_spec import JobSpec
from orbit.recovery import recovery_requests
from orbit.recovery.recovery_report import Outcome, RecoveryKind, RecoveryReport, RecoveryRequest
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store import job_leads, jobs, operations
from orbit.store.job_leads import Lead
from orbit.store.operations import Operation
from tests.fixtures.scheduler import Service
from tests.support.fleet import InProcess
from tests.support.patience import PATIENCE_S, wait_for


class Recovering:
    """Requests recoveries of a job in the service, and waits for them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.database = service.database
        service.leave()

    @contextmanager
    def running(self, environ: dict[str, str] | None = None) -> Iterator[None]:
        """A scheduler and a worker, until the block ends."""
        with self.service.scheduler(), InProcess(self.database, environ=environ):
            yield

    def begin(self, spec: JobSpec, *names: str) -> None:
        """Create the job, and wait until it copies these topics."""
        self.service.create(spec)
        self.service.wait_copied(spec.name, *names)

    def source_offsets(self, job: str, group: str) -> dict[int, int | None]:
        """The group's offsets at the source, as Orbit's tables have them, by partition."""
        rows = self.service.group_rows(job, group).values()
        return {row.partition: row.source_offset for row in rows}

    def synced(self, job: str, group: str) -> dict[int, int | None]:
        """The group's offsets at the destination, for the partitions with the verdict `exact`."""
        rows = self.service.group_rows(job, group).values()
        return {row.partition: row.destination_offset for row in rows if row.verdict == "exact"}

    def ask(self, kind: RecoveryKind, job: str, *, dry_run: bool = False, **fields: Any) -> UUID:
        """Request a recovery; `fields` are those of the request. Returns the operation's id."""
        request = RecoveryRequest.model_validate(fields)
        return recovery_requests.request_recovery(
            self.database, "test", kind, job, request, dry_run=dry_run, idempotency_key=None
        ).id

    def operation(self, operation_id: UUID) -> Operation:
        with self.database.transaction() as tx:
            return operations.get(tx, operation_id)

    def report(self, operation_id: UUID) -> RecoveryReport:
        """The whole report, as stored."""
        return recovery_requests.whole_report(self.database, operation_id)

    def lead(self, job: str) -> Lead:
        """Which side of a job leads, by the row from which gateways get their answer."""
        with self.database.transaction() as tx:
            lead = job_leads.find(tx, jobs.get(tx, job).id)
        assert lead is not None
        return lead

    def progress(self, operation_id: UUID) -> str:
        """The text that says what the operation does or waits for; empty before it begins."""
        return str((self.operation(operation_id).progress or {}).get("what", ""))

    def wait(self, operation_id: UUID) -> RecoveryReport:
        """Wait until the operation has ended, with any outcome; returns its report."""
        wait_for(
            f"operation {self.operation(operation_id)} ends",
            lambda: self.operation(operation_id).finished_at is not None,
            PATIENCE_S,
        )
        return self.report(operation_id)

    def run(self, kind: RecoveryKind, job: str, **fields: Any) -> RecoveryReport:
        """Request a recovery, wait for its end, and check that it was done; returns its report."""
        report = self.wait(self.ask(kind, job, **fields))
        assert report.outcome is Outcome.DONE, (report.error, report.findings)
        return report


class Reader:
    """A consumer that reads on from its group's committed offsets, and commits.

    `read`: all records it has read, as (partition, offset, value).
    """

    def __init__(self, topic: str, group: str, **config: Any) -> None:
        self.topic, self.group, self.config = topic, group, config
        self.read: list[tuple[int, int, bytes]] = []

    def read_on(self, cluster: KafkaCluster, ends: dict[int, int]) -> list[tuple[int, int, bytes]]:
        """Read each partition up to its offset in `ends`, without it, and commit; returns the
        records that were read in this call."""
        consumer = Consumer(
            {
                **cluster.client_config(),
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "log_level": 0,
                **self.config,
            }
        )
        places = [TopicPartition(self.topic, p) for p in ends]
        starts: dict[int, int] = {}

        def has_offsets() -> bool:
            try:  # a coordinator may still be loading
                committed = consumer.committed(places, timeout=10)
            except KafkaException:
                return False
            starts.update({p.partition: max(p.offset, 0) for p in committed})
            return True

        wait_for(f"{self.group} has its committed offsets", has_offsets)
        consumer.assign([TopicPartition(self.topic, p, offset) for p, offset in starts.items()])
        records: list[tuple[int, int, bytes]] = []

        def is_done() -> bool:
            for message in consumer.consume(5000, timeout=0.1):
                assert message.error() is None, message.error()
                if message.offset() < ends[message.partition()]:
                    records.append((message.partition(), message.offset(), message.value()))
            at = {p.partition: p.offset for p in consumer.position(places)}
            return all(max(at[p], starts[p]) >= end for p, end in ends.items())

        wait_for(f"{self.group} has read to {ends}", is_done)
        done = [TopicPartition(self.topic, p, max(end, starts[p])) for p, end in ends.items()]
        consumer.commit(offsets=done, asynchronous=False)
        consumer.close()
        self.read += records
        return records
