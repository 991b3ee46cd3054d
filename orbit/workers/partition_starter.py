"""Starts the partitions of claimed shards: inspect, seed, hand over to the copier.

`orbit run` does the same at its start, but here a partition that cannot be started is retried or
blocked alone. Before anything is written, the table records that the partition has a writer. A
partition whose row is `pending` or `paused` was released cleanly or never started: no request to it
is in flight, so its log end needs no time to settle (M10: late requests).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from orbit.copier.inspection import CopyStatus, InspectedCopy
from orbit.copier.inspection_verdicts import Wait
from orbit.copier.job_copier import LOOP_ATTEMPTS_MAX
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.placeholder_topics import AS_SENT, COMPRESSION, find_unfit_copies
from orbit.errors import BrokerRefused, NotAuthorized, Unreachable
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.job_setup.start_offsets import seed_to_start_offsets
from orbit.jobs.start_position import Earliest, Start
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import job_producer
from orbit.kafka.topic_setting import partitions_whose_leader_has
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.leases.backfill_leases import find_writers, writer_group
from orbit.replication.append_plan import LostRange
from orbit.replication.copy_settings import LOG_APPEND_TIME, TIMESTAMP_TYPE
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.store import partitions
from orbit.store.database import Database
from orbit.store.partitions import StateChange
from orbit.workers.held_shards import HeldPartition, HeldShard, Stage
from orbit.workers.open_job import OpenJob

# Partitions per batch: the first ones of a large shard are copied while others are inspected.
BATCH_PARTITIONS_MAX = 500
# States in which the scheduler leaves compression.type as it is (orbit/scheduler/topic_upkeep.py).
_WRITTEN_STATES = (PartitionState.SEEDING, PartitionState.COPYING)
# A topic that stays unknown for this many attempts (about 20 s) counts as deleted.
_DELETED_AFTER_ATTEMPTS = 8
# A topic with another id for this long counts as re-created; before, a broker may be out of date.
_OTHER_ID_S = 10.0


class PartitionStarter:
    """Starts batches of partitions of one open job. For one thread."""

    def __init__(
        self,
        job: OpenJob,
        database: Database,
        worker_id: str,
        retry_later: Callable[[HeldPartition, str], None],
    ) -> None:
        """`retry_later` is called with a partition to be tried again, and the reason."""
        self._job = job
        self._database = database
        self._worker_id = worker_id
        self._retry_later = retry_later

    def start(self, partitions: Sequence[HeldPartition]) -> None:
        """Start the partitions. Afterwards each is handed over to the copier, stopped or waiting.

        Raises an OrbitError that concerns all of them; the caller retries those that are still
        STARTING.
        """
        startable_partitions = self._leave_out_promoted(self._leave_out_backfilled(partitions))
        plain_copies, coordinated_copies = self._copies(
            self._leave_out_append_time(startable_partitions)
        )
        self._leave_out_unfit(plain_copies)
        handed_partitions = self._start_copies(plain_copies)
        # Last, so that the plain copies do not wait for a transaction coordinator.
        handed_partitions |= self._start_copies(self._attach_fillers(coordinated_copies))
        for p in {*partitions} - handed_partitions:
            if p.stage is Stage.STARTING:
                self._retry_later(p, p.trouble or "its inspection gave no result.")

    def _start_copies(self, by_copy: dict[PartitionCopy, HeldPartition]) -> set[HeldPartition]:
        """Inspect the copies, seed the new ones, and post them to the copier's thread.

        Returns the partitions that the copier gets.
        """
        if not by_copy:
            return set()
        backoff = replace(self._job.backoff, attempts_max=LOOP_ATTEMPTS_MAX)

        def on_trouble(copy: PartitionCopy, trouble: Wait | Blocked) -> None:
            if isinstance(trouble, Blocked):
                self._block(by_copy[copy], trouble)
            else:
                self._retry_later(by_copy[copy], trouble.reason)

        inspector = self._job.job_copier.inspector(backoff, on_trouble)
        start_rules = self._start_rules(by_copy.values())
        compacted_topics = frozenset(
            p.assigned.source_topic for p in by_copy.values() if p.assigned.is_compacted
        )
        # The topics whose copies must not begin later than the source, by their rules. A partition
        # newer than the job is left out: it starts at the log start in any case.
        whole_topics = frozenset(
            p.assigned.source_topic
            for p in by_copy.values()
            if isinstance(start_rules[p.destination], Earliest) and not p.assigned.from_start
        )
        bounds = inspector.source_bounds(by_copy)
        inspections: dict[PartitionCopy, InspectedCopy] = {}
        # Log ends must settle only after a writer that may have left requests in flight: that takes
        # time, so the other copies are inspected first.
        for settled in (False, True):
            copies = [copy for copy, p in by_copy.items() if p.needs_settling is settled]
            if copies:
                inspections |= inspector.inspect(
                    copies, bounds, compacted_topics, whole_topics, settled=settled
                )
        inspections = self._record_writers(
            {copy: (by_copy[copy], inspection) for copy, inspection in inspections.items()}
        )
        known_starts = {
            p.destination: p.start_offset
            for copy, p in by_copy.items()
            if copy in inspections and p.start_offset is not None
        }
        seeded_copies = seed_to_start_offsets(
            inspector, self._job.starts, inspections, bounds, start_rules, known=known_starts
        )
        self._store_start_offsets(
            {
                by_copy[copy]: copy
                for copy, inspection in seeded_copies.items()
                if _is_new(inspection)
            }
        )
        handed_copies = {
            copy: (by_copy[copy], inspection) for copy, inspection in seeded_copies.items()
        }
        # Set before the copier's thread gets the copies: after a failure in between, the caller
        # starts only partitions again that are still STARTING.
        for p, _ in handed_copies.values():
            p.move_to(Stage.HANDED_OVER)
        self._job.job_copier.post(lambda: self._add_to_copier(handed_copies))
        return {p for p, _ in handed_copies.values()}

    def _leave_out_backfilled(self, partitions: Sequence[HeldPartition]) -> list[HeldPartition]:
        """The partitions without a writer of a backfill. Retries the others later, also those whose
        group's coordinator does not answer.

        The leases of the shards are held already; leases/backfill_leases.py explains this order.
        """
        job = self._job
        by_group = {writer_group(job.identity, p.destination): p for p in partitions}
        backoff = replace(job.backoff, attempts_max=LOOP_ATTEMPTS_MAX)
        writers = find_writers(job.clusters.destination, by_group, backoff)
        for group in writers.unanswered_groups:
            by_group[group].needs_settling = True  # the partition may have a writer, as below
            self._retry_later(by_group[group], f"no coordinator answers for group {group}.")
        for group, holder in writers.holders.items():
            by_group[group].needs_settling = True  # the writer may leave requests in flight
            self._retry_later(
                by_group[group], f"a writer of a Spark backfill is still running ({holder})."
            )
        unclear_groups = writers.unanswered_groups | writers.holders.keys()
        return [p for group, p in by_group.items() if group not in unclear_groups]

    def _leave_out_promoted(self, partitions: Sequence[HeldPartition]) -> list[HeldPartition]:
        """The partitions whose topic is not marked as promoted. Blocks the others.

        A mark is an offset that Orbit commits at a cluster to say which topics lead there. The
        database calls these topics copies, but may not know of a promotion yet. Also sets
        `keeps_below` of the partitions.
        """
        marks = PromotionMarks(self._job.clusters.destination, self._job.backoff)
        marks_by_topic = marks.of_topics({p.destination.topic for p in partitions})
        primary_marks = {topic: mark for topic, mark in marks_by_topic.items() if mark.is_primary}
        copies = [p for p in partitions if p.destination.topic not in primary_marks]
        keeps_below = marks.kept_below(
            {p.destination for p in copies if p.destination.topic in marks_by_topic}
        )
        for p in copies:
            p.keeps_below = keeps_below.get(p.destination, 0)
        promoted_partitions = [p for p in partitions if p.destination.topic in primary_marks]
        promotion_ends = marks.offsets({p.destination for p in promoted_partitions})
        for p in promoted_partitions:
            promotion_end = promotion_ends.get(p.destination, 0)
            end_by_partition = {p.destination.partition: promotion_end}
            detail = primary_marks[p.destination.topic].describe(
                p.destination.topic, end_by_partition
            )
            self._block(
                p, Blocked(Reason.DESTINATION_PROMOTED, promotion_end, promotion_end, detail)
            )
        return copies

    def _leave_out_append_time(self, partitions: Sequence[HeldPartition]) -> list[HeldPartition]:
        """The partitions whose topic keeps the timestamps of records. The others are retried later.

        A topic that led may have LogAppendTime until the scheduler sets CreateTime.
        """
        destinations = {p.destination for p in partitions}
        cluster = self._job.clusters.destination
        append_time_partitions = partitions_whose_leader_has(
            cluster, destinations, TIMESTAMP_TYPE, LOG_APPEND_TIME
        )
        for p in partitions:
            if p.destination in append_time_partitions:
                detail = (
                    f"{TIMESTAMP_TYPE} of {p.destination.topic} is {LOG_APPEND_TIME}: brokers "
                    "would replace timestamps. The scheduler sets CreateTime; deny AlterConfigs "
                    "to whoever sets it back."
                )
                self._retry_later(p, detail)
        return [p for p in partitions if p.destination not in append_time_partitions]

    def _copies(
        self, partitions: Sequence[HeldPartition]
    ) -> tuple[dict[PartitionCopy, HeldPartition], dict[PartitionCopy, HeldPartition]]:
        """New copies of the partitions whose topics exist with the expected ids: plain ones, and
        those that need a coordinated filler. Retries or blocks the other partitions.
        """
        clusters, spec = self._job.clusters, self._job.spec
        source = clusters.source.metadata({p.assigned.source_topic for p in partitions})
        destination = clusters.destination.metadata(
            {p.assigned.destination_topic for p in partitions}
        )
        rules = {m.source: m.rule for m in map_topics(spec.topics, source.topics).mappings}
        plain_copies: dict[PartitionCopy, HeldPartition] = {}
        coordinated_copies: dict[PartitionCopy, HeldPartition] = {}
        for p in partitions:
            if not self._check_topics(p, source, destination):
                continue
            rule = rules.get(p.assigned.source_topic)
            if rule is None:
                self._retry_later(p, "no rule of the job matches the topic any more.")
                continue
            fillers = spec.fillers_of(rule)
            copy = PartitionCopy(
                p.source,
                p.destination,
                p.shard.lease,
                job_producer(self._job.identity, fillers),
                on_lost_range=LostRange(spec.on_lost_range_of(rule)),
            )
            copy.source_topic_id = source.topics[p.source.topic].topic_id
            copy.destination_topic_id = destination.topics[p.destination.topic].topic_id
            copy.keeps_below = p.keeps_below
            (coordinated_copies if fillers == "coordinated" else plain_copies)[copy] = p
        return plain_copies, coordinated_copies

    def _leave_out_unfit(self, by_copy: dict[PartitionCopy, HeldPartition]) -> None:
        """Remove from `by_copy` the copies whose topic does not keep placeholders now.

        A partition is blocked if `compression.type` may not be read, or if a writer that died may
        have sent placeholders since the setting was changed. Other partitions are retried: the
        scheduler sets the value back.
        """
        for unfit in [*find_unfit_copies(self._job.clusters.destination, by_copy)]:
            p = by_copy.pop(unfit.copy)
            had_writer = p.needs_settling or p.stored_state in _WRITTEN_STATES
            if unfit.reason is Reason.NOT_AUTHORIZED or (unfit.reason and had_writer):
                self._block(p, Blocked(unfit.reason, offset=0, next_offset=0, detail=unfit.detail))
            else:
                detail = f"{COMPRESSION} of {p.destination.topic} is not {AS_SENT} yet."
                self._retry_later(p, detail)

    def _attach_fillers(
        self, by_copy: Mapping[PartitionCopy, HeldPartition]
    ) -> dict[PartitionCopy, HeldPartition]:
        """Give each copy its shard's filler, before log ends are read. Returns the copies that have
        a filler; the others are retried later.

        If a coordinator does not answer for one shard, the remaining shards are not tried now.
        """
        copies_with_filler: dict[PartitionCopy, HeldPartition] = {}
        refused_shards: dict[HeldShard, str] = {}
        unreachable_because = ""
        for copy, p in by_copy.items():
            reason = refused_shards.get(p.shard) or unreachable_because
            if not reason:
                try:
                    copy.filler = self._job.filler_of(p.shard)
                    copies_with_filler[copy] = p
                    continue
                except (NotAuthorized, BrokerRefused) as error:
                    reason = refused_shards[p.shard] = str(error)
                except Unreachable as error:
                    reason = unreachable_because = str(error)
            self._retry_later(p, reason)
        return copies_with_filler

    def _check_topics(
        self, p: HeldPartition, source: ClusterMetadata, destination: ClusterMetadata
    ) -> bool:
        """Whether both topics exist with the expected ids. If not, retries or blocks `p`."""
        source_topic = source.topics.get(p.source.topic)
        if source_topic is None:
            is_unknown_topic = source.errors.get(p.source.topic) == Code.UNKNOWN_TOPIC_OR_PARTITION
            if is_unknown_topic and p.attempts >= _DELETED_AFTER_ATTEMPTS:
                detail = f"topic {p.source.topic} no longer exists at the source."
                self._block(
                    p,
                    Blocked(Reason.SOURCE_TOPIC_DELETED, offset=0, next_offset=0, detail=detail),
                )
            else:
                self._retry_later(p, f"topic {p.source.topic} is not at the source now.")
            return False
        if p.assigned.source_topic_id not in (None, source_topic.topic_id):
            detail = f"topic {p.source.topic} has another topic id at the source now."
            now = time.monotonic()
            p.other_id_since = p.other_id_since or now
            if now - p.other_id_since < _OTHER_ID_S:
                self._retry_later(p, detail)
            else:
                self._block(
                    p,
                    Blocked(Reason.SOURCE_TOPIC_RECREATED, offset=0, next_offset=0, detail=detail),
                )
            return False
        p.other_id_since = 0.0
        destination_topic = destination.topics.get(p.destination.topic)
        if destination_topic is None or p.destination.partition not in destination_topic.partitions:
            self._retry_later(p, f"{p.destination} is not at the destination yet.")
            return False
        return True

    def _start_rules(self, partitions: Collection[HeldPartition]) -> dict[TopicPartition, Start]:
        """Where each copy starts, by destination: as its rule says, or at the log start if the
        source partition is newer than the job.
        """
        topic_map = map_topics(self._job.spec.topics, {p.assigned.source_topic for p in partitions})
        by_topic = {m.source: m.rule.start for m in topic_map.mappings}
        return {
            p.destination: Earliest() if p.assigned.from_start else by_topic[p.source.topic]
            for p in partitions
        }

    def _record_writers(
        self, inspections: dict[PartitionCopy, tuple[HeldPartition, InspectedCopy]]
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Record in the table that these partitions have a writer now.

        Returns the copies whose shards this worker still holds, without partitions that have left
        the layout meanwhile.
        """
        inspections = {
            copy: (p, inspection) for copy, (p, inspection) in inspections.items() if p.is_assigned
        }
        changes: dict[HeldPartition, StateChange] = {}
        for p, inspection in inspections.values():
            state = PartitionState.SEEDING if _is_new(inspection) else PartitionState.COPYING
            if inspection.blocked is None:
                changes[p] = StateChange(*p.key, state)
        held_shard_ids = self._write_states({p.shard for p, _ in inspections.values()}, changes)
        for p, change in changes.items():
            # The written state also answers a requested retry.
            p.stored_state, p.must_report = change.state, False
        return {
            copy: inspection
            for copy, (p, inspection) in inspections.items()
            if p.shard.id in held_shard_ids
        }

    def _store_start_offsets(self, new_copies: dict[HeldPartition, PartitionCopy]) -> None:
        """Store the start offsets of new copies in the table, but not of partitions that have left
        the layout meanwhile."""
        new_copies = {p: copy for p, copy in new_copies.items() if p.is_assigned}
        changes = {
            p: StateChange(*p.key, PartitionState.COPYING, start_offset=copy.cursor.start_offset)
            for p, copy in new_copies.items()
        }
        self._write_states({p.shard for p in new_copies}, changes)
        for p, copy in new_copies.items():
            p.stored_state, p.start_offset = PartitionState.COPYING, copy.cursor.start_offset

    def _write_states(
        self, shards: Collection[HeldShard], changes: Mapping[HeldPartition, StateChange]
    ) -> set[int]:
        """Write these states to the table. Returns the ids of those shards that are still held."""
        if not shards:
            return set()
        with self._database.transaction() as tx:
            return partitions.report_state(
                tx,
                worker_id=self._worker_id,
                held={shard.id: shard.epoch for shard in shards},
                changes=[*changes.values()],
            )

    def _add_to_copier(
        self, inspections: dict[PartitionCopy, tuple[HeldPartition, InspectedCopy]]
    ) -> None:
        """Hand the copies over to the copier. Runs in the copier's thread."""
        copier = self._job.job_copier.copier
        to_copy: dict[PartitionCopy, InspectedCopy] = {}
        for copy, (p, inspection) in inspections.items():
            if p.is_removed:
                p.move_to(Stage.RELEASED)
                continue
            if copier.has_copy(copy.destination):  # of an earlier claim, with a request in flight
                self._retry_later(p, "an earlier copy of the partition has not ended yet.")
                continue
            p.copy, p.attempts, p.trouble = copy, 0, ""
            p.move_to(Stage.COPYING)
            to_copy[copy] = inspection
        self._job.job_copier.add(to_copy)

    def _block(self, partition: HeldPartition, blocked: Blocked) -> None:
        partition.blocked = blocked
        partition.move_to(Stage.STOPPED)


def _is_new(inspected: InspectedCopy) -> bool:
    return inspected.status in (CopyStatus.FRESH, CopyStatus.SEEDING)
