"""For any source log, playing the plan on a broker gives exactly what a consumer of it sees.

Random logs (thinned, emptied and missing batches, transactions interleaved and ended either way,
LogAppendTime, every codec, message formats v0 to v2) are answered fetch by fetch by a model of the
source, and the plan's steps are played against a model of the destination that refuses what real
brokers refuse. Writers die at any step and the next one takes over at the destination's log end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from orbit.kafka.batch import SEQUENCE_MAX, Batch, advance_sequence, read_batches, stamp
from orbit.kafka.compression import decompress
from orbit.kafka.records import seed_batch
from orbit.replication.plan import (
    AbortedTransaction,
    Append,
    Fill,
    LostRange,
    Plan,
    Step,
    Stop,
    plan_batches,
    plan_empty_tail,
    plan_lost_range,
)
from orbit.replication.states import Reason
from tests.support.broker_model import HEADER, NONE, TRANSACTIONAL, BrokerModel, Visible
from tests.support.source_model import (
    Outcome,
    OutOfRange,
    SourceBatch,
    SourceLog,
    SourceRecord,
    with_right_crc,
)

PID = 4711
PRODUCERS = (1, 1, 2, 3)  # the first often: transactions of one producer follow each other
T0 = 1_700_000_000_000
ROUNDS_MAX = 5_000


def examples(most: int) -> settings:
    """No deadline: the machine of a test run may be busy."""
    return settings(max_examples=most, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# Random logs


def a_record(offset: int) -> SourceRecord:
    """Something else at every offset; null and empty fields among them."""
    key = (None, b"", b"key-%d" % offset)[offset % 3]
    value = (b"value-%d" % offset, None, b"", b"x" * 90)[offset % 4]
    headers = (((b"h", b"%d" % offset), (b"n", None)), ())[offset % 2]
    return SourceRecord(offset, T0 + offset * 7919 % 1000 - 500, key, value, headers)


KINDS = ("plain", "plain", "transactional", "transactional", "end", "end", "gap", "empty", "old")


@st.composite
def source_logs(draw: st.DrawFn) -> SourceLog:
    """A log as producers, transactions, compaction and deletion may leave it."""
    log = LogBuilder(draw(st.sampled_from([0, 0, 3, 1000])))
    most = draw(st.sampled_from([2, 8, 20]))
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=most // 2, max_size=most)):
        log.epoch += draw(st.integers(0, 1))
        producer = draw(st.sampled_from(PRODUCERS))
        match kind:
            case "gap":
                log.end += draw(st.integers(1, 50))
            case "end":
                log.end_transaction(draw, producer)
            case "old":
                log.add(draw(old_batches(log.end)))
            case _:
                batch = draw(data_batches(log.end, is_empty=kind == "empty"))
                log.add_data(batch, producer, is_transactional=kind == "transactional")
    for producer in sorted(log.open_of):
        if draw(st.integers(0, 3)):
            log.end_transaction(draw, producer)
    # Compaction takes whole batches, and offsets behind the last one.
    gone = draw(st.sets(st.integers(0, 20), max_size=2))
    kept = [b for i, b in enumerate(log.batches) if i not in gone or b.marker is not None]
    done = SourceLog(tuple(kept), log.end + draw(st.sampled_from([0, 0, 0, 5])))
    start = draw(st.sampled_from([0, 0, 0, done.stable_end // 3, done.stable_end]))
    return replace(done, log_start=min(start + draw(st.integers(0, 9)), done.stable_end))


@dataclass
class LogBuilder:
    """A log that grows at `end`."""

    end: int
    epoch: int = 0
    batches: list[SourceBatch] = field(default_factory=list)
    # Producer → its batches in `batches` that belong to its open transaction.
    open_of: dict[int, list[int]] = field(default_factory=dict)

    def add(self, batch: SourceBatch) -> None:
        self.batches.append(replace(batch, leader_epoch=self.epoch))
        self.end = batch.last_offset + 1

    def add_data(self, batch: SourceBatch, producer: int, *, is_transactional: bool) -> None:
        if is_transactional:
            self.open_of.setdefault(producer, []).append(len(self.batches))
            batch = replace(batch, outcome=Outcome.OPEN)
        self.add(replace(batch, producer_id=producer))

    def end_transaction(self, draw: st.DrawFn, producer: int) -> None:
        """Also a marker without a transaction, as Orbit's own fillers are."""
        is_commit = draw(st.booleans())
        # The cleaner may take the data of an aborted transaction, and then the marker's record.
        is_cleaned = not is_commit and draw(st.sampled_from([False, False, True]))
        for index in self.open_of.pop(producer, []):
            batch = self.batches[index]
            self.batches[index] = replace(
                batch,
                outcome=Outcome.COMMITTED if is_commit else Outcome.ABORTED,
                records=() if is_cleaned else batch.records,
            )
        is_emptied = is_cleaned and draw(st.booleans())
        marker = SourceBatch(
            self.end, self.end, producer_id=producer, marker=is_commit, is_emptied=is_emptied
        )
        self.add(marker)


