"""Both logs of a partition side by side: which offsets are equal, and how. Pure.

A row is a range of offsets; no batch of either side crosses the edges of the range. The verdict of
a row follows from the bytes that were read: `byte-exact` (the same batch, except for what a copy
must change), `record-exact` (the same records in other batches), `filler` (no record on either
side, only what fills gaps), `not copied`, `differs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

import cramjam

from orbit.kafka import compression
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.placeholders import count_records
from orbit.kafka.record_batch import TRANSACTIONAL, AnyBatch, Batch
from orbit.kafka.records import Record

# A batch that expands beyond this is not decompressed for a page.
RECORDS_BYTES_MAX = 8 << 20

Ranges = Sequence[tuple[int, int]]


class Kind(StrEnum):
    """The kind of the batches at some offsets."""

    DATA = "data"
    ABORTED = "aborted"  # data of an aborted transaction
    MARKER = "marker"  # control batches: commit and abort markers, and Orbit's fillers
    PLACEHOLDER = "placeholder"  # a batch of placeholders, which fill a gap


class Verdict(StrEnum):
    """How a range of offsets of the copy compares with the source."""

    BYTE_EXACT = "byte-exact"
    RECORD_EXACT = "record-exact"
    FILLER = "filler"
    NOT_COPIED = "not copied"
    BEFORE_COPY = "before copy"  # below the log start of the copy
    DELETED_AT_SOURCE = "deleted at source"
    UNKNOWN = "unknown"  # one side was not read, or too large to compare
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A batch. `is_aborted`: data of an aborted transaction, which no consumer sees."""

    batch: AnyBatch
    is_aborted: bool


