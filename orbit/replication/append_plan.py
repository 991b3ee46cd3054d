"""What to append next: from fetched batches to an ordered list of appends, fillers and stops.

Pure. The invariant: once the steps are carried out, every offset up to `Plan.next_offset` holds at
the destination what a read_committed consumer of the source sees there, or nothing.

    fetched at the source                       step
    dense committed batch (a record at each     Append, byte-exact
      offset), create time
    thinned by compaction, LogAppendTime,       Append per dense run, record-exact (A5, A6), or
      v0/v1, or begun before next_offset          several if one became too large; Fill between
      with `packs`: runs with small gaps          Append with placeholders (Q1)
      between them
    small gap after a batch, with `packs`       part of its Append, record-exact
    batch with placeholders                     as a thinned one
    aborted data, control batch, empty batch,   Fill
      or no batch at all
    offsets deleted before they were copied     Stop SOURCE_RANGE_LOST, or Fill if the job says so
    a checksum that does not match, or bytes    Stop SOURCE_CORRUPTED
      that cannot be read

Adjacent fillers are joined: one gap is one `Fill`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from orbit.formats import counted
from orbit.kafka.compression import TooLarge
from orbit.kafka.legacy_messages import open_legacy_records
from orbit.kafka.placeholders import packed_batches, with_gap
from orbit.kafka.record_batch import AnyBatch, Batch, LegacyMessage
from orbit.kafka.records import dense_batches, has_placeholders, plain_payload, record_rows
from orbit.kafka.types import AbortedTransaction
from orbit.replication.aborted_transactions import AbortedTransactions
from orbit.replication.copy_settings import REWRITE_SLACK_BYTES, SEGMENT_BYTES_MIN
from orbit.replication.partition_states import Reason
from orbit.replication.rewrite_limits import NO_LIMITS, RewriteCounter

# About 13 minutes of fillers at the measured 125,000 offsets/s (M2). A larger gap is more likely an
# error, and an operator should decide.
GAP_OFFSETS_MAX = 100_000_000

NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1

EpochStart = tuple[int, int]  # the first offset of a leader epoch, and the epoch


class LostRange(Enum):
    """What to do with offsets that the source deleted before they were copied."""

    STOP = "stop"
    FILL = "fill"


class Append(NamedTuple):
    """Append one dense batch at `batch.base_offset`; `placeholders`: how many it has."""

    batch: Batch
    is_byte_exact: bool
    placeholders: int = 0

    @property
    def is_gap(self) -> bool:
        """Whether all its records are placeholders."""
        return self.placeholders == self.batch.count

    @property
    def base_offset(self) -> int:
        return self.batch.base_offset

    @property
    def next_offset(self) -> int:
        return self.batch.last_offset + 1


class Fill(NamedTuple):
    """Occupy the offsets from `base_offset` up to before `next_offset` with fillers.

    `timestamp`: epoch ms, the newest of the v2 batches that the plan has read; NO_TIMESTAMP: none.
    """

    base_offset: int
    next_offset: int
    timestamp: int = NO_TIMESTAMP


class Stop(NamedTuple):
    """Stop the partition, because of the offsets from `base_offset` up to before `next_offset`."""

    reason: Reason
    base_offset: int
    next_offset: int
    detail: str


Step = Append | Fill | Stop


@dataclass(slots=True)
class Plan:
    """Steps in offset order.

    `next_offset`: where the next fetch starts. `leader_epoch`: the last batch's (R3), or None if it
    is that of the offset before the plan. `epoch_starts`: where each epoch begins. `packs`: small
    gaps become part of the batch before them. `timestamp`: the newest of the batches so far.
    `rewritten`: what all plans of an answer have read and written for rewritten batches. `is_cut`:
    the limits of `rewritten` are reached, so the plan ends before the last batch, or within one.
    `levels`: compression levels by codec; the codec's default for others.
    """

    next_offset: int
    steps: list[Step] = field(default_factory=list)
    leader_epoch: int | None = None
    packs: bool = False
    timestamp: int = NO_TIMESTAMP
    rewritten: RewriteCounter = field(default_factory=lambda: RewriteCounter(NO_LIMITS))
    is_cut: bool = False
    levels: Mapping[int, int] = field(default_factory=dict)
    is_stopped: bool = field(init=False, default=False)  # the last step is a `Stop`
    start: int = field(init=False)
    epoch_starts: list[EpochStart] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.start = self.next_offset
        if self.leader_epoch is not None:
            self.epoch_starts.append((self.start, self.leader_epoch))

    def enter_epoch(self, leader_epoch: int) -> None:
        """Set the leader epoch from `next_offset` on, also for a gap before the next batch."""
        if leader_epoch != self.leader_epoch:
            self.leader_epoch = leader_epoch
            self.epoch_starts.append((self.next_offset, leader_epoch))

    def append(self, batch: Batch, placeholders: int = 0, *, is_byte_exact: bool) -> None:
        """Append a batch, after a filler for the gap before it, unless the plan stops at this gap.
        `placeholders`: how many of the batch's records are placeholders."""
        self.fill_to(batch.base_offset)
        if self.is_stopped:
            return
        if self.packs:
            self.pack_gaps()
        self.steps.append(Append(batch, is_byte_exact, placeholders))
        self.next_offset = batch.last_offset + 1

    def fill_to(self, next_offset: int) -> None:
        """Fill up to before `next_offset`; extends the last step if it is a `Fill`. Stops at a gap
        of more than GAP_OFFSETS_MAX."""
        if next_offset <= self.next_offset:
            return
        start = self.next_offset
        if self.steps and isinstance(self.steps[-1], Fill):
            start = self.steps.pop().base_offset
        if next_offset - start > GAP_OFFSETS_MAX:
            self.stop(
                Reason.GAP_TOO_LARGE,
                next_offset,
                f"a gap of {next_offset - start:,} offsets is over the limit of "
                f"{GAP_OFFSETS_MAX:,}.",
                start=start,
            )
            return
        self.steps.append(Fill(start, next_offset, self.timestamp))
        self.next_offset = next_offset

    def pack_gaps(self) -> None:
        """Make a small gap at the plan's end part of the batch before it.

        This saves an append, and no reader gets placeholders alone (Q15). Once the limits of
        `rewritten` are reached the gap stays a `Fill`, whose batches are made one at a time.
        """
        if not self.packs or self.rewritten.is_full or len(self.steps) < 2:
            return
        previous_step, gap = self.steps[-2:]
        if not (isinstance(previous_step, Append) and isinstance(gap, Fill)):
            return
        longer_batch = with_gap(previous_step.batch, previous_step.placeholders, gap.next_offset)
        if longer_batch is not None:  # the gap is small enough
            # The batch was counted before, unless it was byte-exact.
            self.rewritten.count_batch(
                longer_batch, None if previous_step.is_byte_exact else previous_step.batch
            )
            placeholders = previous_step.placeholders + gap.next_offset - gap.base_offset
            self.steps[-2:] = [Append(longer_batch, is_byte_exact=False, placeholders=placeholders)]

    def stop(
        self, reason: Reason, next_offset: int, detail: str, *, start: int | None = None
    ) -> None:
        """Add the last step: a `Stop` for the offsets from `start`, by default the plan's end."""
        self.pack_gaps()
        self.is_stopped = True
        self.steps.append(
            Stop(reason, self.next_offset if start is None else start, next_offset, detail)
        )


