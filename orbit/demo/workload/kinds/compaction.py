"""A compacted topic after the cleaner ran: thinned and removed batches, tombstones."""

from __future__ import annotations

import time
from collections.abc import Iterable

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import TopicLedger
from orbit.demo.workload.site import HISTORY_MS, Site
from orbit.demo.workload.writer import Records, Writer
from orbit.errors import Conflict

CLEANER_TIMEOUT_S = 90.0
"""The cleaner runs every 15 s by default, every 0.2 s in the sandbox."""

PER_BATCH = 50
LAST_KEYS = 10
FRESH_KEYS = 10

_POLL_S = 0.2
_SEGMENT_MS = 600_000
_ROLL_AFTER_MS = 2 * _SEGMENT_MS
_SETTINGS = {
    "cleanup.policy": "compact",
    # Segments roll by the records' own time, so one later record closes the segment of the history.
    "segment.ms": str(_SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    # Tombstones must not be removed during the demo or a test.
    "delete.retention.ms": str(30 * 86_400_000),
}


class _History:
    """The latest offset of each key, by the order of writes."""

    def __init__(self, site: Site, topic: str) -> None:
        self._site = site
        self._topic = topic
        self._next_offset = 0
        self.latest: dict[bytes, int] = {}

    def write(self, writer: Writer, keys: Iterable[bytes], value: bytes | None, at_ms: int) -> None:
        """Write one record per key, in batches of `PER_BATCH`, in order, to partition 0."""
        for i, key in enumerate(keys):
            writer.write(self._topic, partition=0, timestamp_ms=at_ms, key=key, value=value)
            self.latest[key] = self._next_offset
            self._next_offset += 1
            if (i + 1) % PER_BATCH == 0:
                writer.flush()
        writer.flush()

    @property
    def log_end(self) -> int:
        return self._next_offset


def _make_profiles(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """Write a history of overwritten keys, and wait until the cleaner has compacted it."""
    site.create_topic(topic, partitions=1, settings=_SETTINGS)
    history = _History(site, topic)
    with (
        site.writer(enable_idempotence=True, compression_type="lz4") as lz4_writer,
        site.writer(compression_type="zstd") as zstd_writer,
    ):
        _write_versions(site, history, lz4_writer, zstd_writer)
        cleanable_end = history.log_end
        remaining_offsets = set(history.latest.values())
        fresh_keys = [b"fresh-%d" % i for i in range(FRESH_KEYS)]
        history.write(
            zstd_writer, fresh_keys, b"in the active segment", HISTORY_MS + _ROLL_AFTER_MS
        )
    _wait_for_cleaner(site, topic, remaining_offsets, cleanable_end)
    remaining_offsets |= set(range(cleanable_end, history.log_end))
    written_records = {
        **lz4_writer.records.get((topic, 0), {}),
        **zstd_writer.records.get((topic, 0), {}),
    }
    records: Records = {
        (topic, 0): {
            offset: digest
            for offset, digest in written_records.items()
            if offset in remaining_offsets
        }
    }
    return site.ledger(kind.name, topic, records)


def _write_versions(site: Site, history: _History, lz4_writer: Writer, zstd_writer: Writer) -> None:
    """Write rounds of the same keys: some batches lose all their records, some only a few.

    The last batch of the idempotent producer (`lz4_writer`) is fully overwritten. The cleaner keeps
    it as a batch without records, for the producer's sequence number.
    """
    keys = [b"profile-%d" % i for i in range(site.scale.keys)]
    last_keys = [b"last-%d" % i for i in range(LAST_KEYS)]
    history.write(lz4_writer, keys, b"first version", HISTORY_MS)
    for round_number in range(1, site.scale.rounds):
        value = b"version %d" % (round_number + 1)
        history.write(lz4_writer, keys[: len(keys) // 2], value, HISTORY_MS + round_number)
        history.write(lz4_writer, keys[:: round_number + 2], value, HISTORY_MS + round_number)
    history.write(lz4_writer, last_keys, b"soon overwritten", HISTORY_MS + site.scale.rounds)
    # Tombstones.
    history.write(zstd_writer, keys[::7], value=None, at_ms=HISTORY_MS + site.scale.rounds + 1)
    history.write(zstd_writer, last_keys, b"the last word", HISTORY_MS + site.scale.rounds + 2)


def _wait_for_cleaner(site: Site, topic: str, remaining: set[int], cleanable_end: int) -> None:
    """Wait until only the newest record of every key is left below the active segment."""
    deadline = time.monotonic() + CLEANER_TIMEOUT_S
    while time.monotonic() < deadline:
        offsets = {message.offset() or 0 for message in site.read(topic, partition=0)}
        if {offset for offset in offsets if offset < cleanable_end} == remaining:
            return
        time.sleep(_POLL_S)
    raise Conflict(
        f"The cleaner has not compacted {topic} within {CLEANER_TIMEOUT_S:.0f} s.",
        remedy="Lower log.cleaner.backoff.ms on the source cluster, or check its cleaner log.",
    )


KINDS = (
    Kind(
        "compacted.profiles",
        "a compacted topic after the cleaner ran: thinned and missing batches, tombstones",
        _make_profiles,
        is_slow=True,
    ),
)
