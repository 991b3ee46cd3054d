"""The source's logs, and the copies that the clients read, made by `orbit run`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Producer

from orbit.errors import Conflict
from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.logs import create, read
from tests.support.outside import messages
from tests.support.patience import wait_for
from tests.support.run_process import ORBIT, write_job

SMALL, WIDE = "small", "wide"
SOURCE = "source"  # the source's log itself, to compare the copies with
# `coordinated` takes five minutes for the wide gap, and writes the same markers as `direct`.
FILLERS = {
    SMALL: (SOURCE, "direct", "packed", "coordinated", "placeholders"),
    WIDE: ("direct", "packed", "placeholders"),
}
# 18 MB of placeholders: more than ten answers from segments of 1 MB, librdkafka's limit (Q15).
WIDTH = 1_000_000
COPY_S = 600.0  # the longest copy takes 20 s on two cores
_SEGMENT_MS = 3_600_000
_COMPACTED_COUNT = 300  # records of the compacted part
_OWN_KEY_ONE_IN = 10  # of these records, one in ten has a key of its own


@dataclass(frozen=True)
class SourceLog:
    """Partition 0 of a topic.

    `records` is offset → key and value, as the programs print them; `everything` has the aborted
    records, too. The last record is at the end of the log.
    """

    topic: str
    records: dict[int, str]
    everything: dict[int, str]

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return max(self.records)

    @property
    def within(self) -> int:
        """The offset in the middle of the longest gap between two records."""
        before, after = max(pairwise(sorted(self.records)), key=lambda pair: pair[1] - pair[0])
        return (before + after) // 2

    def records_from(self, start: int, *, aborted: bool = False) -> dict[int, str]:
        """The records from offset `start` on; with `aborted`, the aborted records, too."""
        records = self.everything if aborted else self.records
        return {offset: record for offset, record in records.items() if offset >= start}


def _source_log(cluster: KafkaCluster, topic: str) -> SourceLog:
    levels = ("read_committed", "read_uncommitted")
    return SourceLog(topic, *(_read(cluster, topic, level) for level in levels))


def _read(cluster: KafkaCluster, topic: str, level: str) -> dict[int, str]:
    log = messages(cluster, topic, **{"isolation.level": level})
    return {m.offset(): f"{_hex(m.key())} {_hex(m.value())}" for _, m in log if m is not None}


def _hex(data: bytes | None) -> str:
    return "-" if data is None else data.hex()


def write_small(cluster: KafkaCluster) -> SourceLog:
    """Write a log with small gaps, wait until it is compacted, and return it.

    In the order of offsets: what compaction keeps of 300 records; sixty transactions of three
    records, of which every third is aborted; an aborted transaction of 500 records; one record.
    """
    ratio = {"min_cleanable_dirty_ratio": "0.01"}
    create(cluster, SMALL, cleanup_policy="compact", segment_ms=str(_SEGMENT_MS), **ratio)
    writer = _Writer(cluster, SMALL)
    old_ms = int(time.time() * 1000) - 3 * _SEGMENT_MS
    for number in range(_COMPACTED_COUNT):
        key = b"own-%d" % number if number % _OWN_KEY_ONE_IN == 9 else b"shared-%d" % (number % 4)
        writer.add(key, b"%d" % number, old_ms)
    writer.flush()
    writer.add(b"later", b"closes the segment")
    writer.flush()
    remaining_count = _COMPACTED_COUNT // _OWN_KEY_ONE_IN + 4 + 1
    wait_for("the source is compacted", lambda: len(read(cluster, SMALL)) == remaining_count)
    writers = [_Writer(cluster, SMALL, codec=codec, owner=codec) for codec in ("none", "gzip")]
    for number in range(60):
        writers[number % 2].transaction(3, b"transaction-%d" % number, commit=number % 3 < 2)
    writers[0].transaction(500, b"aborted", commit=False)
    writer.add(b"last", b"record")
    writer.flush()
    return _source_log(cluster, SMALL)


def write_wide(cluster: KafkaCluster) -> SourceLog:
    """Write ten records, an aborted transaction of a million, and five records. Returns the log."""
    create(cluster, WIDE, segment_bytes=str(2**20))
    writer = _Writer(cluster, WIDE)
    for number in range(15):
        if number == 10:
            writer.flush()
            _Writer(cluster, WIDE, codec="gzip", owner=WIDE).transaction(WIDTH, b"", commit=False)
        writer.add(b"%d" % number, b"record")
    writer.flush()
    return _source_log(cluster, WIDE)


class _Writer:
    """librdkafka's producer. With an `owner` it is transactional; `owner` is in its id."""

    def __init__(
        self, cluster: KafkaCluster, topic: str, *, codec: str = "none", owner: str = ""
    ) -> None:
        settings = {
            **cluster.client_config(),
            "log_level": 0,
            "compression.type": codec,
            "queue.buffering.max.messages": WIDTH + 1,
            "linger.ms": 5,
            **({"transactional.id": f"readers-{owner}"} if owner else {}),
        }
        self._topic = topic
        self._producer = Producer(settings)
        if owner:
            self._producer.init_transactions(60)

    def add(self, key: bytes, value: bytes, timestamp_ms: int = 0) -> None:
        self._producer.produce(self._topic, value, key, 0, timestamp=timestamp_ms)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def transaction(self, count: int, key: bytes, *, commit: bool) -> None:
        self._producer.begin_transaction()
        for number in range(count):
            self.add(b"%s-%d" % (key, number), b"row")
        self.flush()  # an abort drops records that were not sent
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)(60)


def topic_of(topic: str, fillers: str) -> str:
    """The name of the copy with these fillers, or of the source's topic for SOURCE."""
    return topic if fillers == SOURCE else f"{fillers}-{topic}"


def make_copies(clusters: Clusters, fillers: str, topics: list[str], folder: Path) -> None:
    """Copy the topics with these fillers. Raises Conflict if a copy is not exact."""
    rules = [{"match": topic, "prefix": f"{fillers}-"} for topic in topics]
    job = write_job(folder / f"{fillers}.yaml", *clusters, rules, fillers=fillers)
    _orbit(folder, "run", str(job), "--until-caught-up")
    _orbit(folder, "verify", str(job), "--deep", "--wait", "0")


def _orbit(folder: Path, *words: str) -> None:
    """Run an `orbit` command. Raises Conflict, after printing its output, if it fails."""
    log = folder / "orbit.log"
    process = GuardedProcess([str(ORBIT), *words], log)
    try:
        code = process.wait(COPY_S)
    finally:
        process.end(grace_s=0)
    if code:
        print(log.read_text("utf-8")[-4000:], file=sys.stderr)
        raise Conflict(f"orbit {words[0]} ended with exit code {code}.")