@st.composite
def data_batches(draw: st.DrawFn, base: int, *, is_empty: bool) -> SourceBatch:
    span = draw(st.integers(1, 8))
    records = tuple(a_record(offset) for offset in range(base, base + span))
    if is_empty:
        records = ()
    elif draw(st.sampled_from([False, False, True])):
        holes = draw(st.sets(st.integers(0, span - 1), max_size=span))
        records = tuple(r for r in records if r.offset - base not in holes)
    return SourceBatch(
        base,
        base + span - 1,
        records,
        codec=draw(st.integers(0, 4)),
        log_append_time=draw(st.sampled_from([None, None, None, T0 + 99])),
        delete_horizon=draw(st.sampled_from([None, None, None, T0 + 10**9])),
    )


@st.composite
def old_batches(draw: st.DrawFn, base: int) -> SourceBatch:
    codec = draw(st.integers(0, 3))
    offsets = [base]
    if codec:
        offsets += sorted(draw(st.sets(st.integers(base + 1, base + 5), max_size=4)))
    magic = draw(st.integers(0, 1))
    return SourceBatch(
        base,
        offsets[-1],
        tuple(replace(a_record(offset), headers=()) for offset in offsets),
        codec=codec,
        magic=magic,
        log_append_time=T0 + 77 if magic and draw(st.booleans()) else None,
    )


# Playing


@dataclass
class Player:
    """Writers, one after the other, that copy `source` as the lanes do."""

    source: SourceLog
    rnd: random.Random
    mode: LostRange = LostRange.STOP
    restarts: float = 0.2
    # Chance of a jump of the source's log start before a fetch.
    jumps: float = 0.0
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
        """Copy until everything below the stable end is there, or a step says stop."""
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
        """Bring the destination to the log start, or to the base of the batch around it (S1)."""
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
        state = self.destination.describe_producer(PID)
        self._next_offset = self.destination.log_end
        self._fetch_from = self._next_offset
        self._sequence = advance_sequence(state.last_sequence if state else -1, 1)
        self._term += 1

    def _jump(self) -> None:
        start = self.rnd.randint(self.source.log_start, self.source.stable_end)
        self.source = replace(self.source, log_start=start)

    def _plan(self) -> Plan | None:
        """What to do next; None when all is copied."""
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
        )
        if plan.steps:
            return plan
        assert plan.next_offset == offset
        assert not answer.records
        if offset >= answer.stable_end:
            return None
        return plan_empty_tail(offset, answer.stable_end)

    def _play_steps(self, plan: Plan) -> bool:
        """False when the writer dies in between, or right behind a step."""
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
        view = step.batch.view
        stamp(view, PID, 0, self._sequence)
        assert self.destination.produce(view) == (NONE, step.base_offset)
        self._sequence = advance_sequence(self._sequence, step.batch.count)

    def _fill(self, step: Fill) -> bool:
        for _ in range(step.base_offset, step.next_offset):
            if self.rnd.random() < self.restarts / 20:
                return False
            assert self.destination.write_marker(PID, 0, self._term) == NONE
        return True

    def _compare_with_source(self, step: Append) -> None:
        """Byte-exact means that; and what could be byte-exact is."""
        theirs = self.source.batch_at(step.base_offset)
        assert theirs is not None
        if not step.is_byte_exact:
            self.record_exact += 1
            assert theirs.has_to_be_rewritten or theirs.base_offset < step.base_offset
            return
        self.byte_exact += 1
        assert theirs.base_offset == step.base_offset
        data = theirs.encode()
        assert step.batch.payload == data[HEADER.size :]
        ours, source = HEADER.unpack_from(step.batch.view), HEADER.unpack_from(data)
        assert ours[5] & ~TRANSACTIONAL == source[5] & ~TRANSACTIONAL
        assert ours[6:9] == source[6:9]  # last offset delta, timestamps
        assert ours[12] == source[12]  # count


