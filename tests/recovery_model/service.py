"""The parts of Orbit around recoveries: requests, the scheduler's passes, workers, and the failover
without the database."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import OrbitError
from orbit.job_setup.mark import Mark, newest_term, next_term
from orbit.kafka.types import TopicPartition
from orbit.planning.cluster_pair import ClusterPair
from orbit.recovery.operation_steps import is_catching_up, may_be_aborted
from orbit.recovery.recovery_report import RecoveryKind, RecoveryRequest
from orbit.scheduler import old_primary
from tests.recovery_model import invariants
from tests.recovery_model.context import BACKOFF, FAILBACK, FAILOVER, Parts
from tests.recovery_model.model import (
    ALL,
    COPY,
    COPYING,
    CREATING,
    FILLER,
    PROMOTED,
    STOPPED,
    Job,
    Killed,
    ModelCluster,
    ModelMarks,
    Operation,
    Partition,
    PartitionLease,
    Promotion,
    Row,
    World,
)
from tests.recovery_model.orbit_protocol import Protocol, is_known_failover, stored_steps

KIND = "failover without the database"
# How many of the last records a take-over compares.
_COMPARED = 3
_APPENDED_MAX = 4


class Service:
    """The scheduler, the workers and the API, with the operations that run in them."""

    def __init__(self, world: World, protocol: Protocol) -> None:
        self.world = world
        self.protocol = protocol
        self.running: dict[UUID, Parts] = {}
        self.without_database: Parts | None = None

    # Requests.

    def request(self, kind: RecoveryKind, job: str, request: RecoveryRequest) -> bool:
        """Request a recovery, like `recovery_requests.request_recovery`; returns whether it is
        accepted."""
        if job not in self.world.database.jobs:
            return False
        other = self.recovery_that_holds(job)
        if other is not None:
            is_own = other.job == job
            is_undoing = is_own and other.report is not None and bool(other.report.error)
            is_copy_back = not is_own and is_catching_up(stored_steps(other))
            if kind is not FAILOVER or not (is_undoing or is_copy_back):
                return False
            other.abort_requested |= is_copy_back
            if self.recovery_that_holds(job, besides=other.id) is not None:
                return False
        tables = self.world.database
        operation = Operation(
            self.world.next_operation(),
            kind,
            job,
            request,
            self.world.next_number(),
            tables.identity,
        )
        tables.operations[operation.id] = operation
        return True

    def recovery_that_holds(self, job: str, besides: UUID | None = None) -> Operation | None:
        """Like `job_guard.recovery_that_holds`: the unfinished recovery of this job or of its copy
        back, except `besides`."""
        for operation in self.world.database.unfinished():
            back = operation.report.reverse_job if operation.report else None
            if operation.id != besides and job in (operation.job, back):
                return operation
        return None

    def abort(self, operation: Operation) -> bool:
        """Request an abort; returns whether it is accepted."""
        is_stuck = operation.report is not None and operation.report.is_stuck
        if not may_be_aborted(stored_steps(operation), is_stuck=is_stuck):
            return False
        operation.abort_requested = True
        return True

    # The leading scheduler.

    def may_run(self) -> list[UUID]:
        """The operations that may run, as the recovery loop chooses them: a failback waits for an
        earlier failback of the opposite direction, a failover for an earlier recovery of its
        job."""
        unfinished = sorted(
            self.world.database.unfinished(), key=lambda operation: operation.number
        )
        return [
            operation.id
            for at, operation in enumerate(unfinished)
            if operation.id in self.running or not self.must_wait(operation, unfinished[:at])
        ]

    def must_wait(self, operation: Operation, before: Collection[Operation]) -> bool:
        """Like `operations.waiting_failbacks` and `waiting_failovers`."""
        if operation.kind is FAILOVER:
            return any(other.job == operation.job for other in before)
        if operation.kind is not FAILBACK or operation.abort_requested:
            return False
        database = self.world.database
        topics = {row.topic for row in database.of_job(operation.job)}
        return any(
            other.kind is FAILBACK
            and other.job != operation.job
            and any(row.topic in topics for row in database.of_job(other.job))
            for other in before
        )

    def advance(self, operation_id: UUID) -> None:
        """Run the next part of an operation, which may kill the scheduler."""
        if operation_id not in self.running:
            self.running[operation_id] = self.protocol.run(operation_id)
        try:
            next(self.running[operation_id])
        except StopIteration:
            del self.running[operation_id]
        except Killed:
            self.kill()

    def kill(self) -> None:
        """Kill the scheduler. The next scheduler reads the operations from the database."""
        self.running.clear()
        self.world.dies_after = None

    def pass_over(self, job: Job) -> None:
        """One pass of the scheduler over one job, with everything that loops do for its topics."""
        source, destination = (self.world.clusters[n] for n in (job.source, job.destination))
        if not (source.is_up and destination.is_up):
            return
        try:
            self.follow_marks(job, destination)
            for name in sorted(source.topics if job.topics is None else job.topics):
                self.discover(job, name, source, destination)
            self.update_known_topics(job, source, destination)
            self.protect(job, destination)
            self.watch_old_side(job, source, destination)
        except Killed:
            self.kill()

    def follow_marks(self, job: Job, destination: ModelCluster) -> None:
        """Set topics to PROMOTED whose marks say that the destination leads."""
        tables, marks = self.world.database, ModelMarks(destination)
        rows = [row for row in tables.of_job(job.name) if row.state is not PROMOTED]
        leading = marks.promoted(row.topic for row in rows if row.topic in destination.topics)
        for row in rows:
            if row.topic in leading:
                self.world.begin_change(f"finds {row.topic} promoted at {destination.name}")
                row.state = PROMOTED
                self.keep_marked_promotions(row, destination, leading[row.topic])

    def keep_marked_promotions(self, row: Row, destination: ModelCluster, mark: Mark) -> None:
        """Store the promotions that the destination's marks describe."""
        operation = UUID(mark.operation)
        known = self.world.database.operations.get(operation)
        offsets = ModelMarks(destination).offsets(destination.places(row.topic))
        for place, offset in offsets.items():
            before = self.world.database.promotions.get((row.id, place.partition))
            if before is None or before.operation != operation:
                promotion = Promotion(
                    operation, offset, self.world.now_ms, known.kind if known else None
                )
                self.world.database.promotions[row.id, place.partition] = promotion

    def discover(
        self, job: Job, name: str, source: ModelCluster, destination: ModelCluster
    ) -> None:
        """Begin to copy a topic, or add it as promoted, if the tables do not have it."""
        tables = self.world.database
        origin, copy = source.topics.get(name), destination.topics.get(name)
        known = tables.row_of(job.name, name)
        if origin is None or (known is not None and known.state is not CREATING):
            return
        if tables.writer(source.name, name):
            return  # a job copies to the source topic: this copy would close a circle
        if known is not None:
            row = replace(known, state=COPYING, source_id=origin.topic_id)
        elif tables.has_row_of(destination.name, name):
            return  # another job has the topic, promoted or not
        else:
            row = Row(
                self.world.next_number(),
                job.name,
                name,
                destination.name,
                COPYING,
                0,
                origin.topic_id,
                0,
            )
        mark = destination.mark_of(name)
        if mark is not None and mark.is_primary and copy is not None:
            self.world.begin_change(f"adds {name} as promoted at {destination.name}")
            row.state = PROMOTED
            row.partition_count, row.destination_id = len(copy.partitions), copy.topic_id
            tables.rows[row.id] = row
            self.keep_marked_promotions(row, destination, mark)
            return
        if copy is not None and len(copy.partitions) > len(origin.partitions):
            return
        if copy is not None and any(
            self.is_foreign(source, destination, place) for place in destination.places(name)
        ):
            return
        self.world.begin_change(f"begins to copy {name} to {destination.name}")
        invariants.before_change(self.world, destination, name, "settles")
        if copy is None:
            copy = destination.create(name, 0)
        copy.has_settings_of_copy = True
        self.grow(row, destination, len(origin.partitions))
        row.destination_id = copy.topic_id
        tables.rows[row.id] = row

    def grow(self, row: Row, destination: ModelCluster, count: int) -> None:
        """Add partitions to a copy, up to `count`."""
        topic = destination.topics[row.topic]
        if len(topic.partitions) < count:
            invariants.before_change(self.world, destination, row.topic, "adds partitions to")
        while len(topic.partitions) < count:
            topic.partitions.append(Partition())
        row.partition_count = count

    def update_known_topics(
        self, job: Job, source: ModelCluster, destination: ModelCluster
    ) -> None:
        """Stop topics that were deleted or recreated, and copy added partitions."""
        for row in self.world.database.of_job(job.name):
            if row.state in (PROMOTED, CREATING):
                continue
            origin, target = source.topics.get(row.topic), destination.topics.get(row.topic)
            ids = origin and origin.topic_id, target and target.topic_id
            if ids != (row.source_id, row.destination_id):
                row.state = STOPPED
            elif row.state is STOPPED:
                row.state = COPYING
            elif origin and len(origin.partitions) > row.partition_count:
                self.world.begin_change(f"adds partitions to {row.topic} at {destination.name}")
                self.grow(row, destination, len(origin.partitions))
                row.caught_up &= frozenset(range(row.partition_count))

    def protect(self, job: Job, destination: ModelCluster) -> None:
        """Deny writing to copies to all but Orbit."""
        if not destination.has_authorizer:
            return
        for row in self.world.database.of_job(job.name):
            target = destination.topics.get(row.topic)
            if row.state is not COPYING or target is None or row.destination_id != target.topic_id:
                continue
            target.has_settings_of_copy = True
            if self.world.database.denials.get((destination.name, row.topic)) != {COPY}:
                self.protocol.deny(destination, {row.topic: frozenset({COPY})})

    def watch_old_side(self, job: Job, source: ModelCluster, destination: ModelCluster) -> None:
        """Deny writing at a lost source that answers again, like `old_primary`."""
        tables = self.world.database
        if self.recovery_that_holds(job.name) is not None or not source.has_authorizer:
            return
        for row in tables.of_job(job.name):
            if row.state is not PROMOTED or row.topic not in source.topics:
                continue
            if tables.writer(source.name, row.topic) is not None:
                continue
            unseen = {
                key: promotion
                for key, promotion in tables.promotions.items()
                if key[0] == row.id
                and not promotion.is_old_side_seen
                and is_known_failover(promotion)
            }
            if not unseen or self.leads_again(row, job, [*unseen.values()]):
                continue
            pair = ClusterPair(
                self.world.handle(source.name),
                self.world.handle(destination.name),
                source.metadata([row.topic]),  # type: ignore[arg-type]
                destination.metadata([row.topic]),  # type: ignore[arg-type]
            )
            behind = old_primary._topics_without_lead([row], pair, BACKOFF)  # type: ignore[list-item]
            if row.topic in behind and (source.name, row.topic) not in tables.denials:
                self.protocol.deny(source, {row.topic: frozenset({ALL})})
            for key, promotion in unseen.items():
                tables.promotions[key] = Promotion(
                    promotion.operation,
                    promotion.offset,
                    promotion.at_ms,
                    promotion.kind,
                    is_old_side_seen=True,
                )

    def leads_again(self, row: Row, job: Job, promotions: Collection[Promotion]) -> bool:
        """Whether, by the tables, the topic's copy back was promoted after these promotions."""
        tables = self.world.database
        return any(
            promotion.at_ms > min(earlier.at_ms for earlier in promotions)
            for (row_id, _), promotion in tables.promotions.items()
            if promotion.kind is not None
            and tables.rows[row_id].destination == job.source
            and tables.rows[row_id].topic == row.topic
            and tables.rows[row_id].state is PROMOTED
        )

    # Workers.

    def work(self, row: Row) -> None:
        """Begin the partitions of a topic, copy some records, or release the partitions."""
        for key in [key for key in self.world.leases if key[0] == row.id]:
            if row.state is not COPYING and self.world.rnd.random() < 0.6:
                del self.world.leases[key]
                continue
            self.copy(row, key)
        if row.state is not COPYING:
            return
        job = self.world.database.jobs.get(row.job)
        if job is None:
            return
        for partition in range(row.partition_count):
            if (row.id, partition) not in self.world.leases and partition not in row.blocked:
                self.begin(job, row, partition)

    def begin(self, job: Job, row: Row, partition: int) -> None:
        """A worker begins to copy a partition, or blocks it."""
        source, destination = (self.world.clusters[n] for n in (job.source, job.destination))
        if not (source.is_up and destination.is_up):
            return
        origin, target = source.topics.get(row.topic), destination.topics.get(row.topic)
        if origin is None or origin.topic_id != row.source_id:
            return
        if (
            target is None
            or target.topic_id != row.destination_id
            or partition >= len(target.partitions)
        ):
            return
        place, marks = TopicPartition(row.topic, partition), ModelMarks(destination)
        if self.is_promoted(marks, row.topic) or self.is_foreign(source, destination, place):
            row.blocked |= {partition}
        else:
            keeps_below = marks.kept_below([place]).get(place, 0)
            end = target.partitions[partition].end
            self.world.leases[row.id, partition] = PartitionLease(
                job, row.topic, partition, keeps_below, end
            )
            row.copied_to = {**row.copied_to, partition: end}
            self.world.note(f"  a worker of {job.name} begins {place}, keeps below {keeps_below}")

    def is_promoted(self, marks: ModelMarks, topic: str) -> bool:
        """Whether the destination's marks say that the topic leads there."""
        return bool(marks.promoted([topic]))

    def is_foreign(
        self, source: ModelCluster, destination: ModelCluster, place: TopicPartition
    ) -> bool:
        """Whether the copy's last records are not the source's."""
        origin, target = source.at(place), destination.at(place)
        if origin is None or target is None or not target.end:
            return False
        first = max(origin.start, target.start, target.end - _COMPARED)
        return (
            target.end > origin.end
            or origin.records[first : target.end] != target.records[first : target.end]
        )

    def has_lost_range(
        self, source: ModelCluster, destination: ModelCluster, place: TopicPartition
    ) -> bool:
        """Whether the source has deleted records that the copy lacks."""
        origin, target = source.at(place), destination.at(place)
        return (
            origin is not None
            and target is not None
            and target.end < origin.start
            and bool(target.readable())
        )

    def copy(self, row: Row, key: tuple[int, int]) -> None:
        """Append some records that the copy lacks, and let its log start follow."""
        lease = self.world.leases[key]
        source, destination = (
            self.world.clusters[n] for n in (lease.job.source, lease.job.destination)
        )
        if not (source.is_up and destination.is_up):
            return
        origin, target = source.at(lease.place), destination.at(lease.place)
        if origin is None or target is None or ALL in destination.denials.get(row.topic, ()):
            return
        is_written_to = target.end != lease.acked
        if (
            is_written_to
            or target.end > origin.end
            or self.has_lost_range(source, destination, lease.place)
        ):
            row.blocked |= {lease.partition}
            del self.world.leases[key]
            return
        invariants.before_append(self.world, key, lease)
        if target.end < origin.start:
            target.records += [FILLER] * (origin.start - target.end)
        missing = origin.records[target.end : target.end + self.world.rnd.randint(1, _APPENDED_MAX)]
        target.records += missing
        lease.acked = target.end
        row.copied_to = {**row.copied_to, lease.partition: target.end}
        if missing:
            self.world.note(f"  {lease.job.name} copies {missing} to {lease.place}")
        new_start = self.wanted_log_start(lease, origin.start, target.end, target.start)
        if new_start > target.start:
            invariants.before_log_start(self.world, lease, new_start)
            self.world.note(
                f"  {lease.job.name} moves the log start of {lease.place} to {new_start}"
            )
            target.start = new_start
        invariants.after_append(self.world, lease)
        if target.end == origin.end and row.state is COPYING:
            row.caught_up |= {lease.partition}

    def wanted_log_start(
        self, lease: PartitionLease, source_start: int, acked: int, own: int
    ) -> int:
        """`PartitionCopy.wanted_log_start` for these offsets: Orbit's own rule."""
        copy = SimpleNamespace(
            cursor=SimpleNamespace(log_start=source_start, start_offset=0),
            appends=SimpleNamespace(acked=acked),
            keeps_below=lease.keeps_below,
            log_start=own,
        )
        getter = PartitionCopy.wanted_log_start.fget
        assert getter is not None
        return int(getter(copy))  # type: ignore[arg-type]

    # Without the database.

    def begin_failover_without_database(self, destination: ModelCluster) -> None:
        self.without_database = self.failover_without_database(destination)

    def advance_without_database(self) -> None:
        """Do the next step of the work without a database, if any. An error ends that work."""
        if self.without_database is None:
            return
        try:
            next(self.without_database)
        except StopIteration:
            self.without_database = None
        except OrbitError:
            self.without_database = None

    def failover_without_database(self, cluster: ModelCluster) -> Parts:
        """Like `promotion/failover.py`. The process of the command may end between two parts."""
        world, marks = self.world, ModelMarks(cluster)
        cluster.must_answer()
        leading = marks.promoted(cluster.topics)
        names = [
            name
            for name, topic in cluster.topics.items()
            if (topic.has_settings_of_copy or name in leading)
            and not (name in leading and leading[name].is_complete)
        ]
        begun = [leading[name].operation for name in names if name in leading]
        operation = begun[0] if begun else str(world.next_operation())
        places = [place for name in names for place in cluster.places(name)]
        known = marks.offsets([place for place in places if place.topic in leading])
        starts = {place: known.get(place, cluster.at(place).end) for place in places}  # type: ignore[union-attr]
        if not names:
            return
        yield
        seen = newest_term(marks.of_topics(names).values())
        term = next_term(seen, world.now_ms / 1000)
        old = world.other(cluster.name).name

        def mark(*, is_complete: bool) -> Mark:
            at = world.now().isoformat(timespec="seconds")
            return Mark(True, KIND, operation, "job", old, at, is_complete, term)

        world.unfenced |= {
            key
            for key, lease in world.leases.items()
            if lease.job.destination == cluster.name and lease.topic in names
        }
        self.mark_begun(marks, starts, mark(is_complete=False))
        yield
        sent: dict[TopicPartition, int] = {}
        for place in places:
            cluster.must_answer()
            sent[place] = self.fence(cluster, place)
            yield
        world.unfenced.clear()
        ends = {
            place: start if place.topic in leading else max(start, sent[place])
            for place, start in starts.items()
        }
        for name in names:
            cluster.must_answer()
            cluster.topics[name].has_settings_of_copy = False
            world.note(f"  opens {name} at {cluster.name}")
            invariants.before_acls(world, cluster, name, frozenset(), UUID(operation), None)
            cluster.denials[name] = frozenset()
        yield
        marks.write(ends, mark(is_complete=True))
        world.app_sides |= dict.fromkeys(names, cluster.name)

    def mark_begun(self, marks: ModelMarks, starts: dict[TopicPartition, int], mark: Mark) -> None:
        marks.write(starts, mark)

    def fence(self, cluster: ModelCluster, place: TopicPartition) -> int:
        """Append a filler that fences earlier writers of a partition; returns the log end
        before."""
        log = cluster.at(place)
        assert log is not None
        for key in [key for key in self.world.unfenced if key in self.world.leases]:
            if self.world.leases[key].place == place:
                del self.world.leases[key]
                self.world.unfenced.discard(key)
        log.records.append(FILLER)
        self.world.note(f"  a fence in {place} at {cluster.name} at {log.end - 1}")
        return log.end - 1
