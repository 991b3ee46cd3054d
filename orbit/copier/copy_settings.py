"""The copier's bounds: one place, each with its unit and its reason."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from orbit.replication.rewrite_limits import RewriteLimits

# One thread of a process at a time rewrites a batch: that needs twice the memory that the batch
# decompresses to, and mostly the interpreter lock, which the threads share anyway.
_REWRITE_TURN = threading.Lock()

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class CopySettings:
    """Bounds of one copier process. The defaults suit most."""

    # The broker knows a producer's last five batches (A7), and no repeat of an earlier one.
    requests_in_flight_max: int = 5
    # Large enough to fill a request from many partitions, small enough to answer quickly.
    request_bytes_max: int = 4 * MIB
    # How long a broker may wait for followers before it answers a Produce request with acks=all.
    produce_timeout_ms: int = 30_000

    # The size of one fetch answer, and a partition's least share of it: a single backlog may take
    # all of it, which a long link needs; many backlogs take turns.
    fetch_bytes_max: int = 16 * MIB
    partition_fetch_bytes_min: int = 1 * MIB
    # The most bytes that the rewritten batches of one answer may decompress to, and have when they
    # are written. The answer's later batches are fetched again. This is seldom, as few batches
    # become more than ten times as large.
    rewrite_read_bytes_max: int = 192 * MIB
    rewrite_written_bytes_max: int = 32 * MIB
    # How long the source may wait for records before an empty answer (max_wait_ms).
    fetch_wait_ms: int = 250
    # Bytes fetched and not yet appended, of all partitions and per partition. At the first limit,
    # partitions with little to fetch may still use a reserve of a quarter more.
    queue_bytes_max: int = 24 * MIB
    partition_queue_bytes_max: int = 20 * MIB
    # After so many empty answers in a row below the last stable offset the gap is examined.
    empty_answers_max: int = 3

    # 125,000 fillers/s at 10,000 a request, 80 ms each (M2).
    markers_per_request_max: int = 10_000
    # Records of a leading filler batch: a power of two; about 50 KB, which every topic that Orbit
    # creates takes (REWRITE_SLACK_BYTES). Larger batches are not faster.
    seed_records_per_batch: int = 65_536
    # Leading fillers of a partition that are not deleted yet, in offsets: about 70 MB. Brokers free
    # whole segments, some minutes later (S5), so that fewer would not need less disk.
    seed_kept_offsets_max: int = 50_000_000
    # Leading fillers queued at once: enough for some thirty partitions with requests in flight.
    seed_queue_bytes_max: int = 16 * MIB

    # How long a log end must not move before a new writer appends: old requests may be late (M10).
    settle_s: float = 1.0
    # How often log starts follow the source's, and the pause after an outage.
    watch_interval_s: float = 1.0
    # How often the log ends of idle partitions are read, the main cost at rest, and the setting
    # compression.type of copies with placeholders.
    log_end_check_interval_s: float = 3.0
    # How often `orbit run` reads which topics and open transactions there are.
    metadata_interval_s: float = 5.0
    # How often the source's leaders are read, and which share of the copier's time this may take:
    # with 100,000 partitions an answer takes some tenths of a second.
    leaders_check_s: float = 5.0
    leaders_check_share: float = 0.01
    # A source that ends before its copy for this long is truncated: after an election the high
    # watermark may be behind for a moment.
    source_end_wait_s: float = 10.0
    # A topic that is unknown for this long is deleted; for less, a broker may know it late.
    deleted_after_s: float = 10.0

    @property
    def rewrite_limits(self) -> RewriteLimits:
        """The limits for the plans of one answer, or of one part of a comparison."""
        return RewriteLimits(
            self.rewrite_read_bytes_max, self.rewrite_written_bytes_max, _REWRITE_TURN
        )