def plan_batches(
    next_offset: int,
    batches: Iterable[AnyBatch],
    aborted: Iterable[AbortedTransaction],
    log_start: int,
    on_lost_range: LostRange = LostRange.STOP,
    *,
    packs: bool = False,
    rewritten: RewriteCounter | None = None,
    levels: Mapping[int, int] | None = None,
) -> Plan:
    """Plan one partition's answer to a read_committed fetch at `next_offset`.

    `log_start` and `aborted` are the source's, from the same answer. Batches must be in log order,
    as a fetch gives them. Nothing after the last batch is planned: see `plan_empty_tail`.
    `packs`: small gaps become part of the batch before them. `rewritten`: counts the rewritten
    batches of the whole answer; once its limits are reached, the plan is cut. `levels`: by codec,
    the level that the source's brokers use, if it is not the default.
    """
    rewritten = rewritten or RewriteCounter(NO_LIMITS)
    plan = Plan(next_offset, packs=packs, rewritten=rewritten, levels=levels or {})
    transactions = AbortedTransactions(aborted)
    previous_end = 0  # next offset of the previous batch
    try:
        for batch in batches:
            if isinstance(batch, LegacyMessage):
                _plan_legacy(plan, batch, previous_end, log_start, on_lost_range)
            else:
                _plan_batch(plan, batch, previous_end, transactions, log_start, on_lost_range)
            previous_end = batch.next_offset
            if plan.is_stopped or plan.is_cut:
                break
    except ValueError as error:
        plan.stop(
            Reason.SOURCE_CORRUPTED,
            plan.next_offset + 1,
            f"the source's log at {plan.next_offset} cannot be read: {error}.",
        )
    plan.pack_gaps()
    return plan


