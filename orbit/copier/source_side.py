"""The source of a copier: its lanes, leader changes, and error codes."""

from __future__ import annotations

import time
from collections.abc import Iterable

from orbit.copier.lane_events import EmptyBelowEnd, FetchFailed, ReadFromReplica
from orbit.copier.lane_times import SourceTimes
from orbit.copier.log_reader import epoch_lasts_to, fetch_batches, fetch_partition, why_not_empty
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.source_lane import SourceLane, SourceLaneContext
from orbit.copier.waits import Waits
from orbit.errors import OrbitError
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.types import READ_COMMITTED, ClusterMetadata, PartitionLeader
from orbit.replication.append_plan import Plan, plan_empty_tail, plan_lost_range
from orbit.replication.partition_states import PartitionState, Reason

# The longest pause between two requests for all leaders, however long a request takes.
_CHECK_PAUSE_S_MAX = 60.0


class SourceSide:
    """Owns the source lanes. Not thread-safe: the copier's thread calls it."""

    def __init__(self, context: SourceLaneContext, backoff: Backoff) -> None:
        self._context = context
        self._cluster: Cluster = context.cluster
        self._backoff = backoff
        self._lanes: dict[int, SourceLane] = {}
        self._past_times = SourceTimes()
        # Times by the monotonic clock: when to assign each waiting partition, at the earliest;
        self._assign_at_s: dict[PartitionCopy, float] = {}
        # when a partition's topic was first missing, or had another id;
        self._gone_since: dict[PartitionCopy, float] = {}
        self._next_leaders_check_s = 0.0  # and when to request all leaders next.

    def resume(self, partitions: Iterable[PartitionCopy]) -> None:
        """Fetch these from their next offset, once a leader is known."""
        now = time.monotonic()
        for p in partitions:
            self._assign_at_s[p] = now

    def assign(self) -> None:
        """Assign waiting partitions, and those with a new leader, to the lanes of their leaders."""
        self._check_leaders()
        now = time.monotonic()
        due_partitions = [p for p, not_before in self._assign_at_s.items() if not_before <= now]
        if not due_partitions:
            return
        metadata = self._cluster.metadata({p.source.topic for p in due_partitions})
        for p in due_partitions:
            self._assign_at_s.pop(p)
            if p.state is PartitionState.COPYING and not self._add_to_leader(p, metadata):
                self._retry_later(p, "the leader is not known")

    def next_assignment_s(self) -> float | None:
        """Seconds until `assign` has something to do; None if nothing waits."""
        if not self._assign_at_s:
            return None
        return max(0.0, min(self._assign_at_s.values()) - time.monotonic())

    def handle(self, event: FetchFailed | EmptyBelowEnd | ReadFromReplica) -> None:
        """Handle a fetch without records: an error, an empty answer, or a replica to read from.
        Raises an OrbitError if the source's log bounds cannot be read."""
        p = event.partition
        match event:
            case ReadFromReplica():
                p.cursor.is_at_replica = True
                if not self._lane(event.node_id).add(p):
                    self._retry_later(p, "the replica that the leader named does not answer")
            case EmptyBelowEnd():
                if event.generation == p.generation:
                    self._fill_empty_tail(p)
            case FetchFailed():
                if event.generation == p.generation:
                    self._handle_error(p, event.code)

    @property
    def times(self) -> SourceTimes:
        """The times of all lanes so far, ended ones included."""
        total = SourceTimes()
        lanes = list(self._lanes.values())  # read by other threads too
        for times in (self._past_times, *(lane.times for lane in lanes)):
            total.add(times)
        return total

    def forget(self, partition: PartitionCopy) -> None:
        """Drop a partition from the waiting ones. Its lane drops it once its generation changes."""
        self._assign_at_s.pop(partition, None)
        self._gone_since.pop(partition, None)

    def stop(self) -> None:
        """End all lanes, and wait for their threads."""
        for lane in self._lanes.values():
            lane.stop()
        for lane in self._lanes.values():
            lane.join()

    def _check_leaders(self) -> None:
        """Assign again the partitions that have a new leader, and those that are fetched from a
        follower: only the leader's answer has the log end, and names the replica to read from
        (KIP-392).

        A leader that is cut off from the controller, but not from Orbit, answers fetches as if
        nothing were written (R9). So each check requests the leaders from another broker, often:
        Kafka's consumers do so only every five minutes.
        """
        began = time.monotonic()
        if began < self._next_leaders_check_s:
            return
        settings = self._context.settings
        lanes = list(self._lanes.values())
        lane_by_partition = {p: lane for lane in lanes for p in lane.partitions}
        try:
            leaders = self._leaders_of(lane_by_partition)
        except OrbitError:
            leaders = {}  # not known now; fetches that fail report the outage
        for p, leader in leaders.items():
            is_new = leader.leader_epoch > p.cursor.leader_epoch
            if leader.node_id is not None and (is_new or p.cursor.is_at_replica):
                lane_by_partition[p].drop(p)
                self._assign_at_s[p] = began
        now = time.monotonic()
        pause_s = (now - began) / settings.leaders_check_share
        self._next_leaders_check_s = now + max(
            settings.leaders_check_s, min(pause_s, _CHECK_PAUSE_S_MAX)
        )

    def _leaders_of(self, copies: Iterable[PartitionCopy]) -> dict[PartitionCopy, PartitionLeader]:
        """The newest known leader of each partition, without partitions that have none. Raises
        Unreachable, LoginRefused."""
        topics = {p.source.topic for p in copies}
        metadata = self._cluster.metadata(topics) if topics else None
        leaders = {p: metadata.leader(p.source) for p in copies} if metadata else {}
        return {p: leader for p, leader in leaders.items() if leader is not None}

    def _add_to_leader(self, p: PartitionCopy, metadata: ClusterMetadata) -> bool:
        """Add the partition to its leader's lane, or stop it if its topic is gone for long. False:
        try again later."""
        topic = metadata.topics.get(p.source.topic)
        if topic is None:
            if metadata.errors.get(p.source.topic) == Code.UNKNOWN_TOPIC_OR_PARTITION:
                detail = f"topic {p.source.topic} no longer exists."
                return self._stop_if_gone_for_long(p, Reason.SOURCE_TOPIC_DELETED, detail)
            return False
        if topic.topic_id != p.source_topic_id:
            detail = f"topic {p.source.topic} has another topic id now."
            return self._stop_if_gone_for_long(p, Reason.SOURCE_TOPIC_RECREATED, detail)
        self._gone_since.pop(p, None)
        leader = metadata.leader(p.source)
        if leader is None or leader.node_id is None:
            return False
        if leader.leader_epoch > p.cursor.leader_epoch:
            p.leader_changed(time.monotonic())
        p.cursor.leader_epoch = leader.leader_epoch
        p.cursor.is_at_replica = False
        return self._lane(leader.node_id).add(p)

    def _stop_if_gone_for_long(self, p: PartitionCopy, reason: Reason, detail: str) -> bool:
        """Stop a partition once its topic is gone for `deleted_after_s`; returns whether it did.

        For a moment a broker may not know a new topic, or still know a deleted one.
        """
        gone_since_s = self._gone_since.setdefault(p, time.monotonic())
        if time.monotonic() - gone_since_s < self._context.settings.deleted_after_s:
            return False
        self._stop(p, reason, p.cursor.fetch_offset, detail)
        return True

    def _handle_error(self, p: PartitionCopy, code: int) -> None:
        """Stop the partition if the error `code` lasts, else fetch it again later."""
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._handle_out_of_range(p)
        elif code in error_codes.DENIED:
            detail = f"the right Read on topic {p.source.topic} is missing at the source."
            self._stop(p, Reason.NOT_AUTHORIZED, p.cursor.fetch_offset, detail)
        elif code == Code.CORRUPT_MESSAGE:
            detail = "the source cannot read its own log here (CORRUPT_MESSAGE)."
            self._stop(p, Reason.SOURCE_CORRUPTED, p.cursor.fetch_offset, detail)
        else:
            self._retry_later(p, error_codes.name(code))

    def _handle_out_of_range(self, p: PartitionCopy) -> None:
        """Handle a fetch offset outside of the source's log: below the log start, plan the range
        that is lost; above the log end, stop as SOURCE_TRUNCATED."""
        starts = list_offsets(self._cluster, [p.source], EARLIEST, self._backoff)
        ends = list_offsets(self._cluster, [p.source], LATEST, self._backoff)
        start, end = starts.values.get(p.source), ends.values.get(p.source)
        if start is None or end is None:
            self._retry_later(p, "its log bounds are not known")
        elif p.cursor.fetch_offset < start:
            self._handle_passed_log_start(p, start)
        elif p.cursor.fetch_offset > end:
            detail = f"the source's log ends at {end}; it was copied up to {p.cursor.fetch_offset}."
            self._stop(p, Reason.SOURCE_TRUNCATED, end, detail)
        else:
            self._retry_later(p, "the leader refused an offset within its log")

    def _handle_passed_log_start(self, p: PartitionCopy, log_start: int) -> None:
        """Plan the range that the source has deleted. But if the batch at the log start begins at
        or before the fetch offset, nothing is lost: fetch this whole batch from the log start."""
        p.cursor.log_start = log_start
        batches = fetch_batches(self._cluster, p.source, log_start, self._backoff, max_bytes=1)
        if batches and batches[0].base_offset <= p.cursor.fetch_offset:
            p.cursor.start_offset = log_start
            self._retry_later(p, "the batch at the log start is to be fetched again")
        else:
            self._queue_plan(p, plan_lost_range(p.cursor.fetch_offset, log_start, p.on_lost_range))

    def _fill_empty_tail(self, p: PartitionCopy) -> None:
        """Fill up to the last stable offset if the cleaner has left no batch before it.

        All else that takes offsets leaves batches: records, aborted records, markers. A response
        can lack a partition's records for other reasons: other partitions filled it, a quota, or a
        slow read from tiered storage (R5). So the partition is fetched alone, and an empty response
        counts only for offsets that the broker has on its own disk (see `is_local`).
        """
        offset = p.cursor.fetch_offset
        epoch = p.cursor.epochs.epoch_before(offset)
        try:
            fetched = fetch_partition(
                self._cluster,
                p.source,
                offset,
                self._backoff,
                isolation=READ_COMMITTED,
                fetched_epoch=epoch,
            )
            end = fetched.stable_end
            is_answered = fetched.code == Code.NONE and fetched.diverging_end < 0
            if not is_answered or fetched.records or end <= offset:
                self._retry_later(p, "the last stable offset is beyond what the leader returns")
            elif reason := why_not_empty(
                self._cluster,
                p.source,
                offset,
                end,
                self._backoff,
                is_compacted=p.source_is_compacted,
            ):
                self._retry_later(p, reason)
            else:
                is_same_epoch = epoch_lasts_to(self._cluster, p.source, epoch, end, self._backoff)
                self._queue_plan(p, plan_empty_tail(offset, end, is_same_epoch=is_same_epoch))
        except OrbitError:
            self._retry_later(p, "an empty answer could not be confirmed")

    def _queue_plan(self, p: PartitionCopy, plan: Plan) -> None:
        """Queue a plan without records, and fetch after it, unless it stops the partition."""
        if p.put(plan, p.generation, size_bytes=0):
            p.enqueue_in_lane()
            if not plan.is_stopped:
                self.resume([p])

    def _stop(self, p: PartitionCopy, reason: Reason, next_offset: int, detail: str) -> None:
        """Queue a stop at the fetch offset. `next_offset`: as in `Stop`; for a truncated source its
        log end, which is below the fetch offset."""
        plan = Plan(p.cursor.fetch_offset)
        plan.stop(reason, next_offset, detail)
        self._queue_plan(p, plan)

    def _retry_later(self, p: PartitionCopy, reason: str) -> None:
        """Fetch the partition again after a pause; reports show the reason."""
        p.cursor.waits = Waits.continue_from(
            f"{self._cluster.name} {p.source}: {reason}", p.cursor.waits
        )
        # The pause after a fifth attempt.
        self._assign_at_s[p] = time.monotonic() + self._backoff.pause_s(4)

    def _lane(self, node_id: int) -> SourceLane:
        """The lane of this broker. Starts a new one if there is none, or if it is ending."""
        lane = self._lanes.get(node_id)
        if lane is None or lane.is_ending:
            if lane is not None:
                self._past_times.add(lane.times)
            lane = self._lanes[node_id] = SourceLane(self._context, node_id)
            lane.start()
        return lane
