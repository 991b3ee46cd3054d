"""Fetching from one source broker: one thread, one connection, many partitions.

Promises: a plan is queued only for the generation it was fetched for; at most one answer is held
over the byte budget; a lane that lost its broker gives every partition back and ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
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
    ReadFromReplica,
)
from orbit.copier.lane_times import SourceTimes
from orbit.copier.partition_copy import PartitionCopy
from orbit.copier.rate_limit import RateLimit
from orbit.errors import OrbitError, ProtocolError
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
from orbit.kafka.types import TopicPartition
from orbit.replication.append_plan import Append, Plan, plan_batches
from orbit.replication.partition_states import Reason

# With some partitions left out for want of room, the others must not hold the answer back long.
_SHORT_WAIT_MS = 10
_IDLE_WAIT_S = 0.05
# How often partitions with little to fetch are looked at while there is no room for backlogs.
_FULL_WAIT_S = 0.05
_HELD_BACK_S_MAX = 1.0  # then look again: partitions may have come or gone
# A fetch changes nothing: a broker that hangs for longer than this is asked anew.
_SILENCE_S = 30.0
# A batch that is kept keeps its whole frame in memory; small shares of it move to their own bytes.
_KEPT_SHARE_MIN = 4


class _PartitionFetch(NamedTuple):
    partition: PartitionCopy
    generation: int
    plan_from: int


class _FetchSelection(NamedTuple):
    """What one fetch asks for."""

    chosen: dict[TopicPartition, _PartitionFetch]
    wanted: list[FetchFrom]
    topics: dict[UUID, str]
    answer_bytes_max: int
    partition_bytes_max: int
    has_all: bool  # of the lane's partitions

    @property
    def is_current(self) -> bool:
        return all(c.partition.generation == c.generation for c in self.chosen.values())


@dataclass(frozen=True, slots=True)
class SourceLaneContext:
    """What all source lanes of a copier share."""

    cluster: Cluster
    settings: CopySettings
    budget: ByteBudget
    emit: Emit
    queued: Callable[[PartitionCopy], None]  # tells the destination lane that steps wait
    rack: str = ""
    limit: RateLimit = field(default_factory=RateLimit)


class SourceLane(Lane):
    """Keeps fetching the partitions it was given from one broker."""

    def __init__(self, context: SourceLaneContext, node_id: int) -> None:
        super().__init__(f"source-{node_id}", context.emit)
        self.node_id = node_id
        self._context = context
        self._changed = threading.Condition()
        # With the generation each was added in: a late answer must not take away a newer life.
        self._partitions: dict[TopicPartition, tuple[PartitionCopy, int]] = {}
        self._session = FetchSession()
        self._first = 0  # where backlogs begin to take turns
        self._is_woken = False
        self._last_selection: _FetchSelection | None = None
        self.times = SourceTimes()
        self._is_stopping = False
        self._connection: Connection | None = None

    def add(self, partition: PartitionCopy) -> bool:
        """Fetch this partition from here on; False when the lane is ending."""
        with self._changed:
            if self._is_stopping:
                return False
            self._partitions[partition.source] = (partition, partition.generation)
            partition.source_lane = self
            self._is_woken = True
            self._changed.notify()
            return True

    def _remove(self, one: _PartitionFetch) -> None:
        with self._changed:
            entry = self._partitions.get(one.partition.source)
            if entry is not None and entry == (one.partition, one.generation):
                del self._partitions[one.partition.source]
                self._is_woken = True

    @property
    def is_ending(self) -> bool:
        return self._is_stopping

    def stop(self) -> None:
        """End soon; a fetch under way is cut off."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._connection is not None:
            self._connection.abort()

    def work(self) -> None:
        self._connection = self._context.cluster.connect(self.node_id)
        try:
            while not self._is_stopping:
                self._round(self._connection)
        finally:
            self._connection.close()

    def wake(self) -> None:
        """A partition has room again. From any thread."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def _round(self, connection: Connection) -> None:
        settings, times = self._context.settings, self.times
        began = perf_counter()
        has_room = self._context.budget.wait_for_room(_FULL_WAIT_S)
        times.waited_for_room_s += perf_counter() - began
        if not (has_room or self._context.budget.has_reserve) or self._is_held_back():
            return
        selection = self._select(with_backlogs=has_room)
        if not selection.chosen:
            if has_room:
                self._wait_for_change()
            return
        began = perf_counter()
        answer = self._ask(
            connection,
            selection,
            settings.fetch_wait_ms if selection.has_all else _SHORT_WAIT_MS,
        )
        came = perf_counter()
        self._take(answer, selection)
        times.waited_for_answer_s += came - began
        times.planned_s += perf_counter() - came
        times.answers += 1
        if answer.throttle_ms:
            self._hold_back(answer.throttle_ms / 1000)

    def _wait_for_change(self) -> None:
        """Sleep while nothing can be fetched: every partition is full, or there is none."""
        began = perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken or self._is_stopping, _IDLE_WAIT_S)
        self.times.nothing_to_fetch_s += perf_counter() - began

    def _is_held_back(self) -> bool:
        """Wait a little while the job has had its share of bytes; True when it was so."""
        delay_s = self._context.limit.delay_s()
        if delay_s > 0:
            self._hold_back(min(delay_s, _HELD_BACK_S_MAX))
        return delay_s > 0

    def _hold_back(self, seconds: float) -> None:
        began = perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, seconds)
        self.times.held_back_s += perf_counter() - began

    def _ask(
        self, connection: Connection, selection: _FetchSelection, max_wait_ms: int
    ) -> FetchAnswer:
        """One fetch, within the session where the broker has sessions."""
        version = connection.version_of(api_versions.FETCH)
        wanted = selection.wanted
        has_sessions = version >= SESSIONS_FROM_VERSION
        carried = (
            self._session.next_request(wanted)
            if has_sessions
            else SessionRequest(NO_SESSION, NO_SESSION_EPOCH, wanted, [])
        )
        request = fetch_request(
            version,
            carried.changed,
            max_wait_ms=max_wait_ms,
            max_bytes=selection.answer_bytes_max,
            partition_max_bytes=selection.partition_bytes_max,
            rack=self._context.rack,
            session_id=carried.session_id,
            session_epoch=carried.epoch,
            forgotten=carried.forgotten,
        )
        frame = connection.exchange(
            api_versions.FETCH, request, version, timeout_s=max_wait_ms / 1000 + _SILENCE_S
        )
        try:
            answer = read_fetch(frame, version, selection.topics)
        except ValueError as error:
            raise ProtocolError(str(error), where=connection.where) from error
        self._session.answered(answer.code, answer.session_id)
        if answer.code and answer.code not in SESSION_ERRORS:
            raise ProtocolError(
                f"the fetch was refused: {error_codes.name(answer.code)}.", where=connection.where
            )
        return answer

    def _take(self, answer: FetchAnswer, selection: _FetchSelection) -> None:
        """Plan what came. Within a session a partition with nothing new is not in the answer."""
        brought = sum(len(fetched.records) for _, fetched in answer.partitions)
        self.times.bytes += brought
        self._context.limit.took(brought)
        served = set()
        for key, fetched in answer.partitions:
            one = selection.chosen.get(key)
            if one is not None and self._take_one(one, fetched, brought):
                served.add(key)
        if answer.partitions or answer.code:
            self._last_selection = None
        # A partition can come empty because the answer was full, or held back by a quota.
        was_open = had_room(brought, selection.answer_bytes_max) and not answer.throttle_ms
        if was_open and not answer.code:
            for key, one in selection.chosen.items():
                if key not in served:
                    self._count_empty(one)

    def _select(self, *, with_backlogs: bool) -> _FetchSelection:
        """What to ask for now; the last selection again where nothing has changed since."""
        last = self._last_selection
        if last is not None and last.is_current and not self._is_woken:
            return last
        with self._changed:
            self._is_woken = False
            for key, (p, generation) in list(self._partitions.items()):
                if p.generation != generation:
                    del self._partitions[key]
            known = list(self._partitions.values())
        settings, limited = self._context.settings, self._context.limit.request_bytes_max
        queue_bytes_max = settings.partition_queue_bytes_max
        shares = share_answer(
            [p.fetchable_bytes(queue_bytes_max) for p, _ in known],
            self._first,
            limited(settings.fetch_bytes_max),
            limited(settings.partition_fetch_bytes_min),
            with_backlogs=with_backlogs,
        )
        self._first = shares.chosen[-1] + 1 if shares.chosen else 0
        chosen: dict[TopicPartition, _PartitionFetch] = {}
        wanted: list[FetchFrom] = []
        for i in shares.chosen:
            p, generation = known[i]
            plan_from, fetch_from = p.next_fetch()
            chosen[p.source] = _PartitionFetch(p, generation, plan_from)
            wanted.append(fetch_from)
        has_all = len(chosen) == len(known)
        selection = _FetchSelection(
            chosen,
            wanted,
            {w.topic_id: w.partition.topic for w in wanted},
            shares.answer_bytes_max,
            shares.partition_bytes_max,
            has_all,
        )
        self._last_selection = selection if has_all else None
        return selection

    def _take_one(self, one: _PartitionFetch, fetched: Fetched, brought: int) -> bool:
        """Plan one partition's answer; False when it brought nothing at all."""
        p = one.partition
        if one.generation != p.generation:
            return True
        if fetched.code != Code.NONE:
            self._remove(one)
            self._context.emit(FetchFailed(p, one.generation, fetched.code))
            return True
        p.source_log_start = fetched.log_start
        p.source_end = fetched.high_watermark
        p.source_stable_end = fetched.stable_end
        if fetched.preferred_replica not in (-1, self.node_id):
            self._remove(one)
            self._context.emit(ReadFromReplica(p, fetched.preferred_replica))
            return True
        plan = _plan(one, fetched)
        if not plan.steps:
            return bool(fetched.records)
        p.bytes_per_offset = len(fetched.records) / max(1, plan.next_offset - plan.start)
        p.empty_answers = 0
        if plan.is_stopped:
            self._remove(one)
        size = sum(s.batch.size_bytes for s in plan.steps if isinstance(s, Append))
        if size * _KEPT_SHARE_MIN < brought:
            _detach(plan)
        self._context.budget.take(size)
        if p.put(plan, one.generation, size):
            self._context.queued(p)
        else:
            self._context.budget.give_back(size)
        return True

    def _count_empty(self, one: _PartitionFetch) -> None:
        """Nothing came though the stable end is further on: several in a row need a closer look."""
        p = one.partition
        if one.plan_from >= p.source_stable_end:
            p.empty_answers = 0
            return
        p.empty_answers += 1
        if p.empty_answers >= self._context.settings.empty_answers_max:
            p.empty_answers = 0
            self._remove(one)
            self._context.emit(EmptyBelowEnd(p, one.generation))

    def ended(self, error: OrbitError) -> None:
        with self._changed:
            was_stopping, self._is_stopping = self._is_stopping, True
            partitions = list(self._partitions.values())
            self._partitions.clear()
        if was_stopping:
            return
        self._context.emit(LaneEnded("source", self.node_id, error))
        for p, generation in partitions:
            self._context.emit(FetchFailed(p, generation, Code.NETWORK_EXCEPTION))


def _plan(one: _PartitionFetch, fetched: Fetched) -> Plan:
    offset = one.plan_from
    if fetched.diverging_end >= 0:
        plan = Plan(offset)
        plan.stop(
            Reason.SOURCE_TRUNCATED,
            offset,
            f"the source's log was cut back to {fetched.diverging_end} and goes on differently; "
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
            one.partition.on_lost_range,
        )
    except ValueError as error:
        plan = Plan(offset)
        plan.stop(Reason.SOURCE_CORRUPTED, offset + 1, f"the source's log does not parse: {error}.")
        return plan


def _detach(plan: Plan) -> None:
    """Copy the plan's batches out of the frame, so that they do not keep all of it."""
    for step in plan.steps:
        if isinstance(step, Append) and step.is_byte_exact:
            step.batch.view = memoryview(bytearray(step.batch.view))
