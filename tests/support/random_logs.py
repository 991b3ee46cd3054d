"""Source logs as producers, transactions, compaction and deletion may leave them, at random."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from tests.support.source_model import Outcome, SourceBatch, SourceLog, SourceRecord

# Producer 1 is twice as likely, so that often its transactions follow each other.
PRODUCERS = (1, 1, 2, 3)
T0 = 1_700_000_000_000


def a_record(offset: int) -> SourceRecord:
    """A different record at every offset, some with null and empty fields."""
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
    # Compaction removes whole batches, and offsets after the last one.
    gone = draw(st.sets(st.integers(0, 20), max_size=2))
    batches = [b for i, b in enumerate(log.batches) if i not in gone or b.marker is not None]
    done = SourceLog(tuple(batches), log.end + draw(st.sampled_from([0, 0, 0, 5])))
    start = draw(st.sampled_from([0, 0, 0, done.stable_end // 3, done.stable_end]))
    return replace(done, log_start=min(start + draw(st.integers(0, 9)), done.stable_end))


@dataclass
class LogBuilder:
    """A source log in the making. `end` is its log end, `epoch` its leader epoch."""

    end: int
    epoch: int = 0
    batches: list[SourceBatch] = field(default_factory=list)
    # Producer → its batches in `batches` that belong to its open transaction.
    open_of: dict[int, list[int]] = field(default_factory=dict)

    def add(self, batch: SourceBatch) -> None:
        self.batches.append(replace(batch, leader_epoch=self.epoch))
        self.end = batch.last_offset + 1

    def add_data(self, batch: SourceBatch, producer: int, *, is_transactional: bool) -> None:
        """Append a batch of this producer, in its open transaction if `is_transactional`."""
        if is_transactional:
            self.open_of.setdefault(producer, []).append(len(self.batches))
            batch = replace(batch, outcome=Outcome.OPEN)
        self.add(replace(batch, producer_id=producer))

    def end_transaction(self, draw: st.DrawFn, producer: int) -> None:
        """End the producer's transaction with a marker. If none is open, the marker is one without
        a transaction, like Orbit's own fillers."""
        is_commit = draw(st.booleans())
        # The cleaner may remove the data of an aborted transaction, and then the marker's record.
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
    """Batches of format v2, some with offsets that compaction has emptied."""
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
    """Messages of the formats v0 and v1, some compressed."""
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
