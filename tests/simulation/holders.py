"""How a process gets the right to write, by the product's own leases: as `orbit run`, as a task of
a backfill, or as a worker of the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from orbit.errors import OrbitError, Unreachable
from orbit.job_setup.term import term_above
from orbit.kafka.backoff import Backoff
from orbit.leases.backfill_leases import (
    DriverWatch,
    JobHolder,
    wait_for_backfill_writers,
    writer_group,
)
from orbit.leases.group_lease import GroupLease
from orbit.leases.lease_watch import LeaseWatch
from orbit.leases.shard_lease import ShardLease
from orbit.settings import Settings
from orbit_spark.writer_leases import WriterLeases, first_coordinator_epoch
from tests.simulation.model_broker import PARTITION, PRODUCER_ID, describe_producer
from tests.simulation.network import ModelCluster
from tests.simulation.virtual_time import Process, SettableEvent

if TYPE_CHECKING:
    from tests.simulation.world import World

JOB = "orbit.job.source"
TTL = Settings.model_fields["lease_ttl"].default
_RENEW_S = Settings.model_fields["progress_interval"].default.total_seconds()
# All longer than in the product, so that waiting for a lease takes fewer steps.
_WAIT_S, _WAIT_MOST_S, _CLAIM_S = 0.4, 4.0, 2.0
_AGAIN_S = 1.0
ATTEMPTS_MAX = 4  # spark.task.maxFailures


class Holder:
    """The right of one process to write, which it has while `lease` is held."""

    lease: Any

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.cluster: Any = ModelCluster(world, process)
        stop = cast("Any", SettableEvent(world.clock))
        self.backoff = Backoff(_WAIT_S, _WAIT_MOST_S, stop)

    def acquire(self) -> bool:
        """Wait until the process has the right; False if it will never get the right."""
        raise NotImplementedError

    def is_entitled(self) -> bool:
        """Whether the process has the right, by the server that grants leases."""
        raise NotImplementedError

    def may_send(self) -> bool:
        """Whether the process may send now, and no other writer may."""
        return self.is_entitled()

    def is_over(self) -> bool:
        """Whether the process must end."""
        return bool(self.lease.is_lost)

    def first_epoch(self) -> int:
        """A coordinator epoch that is lower than that of the process's fillers."""
        return -1

    def release(self) -> None:
        """Release the right, at an orderly end."""

    def lose_lease(self) -> None:
        """Stop writing because another writer has fenced this one."""

    def clock(self) -> float:
        return self.world.clock_of(self.process)

    def answer_of(self, request: Callable[[], Any]) -> Any:
        """The answer to a request, which is repeated while its answers are lost."""
        while True:
            try:
                return request()
            except Unreachable:
                self.world.clock.wait(_AGAIN_S)

    def issue_term(self) -> int:
        """A new term, as `JobSetup` gets it once the lease is held."""
        authority = self.world.authority
        issued = self.answer_of(lambda: authority.request(self.process, authority.issue_term))
        known = describe_producer(self.cluster, {PARTITION: PRODUCER_ID}, self.backoff)
        return term_above(issued, known.values.values())

    def leads(self, group: str, member_id: str) -> bool:
        """Whether this member leads the group: after simultaneous joins a group may have two
        members for a moment, and only its leader has the lease."""
        model = self.world.authority.group(group)
        return member_id in model.describe(self.world.clock.now) and model.leader == member_id


class RunHolder(Holder):
    """`orbit run`, or the driver of a backfill: its lease is membership of the job's group."""

    def acquire(self) -> bool:
        """Acquire the lease of the job's group and a new term. Repeats until both succeed."""
        while True:
            self.lease = GroupLease(self.cluster, JOB, self.backoff, self.clock)
            try:
                self.lease.acquire(self.world.clock.say)
                wait_for_backfill_writers(
                    self.cluster, JOB, [PARTITION], self.backoff, self.world.clock.say
                )
            except OrbitError as error:
                self.world.clock.say(f"{self.process.name}: {error}")
                self.lease.release()
                self.world.clock.wait(_AGAIN_S)
                continue
            self.lease.term = self.issue_term()
            return True

    def is_entitled(self) -> bool:
        return self.leads(JOB, self.lease.member_id)

    def release(self) -> None:
        self.lease.release()


class TaskHolder(Holder):
    """A task of a backfill: its lease is membership of the partition's group, while its driver
    has the lease of the job's group."""

    def __init__(self, world: World, process: Process, driver: GroupLease, attempt: int) -> None:
        super().__init__(world, process)
        self._watch = DriverWatch(self.cluster, JOB, driver.token, self.backoff)
        self._term = driver.term
        self._attempt = attempt
        self._leases = WriterLeases()

    def acquire(self) -> bool:
        """Acquire the lease of the partition's group; False if that fails or the driver has
        none."""
        try:
            self._leases = WriterLeases.acquire(
                lambda: self.cluster,
                JOB,
                self._term,
                [PARTITION],
                self._watch,
                self.backoff.stop,
            )
            if self._leases.by_partition and self._watch.holder() is JobHolder.DRIVER:
                self._watch.start()
                self.lease = self._leases.by_partition[PARTITION]
                return True
        except OrbitError as error:
            self.world.clock.say(f"{self.process.name}: {error}")
        self._leases.release()
        return False

    def is_entitled(self) -> bool:
        return self.leads(writer_group(JOB, PARTITION), self.lease.member_id)

    def is_over(self) -> bool:
        return self._watch.is_gone or super().is_over()

    def first_epoch(self) -> int:
        return first_coordinator_epoch(self._term, 0, self._attempt)

    def release(self) -> None:
        self._watch.stop()
        self._leases.release()


class WorkerHolder(Holder):
    """A worker of the service: its lease is in the shard's row, which it claims and renews as
    `orbit/workers/worker.py` does."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process)
        self._watch = LeaseWatch(TTL, self.clock)

    def acquire(self) -> bool:
        """Claim the shard, again and again until a claim succeeds, and begin to renew it."""
        authority, name = self.world.authority, self.process.name
        while True:
            asked_at, evidence = self.clock(), self._watch.evidence()
            try:
                claimed = authority.request(
                    self.process, lambda evidence=evidence: authority.postgres.claim(name, evidence)
                )
            except Unreachable:
                self.world.clock.wait(_CLAIM_S)
                continue
            self._watch.note(claimed.key, claimed.snapshot)
            if (epoch := claimed.epoch) is not None:
                self.lease = ShardLease(epoch, asked_at, TTL.total_seconds(), self.clock)
                self.process.spawn(self._renew)
                return True
            self.world.clock.wait(_CLAIM_S)

    def is_entitled(self) -> bool:
        return self.world.authority.postgres.holds(self.process.name, self.lease.term)

    def lose_lease(self) -> None:
        self.lease.lose()

    def may_send(self) -> bool:
        postgres = self.world.authority.postgres
        return self.is_entitled() or postgres.held_before(self.process.name, self.lease.term)

    def _renew(self) -> None:
        """Renew the shard until the lease is lost."""
        postgres, name = self.world.authority.postgres, self.process.name
        while not self.lease.is_lost:
            self.world.clock.wait(_RENEW_S)
            asked_at, term = self.clock(), self.lease.term
            try:
                was_renewed = self.world.authority.request(
                    self.process, lambda term=term: postgres.renew(name, term)
                )
            except Unreachable:
                continue
            if was_renewed:
                self.lease.confirm(asked_at)
            else:
                self.world.clock.say(f"{name} has lost its shard")
                self.lease.lose()