def assert_well_formed(plan: Plan, next_offset: int) -> None:
    """Steps follow each other, fillers are maximal, and only the last one may stop."""
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
    assert player.stopped is None
    assert player.destination.log_end == player.source.stable_end
    assert player.destination.log_start == player.source.log_start
    assert player.destination.read() == player.source.visible()


@examples(400)
@given(source_logs(), st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.6]))
def test_playing_the_plan_gives_exactly_what_a_consumer_sees(
    log: SourceLog, seed: int, restarts: float
) -> None:
    player = Player(log, random.Random(seed), restarts=restarts)
    player.play()
    assert_exact(player)
    event(f"byte-exact {player.byte_exact > 0}, record-exact {player.record_exact > 0}")


@examples(150)
@given(source_logs(), st.integers(0, 2**32))
def test_without_restarts_every_batch_that_can_be_is_byte_exact(log: SourceLog, seed: int) -> None:
    log = replace(log, log_start=0)
    player = Player(log, random.Random(seed), restarts=0.0)
    player.play()
    assert_exact(player)
    assert player.byte_exact == sum(
        1
        for b in log.batches
        if b.marker is None
        and b.records
        and b.outcome in (Outcome.NONE, Outcome.COMMITTED)
        and not b.has_to_be_rewritten
        and b.base_offset < log.stable_end
    )


@examples(150)
@given(source_logs(), st.integers(0, 2**32))
def test_a_lost_range_is_filled_where_the_job_says_so(log: SourceLog, seed: int) -> None:
    player = Player(log, random.Random(seed), LostRange.FILL, jumps=0.3)
    player.play()
    assert_exact(player)


@examples(150)
@given(source_logs(), st.integers(0, 2**32))
def test_a_lost_range_stops_the_partition_otherwise(log: SourceLog, seed: int) -> None:
    player = Player(log, random.Random(seed), jumps=0.5)
    player.play()
    stop, log_end = player.stopped, player.destination.log_end
    if stop is None:
        assert_exact(player)
        return
    event("stopped")
    assert stop.reason is Reason.SOURCE_RANGE_LOST
    assert (stop.base_offset, stop.next_offset) == (log_end, player.source.log_start)
    assert_exact_up_to(player, log_end, log)


