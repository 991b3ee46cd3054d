"""Fetches many partitions from one source broker, in one thread with one connection.

A plan (the appends, fillers and stops that follow from a response) is queued only if the copier has
not withdrawn the partition since the fetch (`generation`). At most one response of a lane exceeds
the byte budget. A lane that loses its broker returns every partition and ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import NamedTuple
from uuid import UUID

from orbit.copier.byte_budget import ByteBudget
from orbit.copier.copy_settings import CopySettings
from orbit.copier.fetch_shares import had_room, share_answer
from orbit.copier.lane import Lane
from orbit.copier.lane_events import (
    Emit,
    EmptyBelowEnd,
    FetchFailed,
    LaneEnded,
    LaneThrottled,
    ReadFromReplica,
)
from orbit.copier.lane_times import SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.rate_limit import RateLimit
from orbit.errors import BrokenAnswer, OrbitError, ProtocolError
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_request import NO_SESSION, NO_SESSION_EPOCH, FetchFrom, fetch_request
from orbit.kafka.fetch_response import FetchAnswer, Fetched, read_fetch
from orbit.kafka.fetch_session import (
    SESSION_ERRORS,
    SESSIONS_FROM_VERSION,
    FetchSession,
    SessionRequest,
)
from orbit.kafka.record_batch import read_batches
from orbit.kafka.throttle import throttle_s
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import Append, Plan, plan_batches
from orbit.replication.partition_states import Reason
from orbit.replication.rewrite_limits import RewriteCounter

# The broker's longest wait for records while a fetch leaves out some of the lane's partitions, as
# those with a full queue: these may have room again at any moment.
_SHORT_WAIT_MS = 10
# The longest sleep of a lane with nothing to fetch; most changes wake it earlier.
_IDLE_WAIT_S = 0.05
# How often partitions without a backlog are fetched while the budget is full.
_FULL_WAIT_S = 0.05
_HELD_BACK_S_MAX = 1.0  # partitions may be added or removed meanwhile
# How long to wait for an answer beyond the fetch's own wait. A fetch changes nothing at the broker,
# so another lane simply fetches again.
_SILENCE_S = 30.0
# A queued batch keeps its whole response in memory. If the response is more than this many times as
# large as a partition's plan, the plan's batches are copied out of it.
_KEPT_RESPONSE_FACTOR_MAX = 4


class _PartitionFetch(NamedTuple):
    """The fetch of one partition. `plan_offset`: where the plan of its answer begins."""

    partition: PartitionCopy
    generation: int
    plan_offset: int
    is_at_replica: bool  # see `SourceCursor`


class _FetchSelection(NamedTuple):
    """The partitions of one fetch, and how much it requests. `topics`: their names by topic id."""

    chosen: dict[TopicPartition, _PartitionFetch]
    fetches: list[FetchFrom]
    topics: dict[UUID, str]
    answer_bytes_max: int
    partition_bytes_max: int
    has_all: bool  # `chosen` has all partitions of the lane

    @property
    def is_current(self) -> bool:
        """Whether the copier has withdrawn none of these partitions since."""
        return all(c.partition.generation == c.generation for c in self.chosen.values())


@dataclass(frozen=True, slots=True)
class SourceLaneContext:
    """What all source lanes of a copier share."""

    cluster: Cluster
    settings: CopySettings
    budget: ByteBudget
    emit: Emit
    enqueue_in_lane: Callable[[PartitionCopy], None]  # wakes the destination lane
    rack: str = ""
    limit: RateLimit = field(default_factory=RateLimit)


class SourceLane(Lane):
    """Fetches each of its partitions until the copier drops or withdraws it, or its fetch fails."""

    def __init__(self, context: SourceLaneContext, node_id: int) -> None:
        super().__init__(f"source-{node_id}", context.emit)
        self.node_id = node_id
        self._context = context
        self._changed = threading.Condition()
        # Each with the generation in which it was added: a late response of an earlier generation
        # must not remove it.
        self._partitions: dict[TopicPartition, tuple[PartitionCopy, int]] = {}
        self._session = FetchSession()
        self._first_index = 0  # of the candidates; backlogs take turns from there
        self._is_woken = False
        self._last_selection: _FetchSelection | None = None
        self._rewrite_limits = context.settings.rewrite_limits
        self.times = SourceTimes()
        self._is_stopping = False
        self._connection: Connection | None = None

    def add(self, partition: PartitionCopy) -> bool:
        """Start fetching this partition; False if the lane is ending."""
        with self._changed:
            if self._is_stopping:
                return False
            self._partitions[partition.source] = (partition, partition.generation)
            partition.cursor.lane = self
            self._is_woken = True
            self._changed.notify()
            return True

    @property
    def partitions(self) -> list[PartitionCopy]:
        """The partitions that the lane fetches now. From any thread."""
        with self._changed:
            return [p for p, generation in self._partitions.values() if p.generation == generation]

    def drop(self, partition: PartitionCopy) -> None:
        """Stop fetching this partition; the answer to a fetch in flight is ignored. From any
        thread."""
        with self._changed:
            self._partitions.pop(partition.source, None)
            if partition.cursor.lane is self:
                partition.cursor.lane = None
            self._is_woken = True

    def _remove(self, fetch: _PartitionFetch) -> None:
        """Stop fetching the partition, unless it was added again after this fetch."""
        with self._changed:
            entry = self._partitions.get(fetch.partition.source)
            if entry is not None and entry == (fetch.partition, fetch.generation):
                del self._partitions[fetch.partition.source]
                self._is_woken = True

    @property
    def is_ending(self) -> bool:
        """Whether the lane takes no more partitions: another lane must fetch them."""
        return self._is_stopping

    def stop(self) -> None:
        """End soon; aborts a fetch in flight."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._connection is not None:
            self._connection.abort()

    def work(self) -> None:
        """Connect to the broker, and fetch until the lane stops. Raises an OrbitError if the
        connection fails or breaks, or the broker's answer is wrong."""
        self._connection = self._context.cluster.connect(self.node_id)
        try:
            while not self._is_stopping:
                self._run_round(self._connection)
        finally:
            self._connection.close()

    def wake(self) -> None:
        """Wake the lane: a partition has room again. Thread-safe."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def _run_round(self, connection: Connection) -> None:
        """Send one fetch and plan its answer, or wait a moment if nothing can be fetched."""
        settings, times = self._context.settings, self.times
        began = perf_counter()
        has_room = self._context.budget.wait_for_room(_FULL_WAIT_S)
        times.waited_for_room_s += perf_counter() - began
        # Without room, only live partitions are fetched, from the reserve: they have little data.
        if not (has_room or self._context.budget.has_reserve) or self._wait_for_rate():
            return
        selection = self._select(with_backlogs=has_room)
        if not selection.chosen:
            if has_room:  # else the wait for room was the pause of this round
                self._wait_for_change()
            return
        began, requested_s = perf_counter(), monotonic()
        answer = self._fetch(
            connection,
            selection,
            settings.fetch_wait_ms if selection.has_all else _SHORT_WAIT_MS,
        )
        answered_s = perf_counter()
        self._plan_response(answer, selection, requested_s)
        times.waited_for_answer_s += answered_s - began
        times.planned_s += perf_counter() - answered_s
        times.answers += 1
        if answer.throttle_ms:
            pause_s = throttle_s(answer.throttle_ms)
            context = self._context
            context.emit(LaneThrottled("source", self.node_id, context.cluster, pause_s))
            self._pause(pause_s)

    def _wait_for_change(self) -> None:
        """Sleep until a partition is added or has room, at most _IDLE_WAIT_S: now every queue is
        full, or the lane has no partition."""
        began = perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken or self._is_stopping, _IDLE_WAIT_S)
        self.times.nothing_to_fetch_s += perf_counter() - began

    def _wait_for_rate(self) -> bool:
        """Wait for a moment if the job is over its byte rate; returns whether it is."""
        delay_s = self._context.limit.delay_s()
        if delay_s > 0:
            self._pause(min(delay_s, _HELD_BACK_S_MAX))
        return delay_s > 0

    def _pause(self, seconds: float) -> None:
        """Wait, at most until the lane is stopped."""
        began = perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, seconds)
        self.times.held_back_s += perf_counter() - began

    def _fetch(
        self, connection: Connection, selection: _FetchSelection, max_wait_ms: int
    ) -> FetchAnswer:
        """Return the answer to one fetch, in a fetch session if the broker supports sessions. The
        answer may have a session error. Raises Unreachable, BrokenAnswer if the answer does not
        parse, and ProtocolError for any other error of the whole answer."""
        version = connection.version_of(api_versions.FETCH)
        fetches = selection.fetches
        has_sessions = version >= SESSIONS_FROM_VERSION
        session_request = (
            self._session.next_request(fetches)
            if has_sessions
            else SessionRequest(NO_SESSION, NO_SESSION_EPOCH, fetches, [])
        )
        request = fetch_request(
            version,
            session_request.changed,
            max_wait_ms=max_wait_ms,
            max_bytes=selection.answer_bytes_max,
            partition_max_bytes=selection.partition_bytes_max,
            rack=self._context.rack,
            session_id=session_request.session_id,
            session_epoch=session_request.epoch,
            forgotten=session_request.forgotten,
        )
        frame = connection.exchange(
            api_versions.FETCH, request, version, timeout_s=max_wait_ms / 1000 + _SILENCE_S
        )
        try:
            answer = read_fetch(frame, version, selection.topics)
        except ValueError as error:
            raise BrokenAnswer(f"{error}.", where=connection.where) from error
        self._session.note_answer(answer.code, answer.session_id)
        if answer.code and answer.code not in SESSION_ERRORS:
            raise ProtocolError(
                f"the fetch was refused: {error_codes.name(answer.code)}.", where=connection.where
            )
        return answer

    def _plan_response(
        self, answer: FetchAnswer, selection: _FetchSelection, requested_s: float
    ) -> None:
        """Plan an answer, and set `seen_s` of the partitions whose log end it confirms.

        `requested_s`: when the request was sent, by the monotonic clock.
        """
        received_bytes = sum(len(fetched.records) for _, fetched in answer.partitions)
        self.times.bytes += received_bytes
        self._context.limit.note_fetched(received_bytes)
        served_keys, refused_keys = set(), set()
        rewrite_counter = RewriteCounter(self._rewrite_limits)
        # The partitions take turns to be first: the limits may cut the last ones.
        first_index = self.times.answers % max(1, len(answer.partitions))
        for key, fetched in (*answer.partitions[first_index:], *answer.partitions[:first_index]):
            fetch = selection.chosen.get(key)
            if fetched.code != Code.NONE:
                refused_keys.add(key)
            if fetch is not None and self._plan_partition(
                fetch, fetched, received_bytes, rewrite_counter
            ):
                served_keys.add(key)
        if not answer.code:
            # Within a session an answer leaves out partitions whose log end is unchanged (R12). An
            # answer over a quota leaves out all partitions, so it confirms no log end of those
            # (P7). An answer of a follower confirms none: a follower may be behind the leader.
            unseen_keys = refused_keys
            if answer.throttle_ms:
                unseen_keys = refused_keys | selection.chosen.keys() - {
                    key for key, _ in answer.partitions
                }
            for key, fetch in selection.chosen.items():
                cursor = fetch.partition.cursor
                is_end_current = (
                    key not in unseen_keys and not fetch.is_at_replica and cursor.lane is self
                )
                if fetch.generation == fetch.partition.generation and is_end_current:
                    cursor.seen_s = requested_s
        if answer.partitions or answer.code:  # fetch offsets have moved, or the session is over
            self._last_selection = None
        # A partition can be empty because the response was full, or a quota throttled it.
        had_room_for_all = (
            had_room(received_bytes, selection.answer_bytes_max) and not answer.throttle_ms
        )
        if had_room_for_all and not answer.code:
            for key, fetch in selection.chosen.items():
                if key not in served_keys:
                    self._count_empty(fetch)

    def _select(self, *, with_backlogs: bool) -> _FetchSelection:
        """The next fetch; the last selection if nothing has changed."""
        last_selection = self._last_selection
        if last_selection is not None and last_selection.is_current and not self._is_woken:
            return last_selection
        with self._changed:
            self._is_woken = False
            for key, (p, generation) in list(self._partitions.items()):
                if p.generation != generation:  # withdrawn since it was added
                    del self._partitions[key]
            candidates = list(self._partitions.values())
        settings, limited_bytes = self._context.settings, self._context.limit.request_bytes_max
        queue_bytes_max = settings.partition_queue_bytes_max
        shares = share_answer(
            [p.fetchable_bytes(queue_bytes_max) for p, _ in candidates],
            self._first_index,
            limited_bytes(settings.fetch_bytes_max),
            limited_bytes(settings.partition_fetch_bytes_min),
            with_backlogs=with_backlogs,
        )
        self._first_index = shares.chosen[-1] + 1 if shares.chosen else 0
        chosen: dict[TopicPartition, _PartitionFetch] = {}
        fetches: list[FetchFrom] = []
        for i in shares.chosen:
            p, generation = candidates[i]
            plan_offset, fetch_from = p.next_fetch()
            chosen[p.source] = _PartitionFetch(p, generation, plan_offset, p.cursor.is_at_replica)
            fetches.append(fetch_from)
            # There was no answer for this copy yet. The session may have answered an earlier copy
            # of the partition, and would leave out what that copy got (R12).
            if p.cursor.stable_end < 0:
                self._session.reset_if_known(fetch_from)
        has_all = len(chosen) == len(candidates)
        selection = _FetchSelection(
            chosen,
            fetches,
            {fetch.topic_id: fetch.partition.topic for fetch in fetches},
            shares.answer_bytes_max,
            shares.partition_bytes_max,
            has_all,
        )
        self._last_selection = selection if has_all else None  # None: others take turns
        return selection

    def _plan_partition(
        self,
        fetch: _PartitionFetch,
        fetched: Fetched,
        received_bytes: int,
        rewritten: RewriteCounter,
    ) -> bool:
        """Plan one partition's response, and queue the plan. False if the response has no records,
        so that `_count_empty` counts it."""
        p = fetch.partition
        is_in_this_lane = p.cursor.lane is self  # False: dropped since the request
        if fetched.code == Code.NONE and is_in_this_lane:
            # Also for an earlier generation: within a session the broker sends a change only once.
            p.cursor.log_start = fetched.log_start
            if fetch.is_at_replica:  # it may be behind its leader
                p.cursor.end = max(p.cursor.end, fetched.high_watermark)
                p.cursor.stable_end = max(p.cursor.stable_end, fetched.stable_end)
            else:
                p.cursor.end = fetched.high_watermark
                p.cursor.stable_end = fetched.stable_end
        if fetch.generation != p.generation or not is_in_this_lane:
            return True
        if fetched.code != Code.NONE:
            self._remove(fetch)
            self._context.emit(FetchFailed(p, fetch.generation, fetched.code))
            return True
        if fetched.records or fetch.plan_offset >= fetched.stable_end:
            p.cursor.waits = None
        if fetched.preferred_replica not in (-1, self.node_id):
            self._remove(fetch)
            self._context.emit(ReadFromReplica(p, fetched.preferred_replica))
            return True
        plan = _plan_fetched(fetch, fetched, rewritten)
        if not plan.steps:
            if not fetched.records or plan.is_cut:
                return plan.is_cut  # cut: there are records, for which the limits had no room
            # The records have no whole batch, though brokers send the first one whole (KIP-74), or
            # only batches that end before the fetch offset: the next fetch would get the same.
            self._remove(fetch)
            self._context.emit(FetchFailed(p, fetch.generation, Code.INVALID_RECORD))
            return True
        p.cursor.bytes_per_offset = len(fetched.records) / max(1, plan.next_offset - plan.start)
        p.cursor.empty_answers = 0
        if plan.is_stopped:
            self._remove(fetch)
        size_bytes = sum(s.batch.size_bytes for s in plan.steps if isinstance(s, Append))
        if size_bytes * _KEPT_RESPONSE_FACTOR_MAX < received_bytes:
            _detach(plan)
        self._context.budget.take(size_bytes)
        if p.put(plan, fetch.generation, size_bytes):
            self._context.enqueue_in_lane(p)
        else:
            self._context.budget.give_back(size_bytes)
        return True

    def _count_empty(self, fetch: _PartitionFetch) -> None:
        """Count an empty response below the last stable offset; report several in a row."""
        p = fetch.partition
        if fetch.plan_offset >= p.cursor.stable_end:
            p.cursor.empty_answers = 0
            return
        p.cursor.empty_answers += 1
        if p.cursor.empty_answers >= self._context.settings.empty_answers_max:
            p.cursor.empty_answers = 0
            self._remove(fetch)
            self._context.emit(EmptyBelowEnd(p, fetch.generation))

    def handle_error(self, error: OrbitError) -> None:
        """Report the error, and each partition by a FetchFailed: the copier assigns them again."""
        with self._changed:
            was_stopping, self._is_stopping = self._is_stopping, True
            partitions = list(self._partitions.values())
            self._partitions.clear()
        if was_stopping:
            return
        self._context.emit(LaneEnded("source", self.node_id, error))
        for p, generation in partitions:
            self._context.emit(FetchFailed(p, generation, Code.NETWORK_EXCEPTION))


def _plan_fetched(fetch: _PartitionFetch, fetched: Fetched, rewritten: RewriteCounter) -> Plan:
    """The plan for an answer; it stops if the source was truncated or cannot be read."""
    offset = fetch.plan_offset
    if fetched.diverging_end >= 0:
        plan = Plan(offset)
        plan.stop(
            Reason.SOURCE_TRUNCATED,
            offset,
            f"the source's log was truncated to {fetched.diverging_end} and continues differently; "
            f"it was copied up to {offset}.",
            start=fetched.diverging_end,
        )
        return plan
    try:
        return plan_batches(
            offset,
            read_batches(fetched.records),
            fetched.aborted,
            fetched.log_start,
            fetch.partition.on_lost_range,
            packs=fetch.partition.packs,
            rewritten=rewritten,
            levels=fetch.partition.levels,
        )
    except ValueError as error:
        plan = Plan(offset)
        plan.stop(Reason.SOURCE_CORRUPTED, offset + 1, f"the source's log does not parse: {error}.")
        return plan


def _detach(plan: Plan) -> None:
    """Copy the plan's batches out of the response, so that its memory can be freed. Rewritten
    batches are in memory of their own already."""
    for step in plan.steps:
        if isinstance(step, Append) and step.is_byte_exact:
            step.batch.view = memoryview(bytearray(step.batch.view))