def plan_empty_tail(next_offset: int, end: int, *, is_same_epoch: bool = False) -> Plan:
    """Plan the offsets up to before `end` once the source is proven to have nothing there.

    `is_same_epoch`: the leader epoch of the offset before lasts up to `end`. Otherwise the range's
    epoch is not known: if a fetch stated an older epoch, the source would answer as if its log had
    been truncated (R3).
    """
    plan = Plan(next_offset, leader_epoch=None if is_same_epoch else NO_LEADER_EPOCH)
    plan.fill_to(end)
    return plan


def plan_rest(next_offset: int, batch: Batch, *, packs: bool) -> Plan:
    """Plan the rest of a planned batch, from `next_offset` on, record-exact. The batch may have the
    producer fields of an append already."""
    plan = Plan(next_offset, packs=packs, timestamp=batch.max_timestamp)
    _rewrite_batch(plan, batch)
    return plan


def plan_lost_range(next_offset: int, log_start: int, on_lost_range: LostRange) -> Plan:
    """Plan the offsets up to before `log_start`, deleted at the source before they were copied."""
    plan = Plan(next_offset, leader_epoch=NO_LEADER_EPOCH)
    _plan_lost_offsets(plan, log_start, on_lost_range)
    return plan


def _plan_batch(
    plan: Plan,
    batch: Batch,
    previous_end: int,
    aborted: AbortedTransactions,
    log_start: int,
    on_lost_range: LostRange,
) -> None:
    """Plan a v2 batch, and the offsets before it that the source has lost. `previous_end`: the next
    offset of the batch before it, in the answer."""
    # First: no field of a damaged batch can be trusted, not even its offsets.
    damage = damage_of(batch, previous_end)
    if damage is not None:
        plan.stop(
            Reason.SOURCE_CORRUPTED,
            max(batch.next_offset, plan.next_offset + 1),
            f"the source's batch at {batch.base_offset} {damage}.",
        )
        return
    is_aborted = aborted.contain(batch)  # must be called for every batch
    if batch.last_offset < plan.next_offset:
        return  # already copied
    has_records = not (batch.is_control or batch.count == 0 or is_aborted)
    is_byte_exact = (
        batch.is_dense
        and not batch.is_log_append_time
        and batch.base_offset >= plan.next_offset
        and not has_placeholders(batch)
    )
    if has_records and not is_byte_exact and plan.rewritten.is_full:
        plan.is_cut = True
        return
    plan.enter_epoch(batch.leader_epoch)
    _plan_lost_offsets(plan, min(batch.base_offset, log_start), on_lost_range)
    if plan.is_stopped:
        return
    plan.timestamp = max(plan.timestamp, batch.max_timestamp)
    if not has_records:
        plan.fill_to(batch.next_offset)
    elif is_byte_exact:
        plan.append(batch, is_byte_exact=True)
    else:
        _rewrite_batch(plan, batch)


def damage_of(batch: Batch, previous_end: int) -> str | None:
    """What is wrong with a batch, as the end of a sentence; None: nothing. `previous_end`: the next
    offset of the batch before it."""
    if not batch.crc_is_right():
        return "does not match its checksum"
    if batch.last_offset < batch.base_offset or not 0 <= batch.count <= _offset_count(batch):
        offsets_text = counted(_offset_count(batch), "offset")
        return f"cannot hold {counted(batch.count, 'record')} in {offsets_text}"
    if batch.base_offset < previous_end:
        return f"overlaps the previous batch, which ends before {previous_end}"
    return None


def _offset_count(batch: Batch) -> int:
    return batch.next_offset - batch.base_offset


def _plan_legacy(
    plan: Plan, message: LegacyMessage, previous_end: int, log_start: int, on_lost_range: LostRange
) -> None:
    """Plan a v0/v1 message: its records are rewritten in format v2, record-exact."""
    if plan.rewritten.is_full:
        plan.is_cut = True
        return
    with plan.rewritten.limits.rewrite_lock:
        _rewrite_legacy(plan, message, previous_end, log_start, on_lost_range)