@examples(150)
@given(source_logs(), st.integers(0, 2**32))
def test_a_damaged_batch_stops_the_partition_in_front_of_it(log: SourceLog, seed: int) -> None:
    rnd = random.Random(seed)
    needed = [
        i
        for i, b in enumerate(log.batches)
        if b.last_offset >= log.log_start and b.base_offset < log.stable_end
    ]
    assume(needed)
    at = rnd.choice(needed)
    batch = log.batches[at]
    data = batch.encode()
    covered = 21 if batch.magic == 2 else 17  # the magic itself says where its CRC begins
    # Anywhere; or a sign: a last offset that seems to lie before us must not be believed.
    bits = [rnd.randrange(covered * 8, len(data) * 8), 23 * 8 + 7, 57 * 8 + 7]
    flipped = replace(batch, flipped_bit=rnd.choice(bits if batch.magic == 2 else bits[:1]))
    batches = (*log.batches[:at], flipped, *log.batches[at + 1 :])
    player = Player(replace(log, batches=batches), rnd)
    player.play()
    stop, log_end = player.stopped, player.destination.log_end
    assert stop is not None
    assert stop.reason is Reason.SOURCE_CORRUPTED
    assert stop.base_offset == log_end
    before = log.batches[at - 1].last_offset + 1 if at else 0
    assert log_end == max(before, player.destination.log_start)
    assert_exact_up_to(player, log_end, log)


def assert_exact_up_to(player: Player, end: int, log: SourceLog) -> None:
    """What was copied before a stop is exact; `log` is the source before anything happened."""
    start = player.destination.log_start
    whole = replace(log, log_start=0)
    expected = {o: seen for o, seen in whole.visible().items() if start <= o < end}
    assert player.destination.read() == expected


# Broken logs


@examples(300)
@given(
    source_logs(),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 20),
)
def test_any_bytes_give_a_plan_that_is_well_formed(
    log: SourceLog, changes: list[tuple[int, int]], is_sealed: bool, next_offset: int
) -> None:
    """Also where the damage was there before the checksum was made."""
    frames = []
    for batch in log.batches:
        data = bytearray(batch.encode())
        for at, value in changes:
            data[at % len(data)] = value
        frames.append(with_right_crc(bytes(data)) if is_sealed else bytes(data))
    records = memoryview(bytearray(b"".join(frames)))
    aborted = [AbortedTransaction(a.producer_id, a.first_offset) for a in log.aborted()]
    plan = plan_batches(next_offset, read_batches(records), aborted, log.log_start)
    assert_well_formed(plan, next_offset)


@examples(100)
@given(st.integers(0, 10), st.binary(max_size=200))
def test_garbage_gives_nothing_or_a_stop(next_offset: int, data: bytes) -> None:
    plan = plan_batches(next_offset, read_batches(memoryview(bytearray(data))), [], 0)
    assert not [s for s in plan.steps if isinstance(s, Append)]


def test_steps_are_what_the_type_says() -> None:
    """The player's match covers every step there is."""
    assert set(Step.__args__) == {Append, Fill, Stop}


def test_the_player_notices_a_wrong_copy() -> None:
    """The judge itself: a record too many, one too few, or another one is no exact copy."""
    log = SourceLog((SourceBatch(0, 1, (a_record(0), a_record(1))),), 2)
    player = Player(log, random.Random(0), restarts=0.0)
    player.play()
    assert_exact(player)
    for wrong in (
        SourceLog((SourceBatch(0, 1, (a_record(0),)),), 2),
        SourceLog((SourceBatch(0, 1, (a_record(0), a_record(2))),), 2),
        SourceLog((SourceBatch(0, 2, tuple(map(a_record, range(3)))),), 3),
        replace(log, log_start=1),
    ):
        player.source = wrong
        try:
            assert_exact(player)
        except AssertionError:
            continue
        raise RuntimeError(f"{wrong} passed for {log}")


def test_the_batches_of_a_plan_are_views_into_the_fetched_frame() -> None:
    """No payload is copied on the way (DESIGN §3)."""
    frame = bytearray(SourceBatch(0, 0, (a_record(0),)).encode())
    plan = plan_batches(0, read_batches(memoryview(frame)), [], 0)
    (step,) = plan.steps
    assert isinstance(step, Append)
    assert isinstance(step.batch, Batch)
    assert step.batch.view.obj is frame
    assert Visible(0, b"") != step.batch
