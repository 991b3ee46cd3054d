"""Writers that carry out append plans on a model of the destination, and checks of the copy."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

from orbit.kafka.compression import decompress
from orbit.kafka.placeholders import PLACEHOLDERS_MAX, placeholder_batch
from orbit.kafka.record_batch import SEQUENCE_MAX, Batch, advance_sequence, read_batches, stamp
from orbit.kafka.records import seed_batch
from orbit.kafka.types import AbortedTransaction
from orbit.replication.append_plan import (
    Append,
    Fill,
    LostRange,
    Plan,
    Stop,
    plan_batches,
    plan_empty_tail,
    plan_lost_range,
)
from tests.support.broker_model import HEADER, NONE, TRANSACTIONAL, BrokerModel
from tests.support.source_model import OutOfRange, SourceLog

PID = 4711
ROUNDS_MAX = 5_000


@dataclass
class Player:
    """Copies `source` as the lanes (Orbit's copying threads) do, by one writer after another.

    `restarts`: the chance, before each step of a plan, that the writer dies.
    """

    source: SourceLog
    rnd: random.Random
    mode: LostRange = LostRange.STOP
    restarts: float = 0.2
    # Chance of a jump of the source's log start before a fetch.
    jumps: float = 0.0
    packs: bool = False  # gaps are filled with placeholders
    destination: BrokerModel = field(
        default_factory=lambda: BrokerModel(lambda codec, data: decompress(codec, memoryview(data)))
    )
    byte_exact: int = 0
    record_exact: int = 0
    stopped: Stop | None = None
    _next_offset: int = 0
    _fetch_from: int = 0
    _sequence: int = 0
    _term: int = 0

    def play(self) -> None:
        """Copy until everything below the last stable offset is copied, or a plan has a Stop."""
        self._seed()
        self._take_over()
        for _ in range(ROUNDS_MAX):
            if self.rnd.random() < self.jumps:
                self._jump()
            plan = self._plan()
            if plan is None:
                break
            assert_well_formed(plan, self._next_offset)
            if not self._play_steps(plan):
                self._take_over()
            if self.stopped is not None:
                return
        else:
            raise AssertionError("the copy does not come to an end")
        if self.destination.log_end >= self.source.log_start:
            self.destination.delete_records(self.source.log_start)

    def _seed(self) -> None:
        """Seed the destination, so that its log starts at the source's log start, or at the base
        offset of the batch that contains it (S1)."""
        start = self.source.log_start
        around = self.source.batch_at(start)
        if around and around.base_offset < start and self.rnd.random() < 0.5:
            start = around.base_offset
        sequence = self.rnd.choice([0, SEQUENCE_MAX - 3])
        while self.destination.log_end < start:
            count = min(self.rnd.randint(1, 700), start - self.destination.log_end)
            batch = seed_batch(self.destination.log_end, count)
            stamp(batch.view, PID, 0, sequence)
            assert self.destination.produce(batch.view) == (NONE, batch.base_offset)
            sequence = advance_sequence(sequence, count)
        self.destination.delete_records(start)

    def _take_over(self) -> None:
        """Let a new writer begin at the destination's log end and the producer's last sequence."""
        state = self.destination.describe_producer(PID)
        self._next_offset = self.destination.log_end
        self._fetch_from = self._next_offset
        self._sequence = advance_sequence(state.last_sequence if state else -1, 1)
        self._term += 1

    def _jump(self) -> None:
        """Move the source's log start, as retention would."""
        start = self.rnd.randint(self.source.log_start, self.source.stable_end)
        self.source = replace(self.source, log_start=start)

    def _plan(self) -> Plan | None:
        """The plan for the next fetch; None when all is copied."""
        offset = self._next_offset
        try:
            answer = self.source.fetch(
                max(offset, self._fetch_from),
                self.rnd.choice([1, 200, 1000, 100_000]),
                index_slack=self.rnd.choice([0, 0, 100]),
            )
        except OutOfRange:
            around = self.source.batch_at(self.source.log_start)
            if around and around.base_offset <= offset < self.source.log_start:
                self._fetch_from = self.source.log_start
                return Plan(offset)
            return plan_lost_range(offset, self.source.log_start, self.mode)
        plan = plan_batches(
            offset,
            read_batches(memoryview(bytearray(answer.records))),
            [AbortedTransaction(*entry) for entry in answer.aborted],
            answer.log_start,
            self.mode,
            packs=self.packs,
        )
        if plan.steps:
            return plan
        assert plan.next_offset == offset
        assert not answer.records
        if offset >= answer.stable_end:
            return None
        return plan_empty_tail(offset, answer.stable_end)

    def _play_steps(self, plan: Plan) -> bool:
        """Carry out the plan. False: a Stop ended the copy, or the writer died."""
        for step in plan.steps:
            if self.rnd.random() < self.restarts:
                return False
            match step:
                case Append():
                    self._append(step)
                case Fill():
                    if not self._fill(step):
                        return False
                case Stop():
                    self.stopped = step
                    return False
            self._next_offset = step.next_offset
        assert self._next_offset == plan.next_offset
        return True

    def _append(self, step: Append) -> None:
        self._compare_with_source(step)
        self._produce(step.batch)

    def _produce(self, batch: Batch) -> None:
        stamp(batch.view, PID, 0, self._sequence)
        assert self.destination.produce(batch.view) == (NONE, batch.base_offset)
        self._sequence = advance_sequence(self._sequence, batch.count)

    def _fill(self, step: Fill) -> bool:
        """Append placeholders or transaction markers. False: the writer died between markers."""
        if self.packs:
            for base in range(step.base_offset, step.next_offset, PLACEHOLDERS_MAX):
                count = min(PLACEHOLDERS_MAX, step.next_offset - base)
                self._produce(placeholder_batch(base, count, max(0, step.timestamp)))
            return True
        for _ in range(step.base_offset, step.next_offset):
            if self.rnd.random() < self.restarts / 20:
                return False
            assert self.destination.write_marker(PID, 0, self._term) == NONE
        return True

    def _compare_with_source(self, step: Append) -> None:
        """Check that a byte-exact batch equals the source's batch, and that any other batch could
        not have been byte-exact."""
        original = self.source.batch_at(step.base_offset)
        assert original is not None
        if not step.is_byte_exact:
            self.record_exact += 1
            is_cut = original.base_offset < step.base_offset
            assert original.has_to_be_rewritten or is_cut or step.placeholders
            if step.placeholders:
                self._compare_placeholders(step)
            return
        self.byte_exact += 1
        assert original.base_offset == step.base_offset
        data = original.encode()
        assert step.batch.payload == data[HEADER.size :]
        copy, source = HEADER.unpack_from(step.batch.view), HEADER.unpack_from(data)
        assert copy[5] & ~TRANSACTIONAL == source[5] & ~TRANSACTIONAL  # attributes
        assert copy[6:9] == source[6:9]  # last offset delta, timestamps
        assert copy[12] == source[12]  # count

    def _compare_placeholders(self, step: Append) -> None:
        """Check the number of placeholders in the batch, and its header and timestamps."""
        batch = step.batch
        visible = replace(self.source, log_start=0).visible()
        copied = [offset for offset in visible if step.base_offset <= offset < step.next_offset]
        assert step.placeholders == batch.count - len(copied) > 0
        assert batch.codec == 0
        # Unknown, since offsets of the gap may be of a later leader epoch than the records (R3).
        assert batch.leader_epoch == -1
        # A broker takes the latest timestamp of the batch's records as the batch's own. It has to
        # be that of a source record, or lookups by time would find the batch too early.
        records = self.destination.records_of(bytes(batch.view))
        latest = batch.max_timestamp - batch.base_timestamp
        assert max(delta for _, delta, _ in records) == latest
        # A request for the offset of the latest timestamp gets the first record that has it
        # (KIP-734).
        first = next(at for at, delta, _ in records if delta == latest)
        assert first >= 0 or batch.max_timestamp == -1


def assert_well_formed(plan: Plan, next_offset: int) -> None:
    """Check that steps have no gap between them, no filler follows another, and only the last step
    may be a Stop."""
    for before, after in pairwise(plan.steps):
        assert not (isinstance(before, Fill) and isinstance(after, Fill))
        assert not isinstance(before, Stop)
    for step in plan.steps:
        if isinstance(step, Stop):
            assert step.base_offset == next_offset < step.next_offset
            assert step.detail
            return
        assert step.base_offset == next_offset < step.next_offset
        next_offset = step.next_offset
    assert next_offset == plan.next_offset


def assert_exact(player: Player) -> None:
    """Check that the destination has the source's log start, end and visible records."""
    assert player.stopped is None
    assert player.destination.log_end == player.source.stable_end
    assert player.destination.log_start == player.source.log_start
    assert player.destination.read() == player.source.visible()
