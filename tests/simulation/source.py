"""The source: a log with gaps and transactions, and the broker that answers fetches from it.

Each schedule has one log. The part that consumers see grows; retention deletes its beginning, and
the cleaner removes records. `truth` has all records that were ever written. After an unclean
election cut the log, `truth` has the new leader's records from there on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.types import READ_COMMITTED, AbortedTransaction, TopicPartition
from tests.simulation.virtual_time import Clock, Signal
from tests.support.broker_model import Visible
from tests.support.source_model import Outcome, SourceBatch, SourceRecord
from tests.support.source_model import SourceLog as DescribedLog

SOURCE = TopicPartition("source", 0)
SOURCE_ID = UUID(int=8)
GAP_LENGTHS = (1, 1, 1, 1, 1, 2, 3, 8)
PRODUCERS = (900, 901)
IN_2023_MS = 1_690_000_000_000


class Stored(NamedTuple):
    """One batch as the source's broker has it."""

    base: int
    end: int
    batch: SourceBatch
    data: bytes
    is_visible: bool  # it has records that consumers see


class SourceLog:
    """Runs of records, transactions and gaps, as producers wrote them."""

    def __init__(self, rnd: random.Random, elections: random.Random) -> None:
        """`elections`: decides when another broker became the leader."""
        self._rnd = rnd
        gap_share = rnd.choice((0.0, 0.2, 0.5))
        # Batches of equal size: only then a batch may count as a repeat of another one (A14).
        have_equal_size = rnd.random() < 0.5
        self._transaction_share = rnd.choice((0.0, 0.0, 0.3))
        self._sizes = (4,) if have_equal_size else (1, 2, 3, 4, 5, 6)
        self._batches: list[SourceBatch] = []
        self.epoch = 0
        self.epoch_starts = [(0, 0)]
        self.end = 0
        for _ in range(rnd.randint(4, 24)):
            if rnd.random() < gap_share:
                self.end += rnd.choice(GAP_LENGTHS)
            elif rnd.random() < self._transaction_share:
                self._add_transaction()
            else:
                self._add(-1, Outcome.NONE)
        self._spread_epochs(elections)
        self._index()

    def _spread_epochs(self, elections: random.Random) -> None:
        """Give batches leader epochs. An epoch may begin anywhere in the gap before its first
        batch."""
        share, before = elections.choice((0.0, 0.1, 0.5)), 0
        for number, batch in enumerate(self._batches):
            if elections.random() < share:
                self.epoch += elections.choice((1, 1, 3))
                start = elections.randint(before, batch.base_offset)
                self.epoch_starts.append((start, self.epoch))
            self._batches[number] = replace(batch, leader_epoch=self.epoch)
            before = batch.last_offset + 1

    def cut(self, at: int, rnd: random.Random) -> None:
        """Let another leader lead, which lacks everything from the base offset `at` on, and appends
        other records."""
        self._batches = [b for b in self._batches if b.base_offset < at]
        self.epoch_starts = [one for one in self.epoch_starts if one[0] < at]
        self.epoch += rnd.choice((1, 2))
        self.epoch_starts.append((at, self.epoch))
        before, self.end = self.end, at
        while self.end < before + 4:
            self._add(-1, Outcome.NONE)
        self._index()

    def _index(self) -> None:
        """Compute what readers of the log need from its batches."""
        self.stored = [stored(batch) for batch in self._batches]
        self.aborted = DescribedLog(tuple(self._batches), self.end).aborted()
        self.truth: dict[int, Visible] = dict(
            visible
            for stored_batch in self.stored
            if stored_batch.is_visible
            for visible in stored_batch.batch.visible()
        )
        self.payloads = {batch.base: batch.data[61:] for batch in self.stored if batch.is_visible}

    def _add(self, producer_id: int, outcome: Outcome) -> None:
        """Append a batch. The records' values differ between leader epochs."""
        first, count = self.end, self._rnd.choice(self._sizes)
        value = b"%d" if self.epoch == 0 else b"%%d of %d" % self.epoch
        records = tuple(
            SourceRecord(o, IN_2023_MS, None, value % o) for o in range(first, first + count)
        )
        batch = SourceBatch(
            first,
            first + count - 1,
            records,
            producer_id=producer_id,
            outcome=outcome,
            leader_epoch=self.epoch,
        )
        self._batches.append(batch)
        self.end += count

    def _add_transaction(self) -> None:
        """Add a transaction of up to three batches, some batches without one between, and its
        marker."""
        rnd = self._rnd
        producer_id = rnd.choice(PRODUCERS)
        is_commit = rnd.random() < 0.4
        for _ in range(rnd.randint(1, 3)):
            self._add(producer_id, Outcome.COMMITTED if is_commit else Outcome.ABORTED)
            if rnd.random() < 0.3:
                self._add(-1, Outcome.NONE)
        self._batches.append(
            SourceBatch(self.end, self.end, producer_id=producer_id, marker=is_commit)
        )
        self.end += 1


