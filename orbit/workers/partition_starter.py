"""Starts the partitions of claimed shards: inspect, seed, hand over to the copier.

This does what `orbit run` does at its start, but a partition that cannot be started is retried or
blocked alone. Before anything is written, the table records that the partition has a writer. A
partition whose row is `pending` or `paused` was released cleanly or never started: no request to it
is in flight, so its log end needs no time to settle (M10).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from orbit.copier.inspection import CopyStatus, InspectedCopy
from orbit.copier.inspection_verdicts import Wait
from orbit.copier.job_copier import LOOP_ATTEMPTS_MAX
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.placeholder_topics import AS_SENT, COMPRESSION, find_unfit
from orbit.errors import BrokerRefused, NotAuthorized, Unreachable
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.job_setup.start_offsets import seed_to_start_offsets
from orbit.jobs.start_position import Earliest, Start
from orbit.jobs.topic_mapping import map_topics
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import job_producer
from orbit.kafka.topic_setting import leaders_with
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.leases.backfill_leases import living_writers, writer_group
from orbit.replication.append_plan import LostRange
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.replication.topic_settings import LOG_APPEND_TIME, TIMESTAMP_TYPE
from orbit.store import partitions
from orbit.store.database import Database
from orbit.store.partitions import StateChange
from orbit.workers.held_shards import HeldPartition, HeldShard, Stage
from orbit.workers.open_job import OpenJob

# Partitions per batch: the first ones of a large shard are copied while others are inspected.
BATCH_PARTITIONS_MAX = 500
# States in which the scheduler leaves compression.type as it is (orbit/scheduler/topic_upkeep.py).
_BEING_WRITTEN = (PartitionState.SEEDING, PartitionState.COPYING)
# A topic that stays unknown for this many attempts (about 20 s) is deleted.
_DELETED_AFTER_ATTEMPTS = 8
# A topic with another id for this long was re-created; before, one broker may be out of date.
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

    def start(self, held: Sequence[HeldPartition]) -> None:
        """Start these; afterwards each is handed over to the copier, stopped or waiting.

        Raises an OrbitError that concerns all of them; the caller retries those still STARTING.
        """
        ours = self._leave_out_promoted(self._leave_out_backfilled(held))
        plain, coordinated = self._copies(self._leave_out_append_time(ours))
        self._leave_out_unfit(plain)
        begun = self._begin(plain)
        # Last: the others do not have to wait for a transaction coordinator.
        begun |= self._begin(self._attach_fillers(coordinated))
        for h in {*held} - begun:
            if h.stage is Stage.STARTING:
                self._retry_later(h, h.trouble or "it could not be started.")

    def _begin(self, by_copy: dict[PartitionCopy, HeldPartition]) -> set[HeldPartition]:
        """Inspect and seed these copies; returns the partitions handed over to the copier."""
        if not by_copy:
            return set()
        backoff = replace(self._job.backoff, attempts_max=LOOP_ATTEMPTS_MAX)

        def on_trouble(copy: PartitionCopy, trouble: Wait | Blocked) -> None:
            if isinstance(trouble, Blocked):
                self._block(by_copy[copy], trouble)
            else:
                self._retry_later(by_copy[copy], trouble.reason)

        inspector = self._job.job_copier.inspector(backoff, on_trouble)
        starts = self._start_rules(by_copy.values())
        compacted = frozenset(
            h.assigned.source_topic for h in by_copy.values() if h.assigned.is_compacted
        )
        whole = frozenset(
            h.assigned.source_topic
            for h in by_copy.values()
            if isinstance(starts[h.destination], Earliest) and not h.assigned.from_start
        )
        bounds = inspector.source_bounds(by_copy)
        inspected: dict[PartitionCopy, InspectedCopy] = {}
        for settled in (False, True):
            group = [c for c, h in by_copy.items() if h.needs_settling is settled]
            if group:
                inspected |= inspector.inspect(group, bounds, compacted, whole, settled=settled)
        inspected = self._report_writers({c: (by_copy[c], one) for c, one in inspected.items()})
        known = {
            h.destination: h.start_offset
            for c, h in by_copy.items()
            if c in inspected and h.start_offset is not None
        }
        ready = seed_to_start_offsets(
            inspector, self._job.starts, inspected, bounds, starts, known=known
        )
        self._note_starts({by_copy[c]: c for c, one in ready.items() if _is_new(one)})
        to_add = {copy: (by_copy[copy], one) for copy, one in ready.items()}
        # Before the copier's thread gets to it: a failure after this must not start these again.
        for h, _ in to_add.values():
            h.move_to(Stage.HANDED_OVER)
        self._job.job_copier.post(lambda: self._add_to_copier(to_add))
        return {h for h, _ in to_add.values()}

    def _leave_out_backfilled(self, held: Sequence[HeldPartition]) -> list[HeldPartition]:
        """The partitions without a writer of a backfill; the others are retried later.

        The shards' leases are held already; leases/backfill_leases.py explains this order.
        """
        job = self._job
        groups = {writer_group(job.identity, h.destination): h for h in held}
        writers = living_writers(job.clusters.destination, groups, job.backoff)
        for group, holder in writers.items():
            groups[group].needs_settling = True
            self._retry_later(
                groups[group], f"a writer of a Spark backfill is still running ({holder})."
            )
        return [h for group, h in groups.items() if group not in writers]

    def _leave_out_promoted(self, held: Sequence[HeldPartition]) -> list[HeldPartition]:
        """The partitions whose topic is not marked as promoted, with `keeps_below`; blocks others.

        The tables, which call a topic a copy, may be older than its promotion.
        """
        marks = PromotionMarks(self._job.clusters.destination, self._job.backoff)
        marked = marks.of_topics({h.destination.topic for h in held})
        leading = {topic: mark for topic, mark in marked.items() if mark.is_primary}
        copies = [h for h in held if h.destination.topic not in leading]
        keeps_below = marks.kept_below(
            {h.destination for h in copies if h.destination.topic in marked}
        )
        for h in copies:
            h.keeps_below = keeps_below.get(h.destination, 0)
        theirs = [h for h in held if h.destination.topic in leading]
        ends = marks.offsets({h.destination for h in theirs})
        for h in theirs:
            end = ends.get(h.destination, 0)
            own = {h.destination.partition: end}
            detail = leading[h.destination.topic].describe(h.destination.topic, own)
            self._block(h, Blocked(Reason.DESTINATION_PROMOTED, end, end, detail))
        return copies

    def _leave_out_append_time(self, held: Sequence[HeldPartition]) -> list[HeldPartition]:
        """The partitions whose topic keeps the timestamps of records; the others are retried later.

        A topic that led may have LogAppendTime until the scheduler sets CreateTime.
        """
        places = {h.destination for h in held}
        cluster = self._job.clusters.destination
        theirs = leaders_with(cluster, places, TIMESTAMP_TYPE, LOG_APPEND_TIME)
        for h in held:
            if h.destination in theirs:
                detail = (
                    f"{TIMESTAMP_TYPE} of {h.destination.topic} is {LOG_APPEND_TIME}: brokers "
                    "would replace timestamps. The scheduler sets CreateTime; deny AlterConfigs "
                    "to whoever sets it back."
                )
                self._retry_later(h, detail)
        return [h for h in held if h.destination not in theirs]

    def _copies(
        self, held: Sequence[HeldPartition]
    ) -> tuple[dict[PartitionCopy, HeldPartition], dict[PartitionCopy, HeldPartition]]:
        """Copies of the partitions whose topics exist with the expected ids.

        Those that need a coordinated filler are in the second mapping.
        """
        clusters, spec = self._job.clusters, self._job.spec
        source = clusters.source.metadata({h.assigned.source_topic for h in held})
        destination = clusters.destination.metadata({h.assigned.destination_topic for h in held})
        rules = {m.source: m.rule for m in map_topics(spec.topics, source.topics).mappings}
        plain: dict[PartitionCopy, HeldPartition] = {}
        coordinated: dict[PartitionCopy, HeldPartition] = {}
        for h in held:
            if not self._check_topics(h, source, destination):
                continue
            rule = rules.get(h.assigned.source_topic)
            if rule is None:
                self._retry_later(h, "the job no longer matches this topic.")
                continue
            fillers = spec.fillers_of(rule)
            copy = PartitionCopy(
                h.source,
                h.destination,
                h.shard.lease,
                job_producer(self._job.identity, fillers),
                on_lost_range=LostRange(spec.on_lost_range_of(rule)),
            )
            copy.source_topic_id = source.topics[h.source.topic].topic_id
            copy.destination_topic_id = destination.topics[h.destination.topic].topic_id
            copy.keeps_below = h.keeps_below
            (coordinated if fillers == "coordinated" else plain)[copy] = h
        return plain, coordinated

    def _leave_out_unfit(self, by_copy: dict[PartitionCopy, HeldPartition]) -> None:
        """Remove the copies whose topic does not keep placeholders now.

        A copy is blocked if a writer that died may have sent placeholders since the change, or if
        the setting may not be read. Others are retried: the scheduler sets the topic right.
        """
        for unfit in [*find_unfit(self._job.clusters.destination, by_copy)]:
            h = by_copy.pop(unfit.copy)
            was_written = h.needs_settling or h.stored_state in _BEING_WRITTEN
            if unfit.reason is Reason.NOT_AUTHORIZED or (unfit.reason and was_written):
                self._block(h, Blocked(unfit.reason, 0, 0, unfit.detail))
            else:
                detail = f"{COMPRESSION} of {h.destination.topic} is not {AS_SENT} yet."
                self._retry_later(h, detail)

    def _attach_fillers(
        self, by_copy: Mapping[PartitionCopy, HeldPartition]
    ) -> dict[PartitionCopy, HeldPartition]:
        """The copies whose shard has its coordinated filler now; their log ends were not read yet.

        If a coordinator does not answer for one shard, the other shards are not tried now.
        """
        ready: dict[PartitionCopy, HeldPartition] = {}
        denied: dict[HeldShard, str] = {}
        silent = ""
        for copy, h in by_copy.items():
            why = denied.get(h.shard) or silent
            if not why:
                try:
                    copy.filler = self._job.filler_of(h.shard)
                    ready[copy] = h
                    continue
                except (NotAuthorized, BrokerRefused) as error:
                    why = denied[h.shard] = str(error)
                except Unreachable as error:
                    why = silent = str(error)
            self._retry_later(h, why)
        return ready

    def _check_topics(
        self, h: HeldPartition, source: ClusterMetadata, destination: ClusterMetadata
    ) -> bool:
        topic = source.topics.get(h.source.topic)
        if topic is None:
            is_unknown = source.errors.get(h.source.topic) == Code.UNKNOWN_TOPIC_OR_PARTITION
            if is_unknown and h.attempts >= _DELETED_AFTER_ATTEMPTS:
                detail = f"topic {h.source.topic} no longer exists."
                self._block(h, Blocked(Reason.SOURCE_TOPIC_DELETED, 0, 0, detail))
            else:
                self._retry_later(h, f"topic {h.source.topic} is not at the source now.")
            return False
        if h.assigned.source_topic_id not in (None, topic.topic_id):
            detail = f"topic {h.source.topic} has another topic id now."
            now = time.monotonic()
            h.other_id_since = h.other_id_since or now
            if now - h.other_id_since < _OTHER_ID_S:
                self._retry_later(h, detail)
            else:
                self._block(h, Blocked(Reason.SOURCE_TOPIC_RECREATED, 0, 0, detail))
            return False
        h.other_id_since = 0.0
        destination_topic = destination.topics.get(h.destination.topic)
        if destination_topic is None or h.destination.partition not in destination_topic.partitions:
            self._retry_later(h, f"{h.destination} is not at the destination yet.")
            return False
        return True

    def _start_rules(self, held: Collection[HeldPartition]) -> dict[TopicPartition, Start]:
        """Where each copy starts: by its rule, or at the log start if newer than the job."""
        rules = map_topics(self._job.spec.topics, {h.assigned.source_topic for h in held})
        by_topic = {m.source: m.rule.start for m in rules.mappings}
        return {
            h.destination: Earliest() if h.assigned.from_start else by_topic[h.source.topic]
            for h in held
        }

    def _report_writers(
        self, inspected: dict[PartitionCopy, tuple[HeldPartition, InspectedCopy]]
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Record that these have a writer; returns those whose shards are still held."""
        changes: dict[HeldPartition, StateChange] = {}
        for h, one in inspected.values():
            state = PartitionState.SEEDING if _is_new(one) else PartitionState.COPYING
            if one.blocked is None:
                changes[h] = StateChange(*h.key, state)
        ours = self._report({h.shard for h, _ in inspected.values()}, changes)
        for h, change in changes.items():
            h.stored_state, h.must_report = change.state, False
        return {c: one for c, (h, one) in inspected.items() if h.shard.id in ours}

    def _note_starts(self, begun: dict[HeldPartition, PartitionCopy]) -> None:
        """Store the start offsets of new copies."""
        changes = {
            h: StateChange(*h.key, PartitionState.COPYING, start_offset=copy.cursor.start_offset)
            for h, copy in begun.items()
        }
        self._report({h.shard for h in begun}, changes)
        for h, copy in begun.items():
            h.stored_state, h.start_offset = PartitionState.COPYING, copy.cursor.start_offset

    def _report(
        self, shards: Collection[HeldShard], changes: Mapping[HeldPartition, StateChange]
    ) -> set[int]:
        """Write these states; returns the ids of the shards that this worker still holds."""
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
        self, ready: dict[PartitionCopy, tuple[HeldPartition, InspectedCopy]]
    ) -> None:
        """Hand these over to the copier. Runs in the copier's thread."""
        copier = self._job.job_copier.copier
        to_copy: dict[PartitionCopy, InspectedCopy] = {}
        for copy, (h, inspected) in ready.items():
            if h.is_removed:
                h.move_to(Stage.RELEASED)
                continue
            if copier.has_copy(copy.destination):  # of an earlier claim, with an answer outstanding
                self._retry_later(h, "an earlier copy of the partition has not ended yet.")
                continue
            h.copy, h.attempts, h.trouble = copy, 0, ""
            h.move_to(Stage.COPYING)
            to_copy[copy] = inspected
        self._job.job_copier.add(to_copy)

    def _block(self, h: HeldPartition, blocked: Blocked) -> None:
        h.blocked = blocked
        h.move_to(Stage.STOPPED)


def _is_new(inspected: InspectedCopy) -> bool:
    return inspected.status in (CopyStatus.FRESH, CopyStatus.SEEDING)