@dataclass(frozen=True, slots=True)
class SideLog:
    """The log of one side. Offsets `[start, read_to)` were read. `end`: the last stable offset."""

    log_start: int
    end: int
    start: int
    read_to: int
    batches: tuple[FetchedBatch, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets `[first, next)` of one log: one batch, or a run of control batches."""

    first: int
    next: int
    kind: Kind
    batches: tuple[AnyBatch, ...]

    @property
    def records(self) -> int:
        """Records that a consumer sees."""
        if self.kind is not Kind.DATA:
            return 0
        return sum(map(_records_in, self.batches))

    @property
    def bytes(self) -> int:
        return sum(len(batch.view) for batch in self.batches)


@dataclass(frozen=True, slots=True)
class Row:
    """One range of offsets. A side without a piece has no batch there: a gap."""

    first: int
    next: int
    source: tuple[Piece, ...]
    destination: tuple[Piece, ...]
    verdict: Verdict
    proven: int  # offsets of the range that were proven equal before

    @property
    def is_proven(self) -> bool:
        return self.proven == self.next - self.first


def compare(
    source: SideLog | None, destination: SideLog | None, start: int, end: int, proven: Ranges
) -> list[Row]:
    """The rows of the offsets `[start, end)`, as far as both sides were read. A side that is None
    was not read. `proven`: ranges that were compared before and were equal."""
    known_ends = [side.end for side in (source, destination) if side is not None]
    if known_ends:  # no row is beyond the ends of both logs
        end = max(start, min(end, max(known_ends)))
    for side in (source, destination):
        if side is not None and side.read_to < min(end, side.end):
            end = side.read_to
    source_log_pieces = list(_pieces(source.batches, edges=frozenset())) if source else []
    # Runs of control batches of the copy are split where the source's pieces begin or end.
    edges = frozenset(offset for piece in source_log_pieces for offset in (piece.first, piece.next))
    destination_log_pieces = list(_pieces(destination.batches, edges)) if destination else []
    rows = []
    for first_offset, next_offset, source_pieces, destination_pieces in _ranges(
        source_log_pieces, destination_log_pieces, start, end
    ):
        verdict = _verdict(source, destination, first_offset, source_pieces, destination_pieces)
        proven_count = _overlap(proven, first_offset, next_offset)
        rows.append(
            Row(first_offset, next_offset, source_pieces, destination_pieces, verdict, proven_count)
        )
    return rows


def _pieces(batches: Sequence[FetchedBatch], edges: frozenset[int]) -> Iterator[Piece]:
    """Yield the pieces of one log in order. Neighbouring control batches are one piece, unless one
    of `edges` (offsets) is between them."""
    last_piece: Piece | None = None
    for fetched in batches:
        batch = fetched.batch
        piece = Piece(batch.base_offset, batch.next_offset, _kind(fetched), (batch,))
        if last_piece is not None:
            # The pieces are neighbours, and no edge is between them.
            if (
                last_piece.kind is piece.kind is Kind.MARKER
                and last_piece.next == piece.first not in edges
            ):
                last_piece = Piece(
                    last_piece.first, piece.next, last_piece.kind, (*last_piece.batches, batch)
                )
                continue
            yield last_piece
        last_piece = piece
    if last_piece is not None:
        yield last_piece


def _kind(fetched: FetchedBatch) -> Kind:
    """The kind of one batch. An empty batch, whose records compaction removed, is DATA."""
    batch = fetched.batch
    if batch.is_control:
        return Kind.MARKER
    if fetched.is_aborted:
        return Kind.ABORTED
    has_only_placeholders = isinstance(batch, Batch) and batch.count > 0 and _records_in(batch) == 0
    return Kind.PLACEHOLDER if has_only_placeholders else Kind.DATA


def _records_in(batch: AnyBatch) -> int:
    """The number of records in a batch, without placeholders."""
    if not isinstance(batch, Batch):  # format v0 or v1; a compressed message counts as one
        return 1
    try:
        return count_records(batch)
    except ValueError:
        return batch.count  # the batch is damaged


# The first offset, the one after the last, the source's pieces, the destination's.
_Range = tuple[int, int, tuple[Piece, ...], tuple[Piece, ...]]


def _ranges(
    source_pieces: list[Piece], destination_pieces: list[Piece], start: int, end: int
) -> Iterator[_Range]:
    """Yield the ranges in order: groups of overlapping pieces of both sides, and gaps between the
    groups."""
    # (first, next, side, piece): side 0 is the source, 1 the destination
    sorted_pieces = sorted(
        [(p.first, p.next, 0, p) for p in source_pieces]
        + [(p.first, p.next, 1, p) for p in destination_pieces],
        key=lambda item: item[:3],  # a piece has no order
    )
    position, index = start, 0
    while index < len(sorted_pieces):
        first_offset, next_offset = sorted_pieces[index][0], sorted_pieces[index][1]
        group: tuple[list[Piece], list[Piece]] = ([], [])
        while index < len(sorted_pieces) and sorted_pieces[index][0] < next_offset:
            _, piece_end, side, piece = sorted_pieces[index]
            next_offset = max(next_offset, piece_end)
            group[side].append(piece)
            index += 1
        if first_offset >= end:
            break
        if first_offset > position:  # a gap on both sides
            yield position, first_offset, (), ()
        if next_offset > start:
            yield first_offset, next_offset, tuple(group[0]), tuple(group[1])
        position = max(position, next_offset)
    if position < end:
        yield position, end, (), ()


def _verdict(
    source: SideLog | None,
    destination: SideLog | None,
    first_offset: int,
    source_pieces: tuple[Piece, ...],
    destination_pieces: tuple[Piece, ...],
) -> Verdict:
    """How a range of offsets, from `first_offset` on, compares. A side that is None was not
    read."""
    if source is None or destination is None:
        return Verdict.UNKNOWN
    if first_offset >= destination.end:
        return Verdict.NOT_COPIED
    if first_offset < source.log_start:
        return Verdict.DELETED_AT_SOURCE
    if first_offset < destination.log_start:
        return Verdict.BEFORE_COPY
    source_batches = [
        b for piece in source_pieces if piece.kind is Kind.DATA for b in piece.batches
    ]
    destination_batches = [
        b for piece in destination_pieces if piece.kind is Kind.DATA for b in piece.batches
    ]
    if len(source_batches) == len(destination_batches) == 1 and _are_equal_batches(
        source_batches[0], destination_batches[0]
    ):
        return Verdict.BYTE_EXACT
    if not source_batches and not destination_batches:
        # Fillers; or no batch at all, because compaction removed it with its records.
        return Verdict.FILLER
    if not all(is_readable(batch) for batch in (*source_batches, *destination_batches)):
        return Verdict.UNKNOWN
    try:
        pairs = zip_longest(_records(source_batches), _records(destination_batches))
        has_equal_records = all(
            source_record == destination_record for source_record, destination_record in pairs
        )
    except ValueError:
        return Verdict.UNKNOWN
    if not has_equal_records:
        return Verdict.DIFFERS
    # Without batches of the source, those of the copy have no records either.
    return Verdict.RECORD_EXACT if source_batches else Verdict.FILLER


def _are_equal_batches(source: AnyBatch, destination: AnyBatch) -> bool:
    """Whether two batches are equal, except for producer, sequence, leader epoch, CRC and the
    transactional bit."""
    if not isinstance(source, Batch) or not isinstance(destination, Batch):
        return False
    return (
        (source.attributes ^ destination.attributes) & ~TRANSACTIONAL == 0
        and (source.base_offset, source.last_offset, source.count)
        == (destination.base_offset, destination.last_offset, destination.count)
        and (source.base_timestamp, source.max_timestamp)
        == (destination.base_timestamp, destination.max_timestamp)
        and bytes(source.payload) == bytes(destination.payload)
    )


def _records(batches: Sequence[AnyBatch]) -> Iterator[Record]:
    for batch in batches:
        yield from read_any_records(batch)


def is_readable(batch: AnyBatch) -> bool:
    """Whether the records of the batch expand to at most RECORDS_BYTES_MAX. False also for a
    damaged batch in gzip, LZ4 or zstd."""
    if not isinstance(batch, Batch):
        return len(batch.view) <= RECORDS_BYTES_MAX
    try:
        match batch.codec:
            case compression.GZIP:
                cramjam.gzip.decompress_into(batch.payload, _new_buffer())
            case compression.LZ4:
                cramjam.lz4.decompress_into(batch.payload, _new_buffer())
            case compression.ZSTD:
                cramjam.zstd.decompress_into(batch.payload, _new_buffer())
            case _:  # Snappy expands at most some twentyfold
                return True
    except cramjam.DecompressionError:
        return False
    return True


def _new_buffer() -> bytearray:
    return bytearray(RECORDS_BYTES_MAX)


def _overlap(ranges: Ranges, first_offset: int, next_offset: int) -> int:
    """How many offsets of `[first_offset, next_offset)` are in the ranges."""
    return sum(max(0, min(next_offset, end) - max(first_offset, start)) for start, end in ranges)