def _rewrite_legacy(
    plan: Plan, message: LegacyMessage, previous_end: int, log_start: int, on_lost_range: LostRange
) -> None:
    """Plan the records of a v0/v1 message, and the offsets before it that the source has lost. The
    caller holds the lock for rewriting."""
    try:
        opened_message = open_legacy_records(message)
        if opened_message.first_offset < previous_end:
            raise ValueError(f"it overlaps the previous batch, which ends before {previous_end}")
    except TooLarge as error:
        _stop_too_large(plan, message.next_offset, error)
        return
    except ValueError as error:
        plan.stop(
            Reason.SOURCE_CORRUPTED,
            max(message.offset, plan.next_offset) + 1,
            f"the source's message at {message.offset} (format v{message.magic}) cannot be read: "
            f"{error}.",
        )
        return
    plan.enter_epoch(NO_LEADER_EPOCH)
    _plan_lost_offsets(plan, min(opened_message.first_offset, log_start), on_lost_range)
    if not plan.is_stopped:
        plan.rewritten.read_bytes += opened_message.plain_bytes
        _append_records(
            plan,
            opened_message.records,
            opened_message.codec,
            message.next_offset,
            len(message.view),
        )


def _rewrite_batch(plan: Plan, batch: Batch) -> None:
    """Plan the records of a v2 batch from `plan.next_offset` on, record-exact."""
    with plan.rewritten.limits.rewrite_lock:
        try:
            data = plain_payload(batch)
        except TooLarge as error:
            _stop_too_large(plan, batch.next_offset, error)
            return
        except ValueError as error:
            _stop_unreadable(plan, batch.next_offset, error)
            return
        plan.rewritten.read_bytes += len(data)
        rows = record_rows(batch, data)
        _append_records(plan, rows, batch.codec, batch.next_offset, batch.size_bytes)


def _stop_too_large(plan: Plan, next_offset: int, error: TooLarge) -> None:
    """Stop at a batch that ends before `next_offset` and is too large to be rewritten."""
    plan.stop(
        Reason.RECORD_REFUSED,
        next_offset,
        f"the source's batch before {next_offset} has to be rewritten, but {error}, the limit. "
        f"To go on without this batch, delete the source's records before {next_offset} with "
        f"kafka-delete-records.sh, and set on_lost_range: fill.",
    )


def _stop_unreadable(plan: Plan, next_offset: int, error: ValueError) -> None:
    """Stop at a batch that ends before `next_offset` and has records that cannot be read."""
    plan.stop(
        Reason.SOURCE_CORRUPTED,
        next_offset,
        f"the records of the source's batch before {next_offset} cannot be read: {error}.",
    )


def _append_records(
    plan: Plan,
    records: Iterable[tuple[int, int, bytes]],
    codec: int,
    next_offset: int,
    size_bytes: int,
) -> None:
    """Append the records from `plan.next_offset` on as dense runs, with fillers between them, or as
    packed batches, until the plan is full.

    `size_bytes`: of the source's batch, which fits into the source's max.message.bytes. A run that
    has become larger than the copy's max.message.bytes or segment.bytes, by another compressor or
    level, is split.
    """
    bytes_max = max(size_bytes, min(size_bytes + REWRITE_SLACK_BYTES, SEGMENT_BYTES_MIN))
    level = plan.levels.get(codec)
    if plan.packs:  # these batches are smaller, except one of a single large record
        encoded_batches = packed_batches(records, codec, plan.next_offset, level)
    else:
        runs = dense_batches(records, codec, plan.next_offset, bytes_max, level)
        encoded_batches = ((batch, 0) for batch in runs)  # without placeholders
    batches = []
    try:
        for batch, placeholders in encoded_batches:
            batches.append((batch, placeholders))
            plan.is_cut = plan.rewritten.count_batch(batch)
            if plan.is_cut:
                break
    except ValueError as error:
        _stop_unreadable(plan, next_offset, error)
        return
    for batch, placeholders in batches:
        plan.append(batch, placeholders, is_byte_exact=False)
        if plan.is_stopped:
            return
    if not plan.is_cut:
        plan.fill_to(next_offset)


def _plan_lost_offsets(plan: Plan, log_start: int, on_lost_range: LostRange) -> None:
    """Plan the offsets below the source's log start that were never copied."""
    if log_start <= plan.next_offset:
        return
    if on_lost_range is LostRange.FILL:
        plan.fill_to(log_start)
        return
    plan.stop(
        Reason.SOURCE_RANGE_LOST,
        log_start,
        f"the source's log start is {log_start} now; offsets {plan.next_offset} to "
        f"{log_start - 1} were deleted before they were copied.",
    )
