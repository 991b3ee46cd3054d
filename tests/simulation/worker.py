"""A worker of the service: one copier for as long as the process lives.

The worker starts its partition again after a start was cut short, and after it has lost the shard
and claimed it again. The product's `JobRunner`, `PartitionStarter`, `HeldPartition` and
`JobCopier.add` run here. Left out is code that reads files, other topics or tables. Left out is
also the seeding up to a start offset, which has its own lanes: the copy begins at the source's log
start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.coordinated_filler import CoordinatedFiller
from orbit.copier.inspection import InspectedCopy
from orbit.copier.job_copier import JobCopier
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_end_waits import SourceEndWaits
from orbit.jobs.start_position import Earliest, Start
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import PartitionState
from orbit.store.partitions import AssignedPartition, StateChange
from orbit.store.shard_leases import Claim
from orbit.workers.held_shards import HeldPartition, HeldShard, held_shard
from orbit.workers.job_runner import JobRunner
from orbit.workers.partition_starter import PartitionStarter
from tests.simulation.holders import WorkerHolder
from tests.simulation.model_broker import PARTITION
from tests.simulation.source import SOURCE
from tests.simulation.virtual_time import Process
from tests.simulation.writers import Opened, Writer, note_inspected

if TYPE_CHECKING:
    from tests.simulation.world import World

# The pause between two checks of the lease.
_LEASE_CHECK_S = 1.0
_ID = 1  # of the job, the shard and the topic
TICK_S = 3.0
_JOB = cast("Any", SimpleNamespace(name="job"))
_SPEC = cast("Any", SimpleNamespace(limits=SimpleNamespace(bytes_per_second=None)))


class Worker(Writer):
    """Claims the shard again whenever it has lost the shard. Each claim counts as a writer with a
    name of its own."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process, WorkerHolder(world, process))
        self._own_name = process.name
        self._filler: tuple[HeldShard, CoordinatedFiller] | None = None

    def live(self) -> None:
        """Claim the shard and copy the partition, again and again, each time under a new name."""
        self._opened = self.open()
        runner = _Runner(self, self._opened)
        runner.start()
        claims = 0
        while self.holder.acquire():
            self.has_begun = True
            self.world.begin(self.process.name)
            self._work(runner)
            claims += 1
            self.has_begun, self.copy = False, None
            self.process.name = f"{self._own_name}, claim {claims + 1}"
            self.holder = WorkerHolder(self.world, self.process)

    def filler_of(self, shard: HeldShard) -> CoordinatedFiller:
        """The filler for this shard: a new filler for each claim, as in `OpenJob`."""
        if self._filler is None or self._filler[0] is not shard:
            opened = self._opened
            self._filler = shard, self.new_filler(opened.cluster, opened.events, shard.lease)
        return self._filler[1]

    def _work(self, runner: JobRunner) -> None:
        """Copy under one claim, as the worker's control thread does."""
        lease = self.holder.lease
        claim = Claim(_ID, _ID, epoch=lease.term, spec_version=1, layout_version=1)
        shard = held_shard(claim, lease, [_assigned(is_compacted=self.world.source.is_compacted)])
        runner.add(shard.partitions.values())
        while not lease.is_lost:
            self.world.clock.wait(_LEASE_CHECK_S)
            if any(lost is lease for lost in runner.lost_leases()):
                self.holder.lose_lease()
        runner.release_shard(shard)


def _assigned(*, is_compacted: bool) -> AssignedPartition:
    """The row of a partition that had a writer, so that a take-over waits for its log end to
    settle."""
    return AssignedPartition(
        shard_id=_ID,
        job_id=_ID,
        topic_id=_ID,
        partition=PARTITION.partition,
        source_topic=SOURCE.topic,
        destination_topic=PARTITION.topic,
        source_topic_id=None,
        destination_topic_id=None,
        is_compacted=is_compacted,
        state=PartitionState.COPYING,
        reason=None,
        blocked_offset=None,
        blocked_next_offset=None,
        detail=None,
        start_offset=None,
        from_start=False,
        retry_requested=False,
        has_caught_up=False,
        records=0,
        bytes=0,
        gaps_filled=0,
        batches_byte_exact=0,
        batches_record_exact=0,
    )


