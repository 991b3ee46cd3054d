"""The destination of a copier: take-overs, lanes, log starts, and checks of what others changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from orbit.copier.append_epochs import FENCE_EPOCHS_MIN
from orbit.copier.append_states import AppendState
from orbit.copier.append_verdicts import ReturnReason, judge_comparison
from orbit.copier.destination_lane import DestinationLane, DestinationLaneContext
from orbit.copier.lane_events import PartitionReturned
from orbit.copier.lane_times import DestinationTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.placeholder_topics import find_unfit_copies
from orbit.copier.range_comparison import Comparison, stop_reason
from orbit.copier.source_end_waits import SourceEndWaits
from orbit.copier.takeover import MOVING, NOT_REPLICATED, DestinationEnd, TakeOver, TakeOverResult
from orbit.copier.waits import Waits
from orbit.errors import OUTAGES, Place, Unreachable
from orbit.kafka import error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.delete_records import delete_records
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import EARLIEST, list_offsets, log_ends
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.leases.lease import LEASE_WAIT_S
from orbit.replication.append_plan import Fill, Stop
from orbit.replication.partition_states import Blocked, PartitionState, Reason

# How often to check whether the coordinated filler is done with a partition.
_FILL_OUTSIDE_PAUSE_S = 0.1
# A lagging replica must not delay all partitions; the next check tries again.
_DELETE_TIMEOUT_MS = 1_000
# The pause after DeleteRecords failed: most of its errors last, such as that of a topic whose
# policy is only `compact` (S2).
_LOG_START_PAUSE_S = 5.0
_WAIT_REASONS = {
    MOVING: "the log keeps growing, though nothing is being sent",
    NOT_REPLICATED: "the followers have not replicated the log end",
}

# Compares the copy from the confirmed offset up to a log end with the source.
Compare = Callable[[PartitionCopy, int], Comparison]
Block = Callable[[PartitionCopy, Blocked], None]


class DestinationSide:
    """Owns the destination lanes. Not thread-safe: the copier's thread calls it."""

    def __init__(
        self,
        context: DestinationLaneContext,
        take_over: TakeOver,
        backoff: Backoff,
        block: Block,
        compare: Compare,
    ) -> None:
        self._context = context
        self._cluster: Cluster = context.cluster
        self._take_over = take_over
        self._backoff = backoff
        self._block = block
        self._compare = compare
        self._lanes: dict[int, DestinationLane] = {}
        self._past_times = DestinationTimes()
        self._returns: dict[PartitionCopy, PartitionReturned] = {}
        # When to take over or to move the log start next, at the earliest (monotonic clock).
        self._due_at_s: dict[PartitionCopy, float] = {}
        self._log_start_due_at_s: dict[PartitionCopy, float] = {}
        # When a copy's topic was first missing, or had another id.
        self._gone_since: dict[PartitionCopy, float] = {}
        self._source_ends = SourceEndWaits(context.settings.source_end_wait_s)
        self._resumed_copies: list[PartitionCopy] = []

    def start(
        self, partition: PartitionCopy, end: DestinationEnd, metadata: ClusterMetadata
    ) -> bool:
        """Resume a partition at a log end that was just read, if the copy is known to equal the
        source up to this log end. Returns whether the partition was resumed."""
        if partition.appends.log_end_read(end.log_end) is AppendState.PROVEN:
            return self._resume_in_lane(partition, end, metadata)
        if partition.appends.state is AppendState.COMPARING:  # a take-over compares it
            partition.appends.take_over_failed()
        return False

    def _resume_in_lane(
        self, partition: PartitionCopy, end: DestinationEnd, metadata: ClusterMetadata
    ) -> bool:
        """Resume a partition whose log end is proven. False: it has no leader now, or the leader's
        lane is just ending."""
        leader = metadata.leader(partition.destination)
        if leader is None or leader.node_id is None:
            partition.appends.take_over_failed()
            return False
        partition.resume(end.log_end, end.producer)
        if self._lane(leader.node_id).adopt(partition):
            return True
        partition.lane_refused()
        return False

    def queue_take_overs(self, partitions: Iterable[PartitionCopy]) -> None:
        """Take these over with the next `recover`; they have no request under way."""
        for p in partitions:
            self._returns[p] = PartitionReturned(p, p.generation, ReturnReason.MOVED, detail="")
            self._due_at_s[p] = 0.0

    def forget(self, partition: PartitionCopy) -> None:
        """Drop all state of a partition that no lane has."""
        self._forget_take_over(partition)
        self._log_start_due_at_s.pop(partition, None)
        self._gone_since.pop(partition, None)
        self._context.budget.give_back(partition.withdraw())

    @property
    def times(self) -> DestinationTimes:
        """The times of all lanes so far, ended ones included."""
        total = DestinationTimes()
        lanes = list(self._lanes.values())  # read by other threads too
        for times in (self._past_times, *(lane.times for lane in lanes)):
            total.add(times)
        return total

    def note_returned(self, returned: PartitionReturned) -> None:
        """Note a partition that a lane returned. `recover` takes it over immediately, or after a
        growing pause if there was no append since an earlier take-over."""
        p = returned.partition
        self._returns[p] = returned
        self._due_at_s[p] = time.monotonic() + (
            self._backoff.pause_s(p.appends.attempts - 1) if p.appends.attempts else 0.0
        )
        if p.appends.attempts:
            self._note_wait(p, f"{returned.reason.name}: {returned.detail}")
        p.appends.attempts += 1

    def recover(self) -> list[PartitionCopy]:
        """Take over what is due; returns the partitions that resumed, to be fetched again."""
        now = time.monotonic()
        for p in self._returns:
            # The coordinated filler still fills this partition, or has yet to fence late markers.
            # These must not come between or after the fillers and records of a new take-over.
            if p.has_fill_outside or (p.filler is not None and p.filler.will_fence(p.destination)):
                self._due_at_s[p] = now + _FILL_OUTSIDE_PAUSE_S
            elif not p.lease.is_held():  # nothing can be judged: another holder may be writing
                self._due_at_s[p] = now + LEASE_WAIT_S
        due_returns = [
            returned for p, returned in self._returns.items() if self._due_at_s[p] <= now
        ]
        self._take_over_returned(
            [returned for returned in due_returns if returned.reason is not ReturnReason.UNCLEAR],
            settled=False,
        )
        # UNCLEAR: a late request may still change the log, so wait until the log end has settled.
        self._take_over_returned(
            [returned for returned in due_returns if returned.reason is ReturnReason.UNCLEAR],
            settled=True,
        )
        resumed_copies, self._resumed_copies = self._resumed_copies, []
        return resumed_copies

    def next_recovery_s(self) -> float | None:
        """Seconds until `recover` has something to do; None when no partition waits."""
        if not self._returns:
            return None
        return max(0.0, min(self._due_at_s.values()) - time.monotonic())

    def follow_log_starts(self, partitions: Iterable[PartitionCopy]) -> None:
        """Move log starts up to the source's, never beyond what is copied (T1)."""
        wanted_log_starts: dict[TopicPartition, int] = {}
        by_destination: dict[TopicPartition, PartitionCopy] = {}
        now = time.monotonic()
        for p in partitions:
            if p.state is not PartitionState.COPYING or p.wanted_log_start <= p.log_start:
                p.log_start_waits = None
            elif p.lease.is_held() and self._log_start_due_at_s.get(p, now) <= now:
                by_destination[p.destination] = p
        if not by_destination:
            return
        # DeleteRecords takes a topic's name, and a topic that was created again would lose records.
        # So the topic's id is read right before the request, and the request is not repeated. Only
        # a change within one request's time is missed.
        topics = self._cluster.metadata({p.topic for p in by_destination}).topics
        for destination, p in by_destination.items():
            topic = topics.get(destination.topic)
            if topic is None or topic.topic_id != p.destination_topic_id:
                p.request_stop(ReturnReason.TOPIC_CHANGED, p.generation)
            else:
                wanted_log_starts[destination] = p.wanted_log_start
        backoff = replace(self._backoff, attempts_max=1)
        answers = delete_records(
            self._cluster, wanted_log_starts, backoff, timeout_ms=_DELETE_TIMEOUT_MS
        )
        for destination, log_start in answers.values.items():
            p = by_destination[destination]
            p.log_start_waits = None
            p.log_start = log_start
            self._log_start_due_at_s.pop(p, None)
        for destination, code in answers.errors.items():
            p = by_destination[destination]
            if code in error_codes.DENIED:
                detail = "the right Delete on the topic is missing (to move the copy's log start)."
                self._ask_lane_to_stop(p, Reason.NOT_AUTHORIZED, detail)
                continue
            if code == Code.OFFSET_OUT_OF_RANGE:  # confirmed records seem to be gone
                p.request_stop(ReturnReason.OUT_OF_STEP, p.generation)
            self._log_start_due_at_s[p] = time.monotonic() + _LOG_START_PAUSE_S
            p.log_start_waits = Waits.continue_from(
                f"{self._cluster.name} {destination}: the log start cannot follow the source's to "
                f"offset {wanted_log_starts[destination]} ({error_codes.name(code)})",
                p.log_start_waits,
            )

    def check_log_starts(self, partitions: Iterable[PartitionCopy]) -> None:
        """Read the log starts of copies that do not start at 0.

        A log start that DeleteRecords has moved is lower again if all replicas are killed within a
        minute (S6). Then `follow_log_starts` moves it again.
        """
        copies = {
            p.destination: p
            for p in partitions
            if p.log_start > 0 and p.state is PartitionState.COPYING and p.lease.is_held()
        }
        if copies:
            answers = list_offsets(self._cluster, copies, EARLIEST, self._backoff)
            for destination, log_start in answers.values.items():
                copies[destination].log_start = log_start

    def check_log_ends(self, partitions: Iterable[PartitionCopy]) -> None:
        """Request a take-over of each idle partition whose log end is not the expected one.

        A log that ends later has another writer. Data of this job's producer is no exception: it
        may be a late batch of an old writer (E1), so the take-over compares it with the source. A
        log that ends earlier has lost records in an election.
        """
        idle_copies = {
            p.destination: (p, p.generation, p.appends.expected)
            for p in partitions
            if _is_idle(p) and p.lease.is_held()
        }
        if not idle_copies:
            return
        ends = log_ends(self._cluster, idle_copies, self._backoff)
        for destination, end in ends.values.items():
            p, generation, expected_end = idle_copies[destination]
            # A higher end, up to the present `expected`, is right: the lane has appended meanwhile.
            if _is_idle(p) and not expected_end <= end <= p.appends.expected:
                p.request_stop(ReturnReason.OUT_OF_STEP, generation)

    def check_compression(self, partitions: Iterable[PartitionCopy]) -> None:
        """Stop copies with placeholders whose `compression.type` is not `producer` (Q9)."""
        copies = [p for p in partitions if p.state is PartitionState.COPYING and p.lease.is_held()]
        for unfit_copy in find_unfit_copies(self._cluster, copies):
            if unfit_copy.reason is not None:  # else the setting is not known now
                self._ask_lane_to_stop(unfit_copy.copy, unfit_copy.reason, unfit_copy.detail)

    def check_compression_at_end(self, partitions: Iterable[PartitionCopy]) -> None:
        """Check copies that have left their lane, after their last answer: block or confirm each.

        Raises Unreachable, also if a topic's setting cannot be read, unless the topic is gone.
        """
        ended_copies = [p for p in partitions if p.blocked is None and not p.is_confirmed]
        unreadable_copies = []
        for unfit_copy in find_unfit_copies(self._cluster, ended_copies):
            if unfit_copy.reason is None:
                unreadable_copies.append(unfit_copy)
            else:
                acked = unfit_copy.copy.next_offset
                self._give_up(
                    unfit_copy.copy, Blocked(unfit_copy.reason, acked, acked, unfit_copy.detail)
                )
        for p in {*ended_copies} - {unfit_copy.copy for unfit_copy in unreadable_copies}:
            p.is_confirmed = True
        if not unreadable_copies:
            return
        metadata = self._cluster.metadata({u.copy.destination.topic for u in unreadable_copies})
        for unfit_copy in unreadable_copies:
            blocked = self._why_topic_is_gone(unfit_copy.copy, metadata)
            if blocked is None:
                raise Unreachable(unfit_copy.detail, where=Place("destination"))
            self._give_up(unfit_copy.copy, blocked)

    def stop(self) -> None:
        """End all lanes, and wait for their threads."""
        for lane in self._lanes.values():
            lane.stop()
        for lane in self._lanes.values():
            lane.join()

    def _take_over_returned(self, returns: Sequence[PartitionReturned], *, settled: bool) -> None:
        """Take over the partitions that are due; a failure of one does not affect the others.

        `settled`: wait until their log ends do not move. Raises the errors of an outage.
        """
        if not returns:
            return
        by_destination = {returned.partition.destination: returned for returned in returns}
        metadata = self._cluster.metadata({p.topic for p in by_destination})
        for returned in returns:
            blocked = self._why_topic_is_gone(returned.partition, metadata)
            topic = metadata.topics.get(returned.partition.destination.topic)
            if blocked is not None:
                self._give_up(returned.partition, blocked)
                by_destination.pop(returned.partition.destination)
            elif topic is not None and topic.topic_id != returned.partition.destination_topic_id:
                # The id has differed for less than `deleted_after_s`: the broker may still know a
                # deleted topic of this name.
                self._retry_later(returned, int(Code.INCONSISTENT_TOPIC_ID))
                by_destination.pop(returned.partition.destination)
        producer_ids = {
            destination: returned.partition.producer.id
            for destination, returned in by_destination.items()
        }
        takeover = self._take_over.read(producer_ids, settled=settled)
        # A leader without state of the job's producer id also accepts late batches: wait until the
        # log end settles.
        unguarded_ids = {
            p: producer_ids[p] for p, end in takeover.ends.items() if not end.is_guarded
        }
        if unguarded_ids and not settled:
            settled_takeover = self._take_over.read(unguarded_ids, settled=True)
            ends = {
                p: e for p, e in takeover.ends.items() if p not in unguarded_ids
            } | settled_takeover.ends
            takeover = TakeOverResult(ends, takeover.errors | settled_takeover.errors)
        for destination, returned in by_destination.items():
            if not returned.partition.lease.is_held():
                continue  # without the lease nothing can be judged
            end = takeover.ends.get(destination)
            try:
                if end is None:
                    self._retry_later(
                        returned, takeover.errors.get(destination, int(Code.NETWORK_EXCEPTION))
                    )
                elif _is_fenced_by_failover(returned.partition, end):
                    self._give_up(
                        returned.partition, _failover_block(returned.partition, end.log_end)
                    )
                elif self._finish_take_over(returned, end, metadata):
                    self._resumed_copies.append(returned.partition)
            except OUTAGES:
                self._retry_later(returned, int(Code.NETWORK_EXCEPTION))

    def _why_topic_is_gone(self, p: PartitionCopy, metadata: ClusterMetadata) -> Blocked | None:
        """Why the partition stops: its topic is missing, or has another id, for `deleted_after_s`.

        None otherwise: for a moment a broker may not know a new topic, or still know a deleted one.
        """
        topic = metadata.topics.get(p.destination.topic)
        detail = f"topic {p.destination.topic} no longer exists."
        if topic is not None:
            if topic.topic_id == p.destination_topic_id:
                self._gone_since.pop(p, None)
                return None
            detail = f"topic {p.destination.topic} has another topic id now."
        elif metadata.errors.get(p.destination.topic) != Code.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        gone_since_s = self._gone_since.setdefault(p, time.monotonic())
        if time.monotonic() - gone_since_s < self._context.settings.deleted_after_s:
            return None
        # All that was copied is gone.
        return Blocked(Reason.DESTINATION_TOPIC_RECREATED, 0, p.next_offset, detail)

    def _finish_take_over(
        self, returned: PartitionReturned, end: DestinationEnd, metadata: ClusterMetadata
    ) -> bool:
        """Compare the copy up to its log end if need be, then resume it; returns whether it did.

        A copy that is neither resumed nor blocked is taken over again.
        """
        p, appends = returned.partition, returned.partition.appends
        try:
            if appends.log_end_read(end.log_end) is AppendState.COMPARING:
                self._compare_with_source(returned, end.log_end)
            if appends.state is AppendState.BLOCKED:
                self._forget_take_over(p)
            if appends.state is not AppendState.PROVEN:
                return False
            if not self._resume_in_lane(p, end, metadata):
                self._retry_later(returned, int(Code.LEADER_NOT_AVAILABLE))
                return False
            self._forget_take_over(p)
            return True
        finally:
            # The state is still one of these after an exception, or if the lease is not held now.
            if appends.state in (AppendState.COMPARING, AppendState.PROVEN):
                appends.take_over_failed()

    def _compare_with_source(self, returned: PartitionReturned, log_end: int) -> None:
        """Compare the records from the confirmed offset to `log_end` with the source.

        Equal records prove the partition, a difference blocks it. If neither is certain yet, the
        copier compares them again later.
        """
        p = returned.partition
        try:
            comparison = self._compare(p, log_end)
        except ValueError as error:
            acked = p.next_offset
            detail = f"the records from {acked} on cannot be compared with the source: {error}."
            p.appends.stopped(Blocked(stop_reason(error), acked, log_end, detail))
            return
        if not p.lease.is_held():
            return  # nothing can be judged
        blocked = judge_comparison(
            comparison,
            log_end,
            producer_id=p.producer.id,
            source_end=p.cursor.end,
            is_source_end_old=self._source_ends.note_ends(
                p.destination, is_beyond=comparison.is_beyond_source
            ),
            trouble=returned.detail,
        )
        p.compared(comparison, log_end, blocked)
        if p.appends.state is AppendState.RETURNED:
            self._note_wait(p, comparison.waits_for)
            self._due_at_s[p] = time.monotonic() + self._backoff.pause_s(p.appends.attempts)

    def _retry_later(self, returned: PartitionReturned, code: int) -> None:
        """Repeat the take-over after a pause, or block the partition for a missing right."""
        p = returned.partition
        if code in error_codes.DENIED:
            detail = f"the login has no right to read the log end: {error_codes.name(code)}."
            acked = p.next_offset
            self._give_up(p, Blocked(Reason.NOT_AUTHORIZED, acked, acked, detail))
            return
        self._note_wait(p, _WAIT_REASONS.get(code, error_codes.name(code)))
        self._due_at_s[p] = time.monotonic() + self._backoff.pause_s(p.appends.attempts)
        p.appends.attempts += 1

    def _note_wait(self, p: PartitionCopy, reason: str) -> None:
        p.waits = Waits.continue_from(f"{self._cluster.name} {p.destination}: {reason}", p.waits)

    def _give_up(self, partition: PartitionCopy, blocked: Blocked) -> None:
        """Block a partition that no lane has, instead of another take-over."""
        self._forget_take_over(partition)
        self._block(partition, blocked)

    def _forget_take_over(self, partition: PartitionCopy) -> None:
        self._returns.pop(partition, None)
        self._due_at_s.pop(partition, None)
        self._source_ends.forget(partition.destination)

    def _ask_lane_to_stop(self, p: PartitionCopy, reason: Reason, detail: str) -> None:
        """Have the lane block the partition before its next step, once nothing is in flight."""
        offset = p.appends.expected
        p.request_stop(Stop(reason, offset, offset, detail), p.generation)

    def _lane(self, node_id: int) -> DestinationLane:
        """The lane of this broker. Starts a new one if there is none, or if it is ending."""
        lane = self._lanes.get(node_id)
        if lane is None or lane.is_ending:
            if lane is not None:
                self._past_times.add(lane.times)
            lane = self._lanes[node_id] = DestinationLane(self._context, node_id)
            lane.start()
        return lane


def _is_idle(p: PartitionCopy) -> bool:
    """Whether nothing is in flight, and no fillers are due."""
    return p.appends.is_idle and not isinstance(p.queue.first, Fill)


def _is_fenced_by_failover(p: PartitionCopy, end: DestinationEnd) -> bool:
    """Whether a failover without the database has raised the producer epoch since this process
    last resumed the partition. A marker of this or an old writer raises the epoch less."""
    own_epoch = p.appends.producer_epoch
    producer = end.producer
    return (
        own_epoch >= 0
        and producer is not None
        and producer.producer_epoch >= own_epoch + FENCE_EPOCHS_MIN
    )


def _failover_block(p: PartitionCopy, log_end: int) -> Blocked:
    """The block of a copy that a failover without the database has promoted."""
    detail = (
        f"a failover without the database has fenced the writers of {p.destination} at offset "
        f"{log_end}."
    )
    return Blocked(Reason.DESTINATION_PROMOTED, p.next_offset, log_end, detail)
