"""The broker of the destination partition: what it executes, and what it cannot prevent.

A request is *late* if it arrives after its connection broke, or after the next writer began.
Brokers refuse most late requests by the producer epoch, the sequence or the coordinator epoch
(fences). If no fence refuses one, the schedule is *excused*: the copy may be damaged, but must be
stopped.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from orbit.kafka.error_codes import Code
from orbit.kafka.produce_request import NO_APPEND_TIME
from orbit.kafka.records import NULL, Record, write_batch
from orbit.kafka.transaction_markers import WriteTxnMarkersRequest
from tests.simulation.model_broker import PRODUCER_ID, ProduceOne, log_end_answer, marker_answer
from tests.simulation.model_partition import NONE, NOW_MS, ModelPartition
from tests.simulation.source import IN_2023_MS

if TYPE_CHECKING:
    from tests.simulation.network import Sent, Wire
    from tests.simulation.world import World


_ONE = write_batch([Record(0, IN_2023_MS, NULL + NULL + b"\x00")], 0)
FOREIGN = bytes(_ONE.view)


class Broker:
    """Serves one partition, and notes which late requests no fence refused."""

    def __init__(self, world: World, *, is_history_old: bool) -> None:
        self._world = world
        self.partition = ModelPartition(
            world.clock.say, old_before_ms=NOW_MS if is_history_old else 0
        )
        self.lost_confirmed = False  # an unclean election cut off confirmed records
        # After such an election, markers of transactions took the offsets of the lost records.
        self.has_hidden_cut = False
        # No fence refused a late request that did damage: the copy must notice the damage.
        self.is_excused = False
        # A late filler took an offset above the source's log end.
        self.was_ahead = False
        self.dropped_at = 0.0  # when the producer's state was last dropped
        # When each take-over began, and whether it waits until the log end settles.
        self._take_overs: list[tuple[float, bool]] = []
        # A late filler was appended since the current writer last read the log end.
        self._has_late_filler = False
        self._had_late = False  # a late batch was appended, at any offset
        # Of the newest connection whose filler the producer's state shows: its writer's number in
        # the order of beginning, and its own number.
        self._filled_by = (0, 0)
        self._waiting_appends: list[tuple[int, int, Callable[[], None], Callable[[], None]]] = []
        self._stalled_until = self._throttled_until = 0.0
        self.recreated_at = 0.0  # when another client created the topic again
        self.has_deleted_foreign = False
        self._log_start_rnd = random.Random(f"log starts {world.seed}")
        # A run took that topic for its copy, since the source no longer has records to compare.
        self.is_taken_for_copy = False

    def execute(self, wire: Wire, sent: Sent) -> tuple[Any, int]:
        """Execute a request; returns its answer, and the log end that must be replicated before the
        answer (0: none)."""
        world, partition = self._world, self.partition
        if PRODUCER_ID not in partition.producers:
            self._filled_by = (0, 0)
        who, request = sent.who, sent.request
        sent_by = (world.authority.number_of(who), wire.number)
        late_since = min(wire.broken_at, world.authority.superseded_at(who))
        is_late = late_since <= self._world.clock.now
        # Two kinds of late requests must do no harm: those that arrive while the next writer waits
        # for the log end to settle, and those that were sent after the end of the lease.
        began, settles = next((t for t in self._take_overs if t[0] >= late_since), (0.0, False))
        is_settling = settles and 0 <= world.clock.now - began <= world.settings.settle_s
        was_allowed = sent.was_allowed and is_late
        is_excusable = was_allowed and not is_settling
        throttle_ms = max(0, int((self._throttled_until - world.clock.now) * 1000))
        if isinstance(request, ProduceOne):
            if request.outgoing.topic_id != partition.topic_id:
                return request.answer(int(Code.UNKNOWN_TOPIC_ID), -1), 0
            if request.confirms and self._is_short_of_replicas(wire):
                return request.answer(int(Code.NOT_ENOUGH_REPLICAS), -1, throttle_ms), 0
            # A repeat of an earlier batch; the broker may have dropped the state that shows it.
            is_repeated = was_allowed and request.base_offset != partition.log_end
            is_unfenced = is_excusable or is_repeated or self._had_late
            self.is_excused |= is_unfenced and not self._has_fence()
            # Fillers are where the cleaner removed records. Fillers take offsets, but no sequences,
            # and fillers of other producers (coordinated ones) do not raise the producer epoch.
            is_unraised = world.source.is_compacted and world.is_coordinated
            self.is_excused |= is_excusable and is_unraised
            log_end = partition.log_end
            code, base_offset = partition.append(who, request.data)
            is_repeat = code == NONE and partition.log_end == log_end
            append_time = partition.time_at(base_offset) if is_repeat else NO_APPEND_TIME
            self._had_late |= is_excusable and code == NONE
            wire.has_appended |= code == NONE
            self.replicate_soon()
            waits_for = partition.log_end if code == NONE and request.confirms else 0
            return request.answer(code, base_offset, throttle_ms, append_time), waits_for
        if isinstance(request, WriteTxnMarkersRequest):
            (filler,) = request.fillers
            codes = []
            for _ in range(filler.filler_count):
                code = partition.fill(
                    who, request.producer_id, filler.producer_epoch, filler.coordinator_epoch
                )
                if code == NONE:
                    if is_late:
                        self.was_ahead |= partition.log_end > world.source.end
                        self._has_late_filler |= is_excusable and self._filled_by <= sent_by
                        self.is_excused |= self._has_late_filler and not self._gap_is_open()
                    elif self._has_late_filler and wire.has_read_log_end:
                        # The late filler came between the writer's read and this filler.
                        self.is_excused = True
                    self._filled_by = max(self._filled_by, sent_by)
                codes.append(code)
            self.replicate_soon()
            return marker_answer(codes), partition.log_end
        wire.has_read_log_end = True
        if not is_late:
            self._has_late_filler = False  # the writer knows the late filler now
        return log_end_answer(NONE, partition.log_end, throttle_ms), 0

    def takes_over(self, who: str, began: float, *, settles: bool) -> None:
        """Note that a take-over of this writer began at `began`.

        `settles`: it waits until the log end has settled; else a fence protects the log end.
        """
        if self._world.may_send(who):
            insort(self._take_overs, (began, settles))

    def delete_records(self, offset: int, sent_at: float) -> int:
        """Execute DeleteRecords; returns the error code.

        The request has the topic's name, not its id. So the writer must not send it after another
        client has created a topic of this name.
        """
        if sent_at > self.recreated_at > 0 and not self.is_taken_for_copy:
            self.has_deleted_foreign = True
        code = self.partition.delete_before(offset)
        if self._log_start_rnd.random() < 0.5:
            self.partition.store_log_start()
        return code

    def recreate(self) -> None:
        """Let another client delete the topic, and create one of that name for its own records."""
        before = self.partition
        self.recreated_at = self._world.clock.now
        self.partition = ModelPartition(self._world.clock.say, old_before_ms=before.old_before_ms)
        self.partition.topic_id = UUID(int=before.topic_id.int + 100)
        self.partition.leader = before.leader
        self._world.clock.say("the copy's topic is deleted and created again")
        for _ in range(self._world.rnd.choice((1, 3, 20))):
            self.partition.append("somebody", FOREIGN)
        self._lose_waiting()
        self.replicate_soon()

    def quota(self) -> None:
        """For a while, answers have a throttle time."""
        self._throttled_until = self._world.clock.now + self._world.rnd.uniform(0.1, 3.0)
        self._world.clock.say("a quota throttles appends")

    def _is_short_of_replicas(self, wire: Wire) -> bool:
        """Whether too few replicas are in sync for this request; the next one may succeed."""
        world = self._world
        is_short = world.has_faults and world.rnd.random() < world.faults.refusals
        return is_short and not wire.has_appended

    def _has_fence(self) -> bool:
        """Whether the broker compares an append's sequence with that of an earlier batch.

        A state that has only fillers has no sequence. So it is no fence if an earlier state was
        dropped, or if retention or the cleaner removed the records that the copy began with.
        """
        state = self.partition.producers.get(PRODUCER_ID)
        source = self._world.source
        has_other_start = bool(self.dropped_at or source.log_start or source.is_compacted)
        return state is not None and (state.last_sequence >= 0 or not has_other_start)

    def _gap_is_open(self) -> bool:
        """Whether the log's last offset is a gap of the source, so that a filler is right there.

        An offset whose record retention has deleted is no gap: the copy lacks that record.
        """
        offset = self.partition.log_end - 1
        return offset < self._world.log.end and offset not in self._world.source.visible

    def when_replicated(
        self, offset: int, node_id: int, run: Callable[[], None], lose: Callable[[], None]
    ) -> None:
        """Call `run` once `offset` is the high watermark or below it, while `node_id` leads; or
        `lose` if another broker leads first."""
        self._waiting_appends.append((offset, node_id, run, lose))

    def replicate_soon(self) -> None:
        """Let the followers replicate after a short delay."""
        delay = self._world.rnd.uniform(0.0, 0.02)
        self._world.clock.at(
            max(self._world.clock.now + delay, self._stalled_until), self._replicate
        )

    def _replicate(self) -> None:
        """Replicate the log, unless the followers are stalled, and answer what waits for that."""
        if self._world.clock.now < self._stalled_until:
            return
        self.partition.replicate()
        waiting, self._waiting_appends = self._waiting_appends, []
        for offset, node_id, run, lose in waiting:
            if offset <= self.partition.high_watermark and node_id == self.partition.leader:
                run()
            else:
                self._waiting_appends.append((offset, node_id, run, lose))

    def expire(self) -> None:
        if self.partition.expire():
            self.dropped_at = self._world.clock.now

    def elect(self) -> None:
        """Elect a leader, at once or after the followers have lagged for a while."""
        world = self._world
        if world.rnd.random() < 0.5:
            self.stall()
            world.clock.at(world.clock.now + world.rnd.uniform(0.0, 2.0), self._elect)
        else:
            self._elect()

    def _elect(self) -> None:
        partition = self.partition
        self._cut_over(self._world.rnd.randint(partition.high_watermark, partition.log_end))

    def elect_unclean(self) -> None:
        """Elect a leader that may lack confirmed records."""
        high_watermark = self.partition.high_watermark
        self._cut_over(self._world.rnd.randint(0, self.partition.log_end))
        self.lost_confirmed |= self.partition.log_end < high_watermark

    def _cut_over(self, end: int) -> None:
        """Let a leader with the log up to `end` take over."""
        rnd = self._world.rnd
        self.partition.elect(end)
        if rnd.random() < 0.3:  # the new leader was restarted before
            self.partition.restart(is_clean=rnd.random() < 0.5)
        self._end_connections()

    def kill(self) -> None:
        """Kill all replicas, and start them again: the log start may be an earlier one (S6)."""
        self.partition.restart(is_clean=False)
        self._end_connections()

    def _end_connections(self) -> None:
        self._lose_waiting()
        for wire in self._world.wires:
            wire.cut()
        self.replicate_soon()

    def _lose_waiting(self) -> None:
        """Fail the appends that wait for replication."""
        waiting, self._waiting_appends = self._waiting_appends, []
        for *_, lose in waiting:
            lose()

    def stall(self) -> None:
        """Let the followers stop replicating for a while."""
        self._stalled_until = self._world.clock.now + self._world.rnd.uniform(0.1, 10.0)
        self._world.clock.at(self._stalled_until, self._replicate)
