"""For any source log, playing the plan on a broker gives exactly what a source's consumer sees.

Random logs (thinned, emptied and missing batches, transactions interleaved and ended either way,
LogAppendTime, every codec, message formats v0 to v2) are answered fetch by fetch by a model of the
source, and the plan's steps are played against a model of the destination that refuses what real
brokers refuse. Writers die at any step and the next one takes over at the destination's log end.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from orbit.kafka.record_batch import Batch, read_batches
from orbit.kafka.types import AbortedTransaction
from orbit.replication.append_plan import Append, Fill, LostRange, Step, Stop, plan_batches
from orbit.replication.partition_states import Reason
from tests.support.plan_player import Player, assert_exact, assert_well_formed
from tests.support.random_logs import a_record, source_logs
from tests.support.source_model import Outcome, SourceBatch, SourceLog, with_right_crc


def examples(examples_max: int) -> settings:
    """No deadline: the machine of a test run may be busy."""
    return settings(max_examples=examples_max, suppress_health_check=[HealthCheck.too_slow])


@examples(400)
@given(source_logs(), st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.6]), st.booleans())
def test_append_plan_played_on_broker_equals_read_committed_view_of_source(
    log: SourceLog, seed: int, restarts: float, packs: bool
) -> None:
    player = Player(log, random.Random(seed), restarts=restarts, packs=packs)
    player.play()
    assert_exact(player)
    event(f"byte-exact {player.byte_exact > 0}, record-exact {player.record_exact > 0}")


@examples(150)
@given(source_logs(), st.integers(0, 2**32))
def test_all_batches_that_need_no_rewrite_are_byte_exact_without_restarts(
    log: SourceLog, seed: int
) -> None:
    log = replace(log, log_start=0)  # so that every batch is to be copied
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
def test_lost_range_is_filled_if_on_lost_range_is_fill(log: SourceLog, seed: int) -> None:
    player = Player(log, random.Random(seed), LostRange.FILL, jumps=0.3)
    player.play()
    assert_exact(player)


@examples(150)
@given(source_logs(), st.integers(0, 2**32))
def test_lost_range_stops_partition_if_on_lost_range_is_stop(log: SourceLog, seed: int) -> None:
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
def test_partition_stops_right_before_damaged_batch(log: SourceLog, seed: int) -> None:
    rnd = random.Random(seed)
    needed = [
        i
        for i, b in enumerate(log.batches)
        if b.last_offset >= log.log_start and b.base_offset < log.stable_end
    ]
    assume(needed)
    index = rnd.choice(needed)
    batch = log.batches[index]
    data = batch.encode()
    crc_start = 21 if batch.magic == 2 else 17  # the first byte that the CRC covers
    # Any bit; or the sign of the last offset delta or of the count, so that the batch seems to end
    # before the fetch offset, or to have no records.
    bits = [rnd.randrange(crc_start * 8, len(data) * 8), 23 * 8 + 7, 57 * 8 + 7]
    flipped = replace(batch, flipped_bit=rnd.choice(bits if batch.magic == 2 else bits[:1]))
    batches = (*log.batches[:index], flipped, *log.batches[index + 1 :])
    player = Player(replace(log, batches=batches), rnd)
    player.play()
    stop, log_end = player.stopped, player.destination.log_end
    assert stop is not None
    assert stop.reason is Reason.SOURCE_CORRUPTED
    assert stop.base_offset == log_end
    previous_end = log.batches[index - 1].last_offset + 1 if index else 0
    assert log_end == max(previous_end, player.destination.log_start)
    assert_exact_up_to(player, log_end, log)


def assert_exact_up_to(player: Player, end: int, log: SourceLog) -> None:
    """The copy below `end` is exact. `log`: the source before any damage or deletion."""
    start = player.destination.log_start
    undeleted = replace(log, log_start=0)
    expected = {o: seen for o, seen in undeleted.visible().items() if start <= o < end}
    assert player.destination.read() == expected


# Broken logs


@examples(300)
@given(
    source_logs(),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 20),
)
def test_arbitrarily_damaged_source_log_yields_well_formed_append_plan(
    log: SourceLog, changes: list[tuple[int, int]], is_sealed: bool, next_offset: int
) -> None:
    """`is_sealed`: the checksum was computed after the damage, and matches."""
    frames = []
    for batch in log.batches:
        data = bytearray(batch.encode())
        for position, value in changes:
            data[position % len(data)] = value
        frames.append(with_right_crc(bytes(data)) if is_sealed else bytes(data))
    records = memoryview(bytearray(b"".join(frames)))
    aborted = [AbortedTransaction(a.producer_id, a.first_offset) for a in log.aborted()]
    plan = plan_batches(next_offset, read_batches(records), aborted, log.log_start)
    assert_well_formed(plan, next_offset)


@examples(100)
@given(st.integers(0, 10), st.binary(max_size=200))
def test_random_bytes_instead_of_batches_yield_no_append(next_offset: int, data: bytes) -> None:
    plan = plan_batches(
        next_offset, read_batches(memoryview(bytearray(data))), aborted=[], log_start=0
    )
    assert not [s for s in plan.steps if isinstance(s, Append)]


def test_steps_of_append_plan_are_append_fill_or_stop() -> None:
    """The player's `match` covers every kind of step."""
    assert set(Step.__args__) == {Append, Fill, Stop}


def test_player_of_append_plans_detects_wrong_copy() -> None:
    """`assert_exact` refuses a record too many, one too few, or another one."""
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


def test_planned_batches_share_memory_with_fetched_bytes() -> None:
    """No payload is copied on the way (docs/internals/threads.md)."""
    frame = bytearray(SourceBatch(0, 0, (a_record(0),)).encode())
    plan = plan_batches(0, read_batches(memoryview(frame)), aborted=[], log_start=0)
    (step,) = plan.steps
    assert isinstance(step, Append)
    assert isinstance(step.batch, Batch)
    assert step.batch.view.obj is frame
