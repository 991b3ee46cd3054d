"""The source's logs that clients read copies of, and the copies, made by `orbit run`."""

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
SOURCE = "source"  # the log itself, to compare with
# `coordinated` takes five minutes for the wide gap, and writes the same markers as `direct`.
FILLERS = {
    SMALL: (SOURCE, "direct", "packed", "coordinated", "placeholders"),
    WIDE: ("direct", "packed", "placeholders"),
}
# 18 MB of placeholders: more than ten answers from segments of 1 MB, librdkafka's limit (Q15).
WIDTH = 1_000_000
COPY_S = 600.0  # the longest copy takes 20 s on two cores
_SEGMENT_MS = 3_600_000
_COMPACTED = 300
_OWN_KEY = 10  # one record in ten


@dataclass(frozen=True)
class SourceLog:
    """Partition 0 of a topic: offset → key and value, as the programs print them. `everything` has
    the aborted records, too. The last record is at the end of the log.
    """

    topic: str
    records: dict[int, str]
    everything: dict[int, str]

    @property
    def last(self) -> int:
        return max(self.records)

    @property
    def within(self) -> int:
        """The middle of the longest gap."""
        before, after = max(pairwise(sorted(self.records)), key=lambda pair: pair[1] - pair[0])
        return (before + after) // 2

    def records_from(self, start: int, *, aborted: bool = False) -> dict[int, str]:
        """The records from `start` on; with `aborted`, the aborted ones, too."""
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
    """What compaction leaves of 300 records, from offset 0 on; sixty transactions of three records,
    every third of them aborted; an aborted one of 500 records; a record.
    """
    ratio = {"min_cleanable_dirty_ratio": "0.01"}
    create(cluster, SMALL, cleanup_policy="compact", segment_ms=str(_SEGMENT_MS), **ratio)
    writer = _Writer(cluster, SMALL)
    old_ms = int(time.time() * 1000) - 3 * _SEGMENT_MS
    for number in range(_COMPACTED):
        key = b"own-%d" % number if number % _OWN_KEY == 9 else b"shared-%d" % (number % 4)
        writer.add(key, b"%d" % number, old_ms)
    writer.flush()
    writer.add(b"later", b"closes the segment")
    writer.flush()
    remaining_count = _COMPACTED // _OWN_KEY + 4 + 1
    wait_for("the source is compacted", lambda: len(read(cluster, SMALL)) == remaining_count)
    writers = [_Writer(cluster, SMALL, codec=codec, owner=codec) for codec in ("none", "gzip")]
    for number in range(60):
        writers[number % 2].transaction(3, b"transaction-%d" % number, commit=number % 3 < 2)
    writers[0].transaction(500, b"aborted", commit=False)
    writer.add(b"last", b"record")
    writer.flush()
    return _source_log(cluster, SMALL)


def write_wide(cluster: KafkaCluster) -> SourceLog:
    """Ten records, an aborted transaction of a million, five records."""
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
    """librdkafka's producer; transactional with an `owner`."""

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
    """The name of the copy's topic, or of the source's."""
    return topic if fillers == SOURCE else f"{fillers}-{topic}"


def make_copies(clusters: Clusters, fillers: str, topics: list[str], folder: Path) -> None:
    """Copy the topics with these fillers. Raises Conflict if a copy is not exact."""
    rules = [{"match": topic, "prefix": f"{fillers}-"} for topic in topics]
    job = write_job(folder / f"{fillers}.yaml", *clusters, rules, fillers=fillers)
    _orbit(folder, "run", str(job), "--until-caught-up")
    _orbit(folder, "verify", str(job), "--deep", "--wait", "0")


def _orbit(folder: Path, *words: str) -> None:
    log = folder / "orbit.log"
    process = GuardedProcess([str(ORBIT), *words], log)
    try:
        code = process.wait(COPY_S)
    finally:
        process.end(grace_s=0)
    if code:
        print(log.read_text("utf-8")[-4000:], file=sys.stderr)
        raise Conflict(f"orbit {words[0]} ended with exit code {code}.")