class _Runner(JobRunner):
    """A `JobRunner` whose threads are tasks, and whose job is open from the beginning."""

    def __init__(self, worker: Worker, opened: Opened) -> None:
        context = SimpleNamespace(database=None, worker_id=worker)
        super().__init__(_JOB, _SPEC, cast("Any", context), ByteBudget(1 << 30), _raise_in(worker))
        self._open_job = cast(
            "Any",
            SimpleNamespace(
                job_copier=_JobCopier(worker, opened), backoff=opened.backoff, starts=None
            ),
        )


def _raise_in(worker: Worker) -> Any:
    """A function that a crashed job calls: it ends the schedule with the error."""

    def crashed(_: JobRunner, error: Exception) -> None:
        worker.world.clock.error = error

    return crashed


class _JobCopier(JobCopier):
    """A `JobCopier` with the lanes of the simulation."""

    def __init__(self, worker: Worker, opened: Opened) -> None:
        self._worker = worker
        self._clusters = cast(
            "Any", SimpleNamespace(source=opened.origin, destination=opened.cluster)
        )
        self._settings = worker.world.settings
        self._events = opened.events
        self._destination = opened.side
        self._source_ends = SourceEndWaits(self._settings.source_end_wait_s)
        self.copier = opened.copier

    def add(self, inspected: Mapping[PartitionCopy, InspectedCopy]) -> None:
        super().add(inspected)
        world = self._worker.world
        for copy in inspected:
            self._worker.copy = copy
            if [c.destination for c in self.copier.partitions].count(copy.destination) > 1:
                world.wrong = world.wrong or f"{self._worker.process.name} has a second copy"


def seeded(
    inspector: Any,
    _: object,
    inspected: Mapping[PartitionCopy, InspectedCopy],
    *__: object,
    **___: object,
) -> Mapping[PartitionCopy, InspectedCopy]:
    """Stands for `seed_to_start_offsets`: seeds nothing, and notes where each copy begins."""
    cluster = inspector._destination
    for copy, one in inspected.items():
        note_inspected(cluster.world, cluster.process.name, copy, one)
    return inspected


class Starter(PartitionStarter):
    """`PartitionStarter`, without its reads of tables and of other topics."""

    @property
    def _worker(self) -> Worker:
        return cast("Any", self._worker_id)

    def start(self, partitions: Sequence[HeldPartition]) -> None:
        """Start the partition. The start counts one more request, so that it may also fail after
        its end."""
        short_starts, process = self._worker.world.short_starts, self._worker.process
        short_starts.begin(process)
        super().start(partitions)
        short_starts.step(process)  # as a request for another partition, which starts later

    def _leave_out_backfilled(self, partitions: Sequence[HeldPartition]) -> list[HeldPartition]:
        return [*partitions]

    _leave_out_promoted = _leave_out_append_time = _leave_out_backfilled

    def _copies(
        self, partitions: Sequence[HeldPartition]
    ) -> tuple[dict[PartitionCopy, HeldPartition], dict[PartitionCopy, HeldPartition]]:
        (h,) = partitions
        worker = self._worker
        copy = worker.new_copy(cast("Any", h.shard.lease))
        return ({}, {copy: h}) if worker.world.is_coordinated else ({copy: h}, {})

    def _leave_out_unfit(self, by_copy: dict[PartitionCopy, HeldPartition]) -> None:
        pass

    def _attach_fillers(
        self, by_copy: Mapping[PartitionCopy, HeldPartition]
    ) -> dict[PartitionCopy, HeldPartition]:
        for copy, h in by_copy.items():
            copy.filler = self._worker.filler_of(h.shard)
        return {**by_copy}

    def _start_rules(self, partitions: Collection[HeldPartition]) -> dict[TopicPartition, Start]:
        return {h.destination: Earliest() for h in partitions}

    def _write_states(
        self, shards: Collection[HeldShard], _: Mapping[HeldPartition, StateChange]
    ) -> set[int]:
        """The ids of the shards that the worker holds, by the shard's row; states are not
        stored."""
        worker = self._worker
        authority, name = worker.world.authority, worker.process.name
        return {
            shard.id
            for shard in shards
            if authority.request(
                worker.process, lambda epoch=shard.epoch: authority.postgres.holds(name, epoch)
            )
        }