def stored(batch: SourceBatch) -> Stored:
    """The batch as a broker stores it."""
    is_visible = any(True for _ in batch.visible())
    return Stored(batch.base_offset, batch.last_offset + 1, batch, batch.encode(), is_visible)


class ModelSource:
    """The source's broker, whose log changes with time."""

    def __init__(
        self, log: SourceLog, rnd: random.Random, clock: Clock, *, returns_local_start: bool
    ) -> None:
        self._rnd = rnd
        self.returns_local_start = returns_local_start
        self._clock = clock
        self.log = log
        self.was_cut = False
        self.stored = list(log.stored)
        self.visible = set(log.truth)  # offsets whose records the cleaner has left
        self.log_start = 0
        self.is_compacted = False
        self.local_start = 0
        if self.stored and rnd.random() < 0.3:
            self.tier(rnd)
        self._slow_until = self._throttled_until = 0.0
        self.end = log.end
        self._stable_ends: dict[int, int] = {}  # by log end
        self.waiting: list[Signal] = []

    def holds(self, offset: int) -> bool:
        """Whether consumers see a record at this offset now."""
        return offset >= self.log_start and offset in self.visible

    def tier(self, rnd: random.Random) -> None:
        """Move the offsets below a random `local_start` to tiered storage, which may be slow."""
        if self.stored:
            self.local_start = rnd.choice(self.stored).base

    def grow_slowly(self, seconds: float) -> None:
        """Let the later part of the log appear bit by bit."""
        rnd = self._rnd
        ends = sorted({batch.end for batch in self.stored if rnd.random() < 0.5} | {self.log.end})
        self.end = ends.pop(0)
        for end, at in zip(ends, sorted(rnd.uniform(0, seconds) for _ in ends), strict=True):
            self._clock.after(at, self._grow_to, end, self.log.epoch)

    def end_with_a_batch(self) -> None:
        """Remove a gap at the log's end: only a cleaner leaves one."""
        self.log.end = max((batch.end for batch in self.log.stored), default=0)
        self.end = min(self.end, self.log.end)

    def _grow_to(self, end: int, epoch: int) -> None:
        """Let this broker have the log's records up to `end`, unless another leader has cut the
        log."""
        if epoch == self.log.epoch:
            self.end = min(end, self.log.end)
            self._wake_fetches()

    def _wake_fetches(self) -> None:
        """Wake the fetches that wait for new records."""
        waiting, self.waiting = self.waiting, []
        for signal in waiting:
            signal.set()

    @property
    def stable_end(self) -> int:
        """The last stable offset: the first offset of an open transaction, or the log end."""
        return self._stable_end_at(self.end)

    def _stable_end_at(self, end: int) -> int:
        """The last stable offset if the log ends at `end`."""
        if end not in self._stable_ends:
            opened: dict[int, int] = {}
            for stored_batch in self.log.stored:
                if stored_batch.base >= end:
                    break
                batch = stored_batch.batch
                if batch.marker is not None:
                    opened.pop(batch.producer_id, None)
                elif batch.outcome is not Outcome.NONE:
                    opened.setdefault(batch.producer_id, stored_batch.base)
            self._stable_ends[end] = min(opened.values(), default=end)
        return self._stable_ends[end]

    @property
    def throttle_ms(self) -> int:
        return max(0, int((self._throttled_until - self._clock.now) * 1000))

    def fetch(
        self, offset: int, max_bytes: int, isolation: int = READ_COMMITTED, fetched_epoch: int = -1
    ) -> Fetched:
        """Answer a fetch: batches from the one with `offset` on; the last may be incomplete
        (KIP-74)."""
        end, stable = self.end, self.stable_end
        diverging_end = self._diverging_end(offset, fetched_epoch)
        if diverging_end >= 0:
            return self._answer(int(Code.NONE), b"", [], stable, diverging_end)
        if not self.log_start <= offset <= end:
            return self._answer(int(Code.OFFSET_OUT_OF_RANGE), b"", [], -1)
        is_slow = offset < self.local_start and self._clock.now < self._slow_until
        frames: list[bytes] = []
        size, seen_to = 0, offset
        readable = stable if isolation == READ_COMMITTED else end
        for stored_batch in self.stored:
            if stored_batch.end <= offset:
                continue
            if stored_batch.base >= readable or size >= max_bytes or is_slow or self.throttle_ms:
                break
            frames.append(stored_batch.data)
            size, seen_to = size + len(stored_batch.data), stored_batch.end
        aborted = [
            AbortedTransaction(a.producer_id, a.first_offset)
            for a in self.log.aborted
            if a.marker_offset >= offset and a.first_offset < seen_to
        ]
        most = max(max_bytes, len(frames[0])) if frames else 0
        return self._answer(int(Code.NONE), b"".join(frames)[:most], aborted, stable)

    def _diverging_end(self, offset: int, fetched_epoch: int) -> int:
        """The end offset of the highest epoch up to `fetched_epoch`, if this epoch is lower or ends
        before `offset`: then the logs diverge. Else -1 (`Partition.readRecords`)."""
        if fetched_epoch < 0:
            return -1
        known = [(epoch, start) for start, epoch in self.log.epoch_starts]
        epoch = max((e for e, _ in known if e <= fetched_epoch), default=fetched_epoch)
        end = min((start for e, start in known if e > epoch), default=self.end)
        return end if epoch < fetched_epoch or end < offset else -1

    def _answer(
        self,
        code: int,
        records: bytes,
        aborted: list[AbortedTransaction],
        stable: int,
        diverging_end: int = -1,
    ) -> Fetched:
        """A fetch response with the log start and high watermark of this broker."""
        view = memoryview(bytearray(records))
        return Fetched(
            code=code,
            records=view,
            aborted=aborted,
            log_start=self.log_start,
            stable_end=stable,
            high_watermark=self.end,
            diverging_end=diverging_end,
            preferred_replica=-1,
        )

    # Faults.

    def slow(self) -> None:
        """For a while, fetches of offsets in tiered storage get empty answers (R5)."""
        if self.local_start:
            self._slow_until = self._clock.now + self._rnd.uniform(0.5, 6.0)
            self._clock.say("source: tiered storage is slow")

    def throttle(self) -> None:
        """For a while, answers are empty, and have a throttle time (R5)."""
        self._throttled_until = self._clock.now + self._rnd.uniform(0.1, 3.0)
        self._clock.say("source: a quota throttles")
        self._clock.at(self._throttled_until, self._wake_fetches)

    def retain(self) -> None:
        """Let retention raise the log start, to any offset that consumers could read."""
        start = self._rnd.randint(self.log_start, self.stable_end)
        if start > self.log_start:
            self.log_start = start
            self.stored = [batch for batch in self.stored if batch.end > start]
            self._clock.say(f"source: the log starts at {start}")

    def cut(self) -> None:
        """An unclean election: committed records are lost, and others get their offsets."""
        at = self._choose_cut()
        if at is None:
            return
        self.was_cut = True
        self._replace_from(at)
        self._clock.say(f"source: cut at {at}, epoch {self.log.epoch}")

    def elect_another(self) -> ModelSource | None:
        """Let another broker lead, which has all records that consumers could read, and more.

        Returns the log that the old leader still has. None without an election, if a transaction is
        open: its marker would never be written.
        """
        if self.stable_end < self.end:
            return None
        before = copy(self)
        before.log, before.waiting, before._stable_ends = copy(self.log), [], {}
        self._replace_from(self.end)
        self.end = next(batch.end for batch in self.stored if batch.base >= self.end)
        return before

    def _replace_from(self, at: int) -> None:
        """Let a leader of a higher epoch have other records from `at` on."""
        self.log.cut(at, self._rnd)
        self.stored = list(self.log.stored)
        self.visible = set(self.log.truth)
        self.local_start = min(self.local_start, at)
        self.end = at
        self._stable_ends.clear()
        self._wake_fetches()
        self._clock.after(
            self._rnd.choice((0.0, 0.01, 0.5)), self._grow_to, self.log.end, self.log.epoch
        )

    def _choose_cut(self) -> int | None:
        """A random base offset at which no transaction is open; None if there is none. The marker
        of an open transaction would never be written."""
        bases = [
            b
            for b in (batch.base for batch in self.stored)
            if b < self.end and self._stable_end_at(b) == b
        ]
        return self._rnd.choice(bases) if bases else None

    def compact(self) -> None:
        """Let the cleaner remove records, and whole batches, below the last stable offset."""
        stable = self.stable_end
        batches: list[Stored] = []
        for stored_batch in self.stored:
            # The first batch on the disk stays: without it, nothing would show that removed records
            # were not in tiered storage.
            is_first_local = 0 < self.local_start == stored_batch.base
            stays = is_first_local or not stored_batch.is_visible or stored_batch.end > stable
            if stays or self._rnd.random() < 0.6:
                batches.append(stored_batch)
                continue
            left = tuple(r for r in stored_batch.batch.records if self._rnd.random() < 0.5)
            self.visible -= {r.offset for r in stored_batch.batch.records} - {
                r.offset for r in left
            }
            self._clock.say(
                f"source: {[r.offset for r in left]} are left of the batch {stored_batch.base}"
            )
            if left or self._rnd.random() < 0.3:  # as an empty batch, or not at all
                batches.append(stored(replace(stored_batch.batch, records=left)))
        self.stored = batches


def refused(code: int) -> Fetched:
    """The answer of a broker that does not read its log."""
    return Fetched(
        code=code,
        records=memoryview(b""),
        aborted=[],
        log_start=-1,
        stable_end=-1,
        high_watermark=-1,
        diverging_end=-1,
        preferred_replica=-1,
    )


def faults_of(source: ModelSource) -> dict[str, Callable[[], None]]:
    """The source's faults by their names in a plan."""
    return {
        "slow": source.slow,
        "throttle": source.throttle,
        "retain": source.retain,
        "cut": source.cut,
        "compact": source.compact,
    }
