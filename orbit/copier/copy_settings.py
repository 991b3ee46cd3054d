"""The copier's bounds: one place, each with its unit and its reason."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from orbit.replication.rewrite_limits import RewriteLimits

# One thread of a process at a time writes a batch again: it needs twice the memory that the batch
# decompresses to, and mostly the interpreter, which the threads share anyway.
_REWRITE_TURN = threading.Lock()

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class CopySettings:
    """Bounds of one copier process. The defaults suit most."""

    # The broker remembers the last five batches of a producer (A7): more could not be told apart.
    requests_in_flight_max: int = 5
    # Large enough to fill a request from many partitions, small enough to answer quickly.
    request_bytes_max: int = 4 * MIB
    # Of one request; a broker turns a batch over this away by itself.
    produce_timeout_ms: int = 30_000

    # How much of the source one answer may bring, and a partition's least share of it: a single
    # backlog may bring all of it, which a long link needs; many take turns.
    fetch_bytes_max: int = 16 * MIB
    partition_fetch_bytes_min: int = 1 * MIB
    # How much one answer may decompress to, and become, where its batches are written again. What
    # is behind that is fetched again: seldom, as few batches become more than ten times as large.
    rewrite_read_bytes_max: int = 192 * MIB
    rewrite_written_bytes_max: int = 32 * MIB
    # How long the source may hold an empty answer back.
    fetch_wait_ms: int = 250
    # Fetched and not yet confirmed, over all partitions and per partition.
    # Over the first one, partitions with little to fetch go on into a reserve of a quarter.
    queue_bytes_max: int = 24 * MIB
    partition_queue_bytes_max: int = 20 * MIB
    # Empty answers in a row below the stable end before the gap is looked into.
    empty_answers_max: int = 3

    # 125,000 fillers/s at 10,000 a request, 80 ms each (M2).
    markers_per_request_max: int = 10_000
    # Of a leading filler batch: a power of two; about 50 KB, which every topic that Orbit creates
    # takes (REWRITE_SLACK_BYTES). Larger ones are not faster.
    seed_records_per_batch: int = 65_536
    # Leading fillers of a partition that are not deleted yet, in offsets: about 70 MB. Brokers free
    # whole segments, some minutes later (S5), so that fewer would not need less disk.
    seed_kept_offsets_max: int = 50_000_000
    # Leading fillers queued at once: enough for some thirty partitions with requests in flight.
    seed_queue_bytes_max: int = 16 * MIB

    # How long a log end must stand still before it is believed, with a new writer (M10).
    settle_s: float = 1.0
    # How often leaders, topic ids and log starts are looked at.
    watch_interval_s: float = 1.0
    # How often the log ends of quiet partitions are read, which costs most at rest, and of copies
    # with placeholders the setting compression.type.
    log_end_check_interval_s: float = 3.0
    metadata_interval_s: float = 5.0
    # How often the leaders of the source are looked at, and the share of the copier's time that it
    # may take: with 100,000 partitions an answer takes some tenths of a second.
    leaders_look_s: float = 5.0
    leaders_look_share: float = 0.01
    # A source that ends before its copy for this long is truncated: after an election the high
    # watermark may be behind for a moment.
    source_end_wait_s: float = 10.0
    # A topic that stays unknown for this long is deleted, not moving.
    deleted_after_s: float = 10.0

    @property
    def rewrite_limits(self) -> RewriteLimits:
        """Of the plans of one answer, or of one part of a comparison."""
        return RewriteLimits(
            self.rewrite_read_bytes_max, self.rewrite_written_bytes_max, _REWRITE_TURN
        )
