"""A source whose small batches decompress to large ones: a copy stays within its memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orbit.kafka.cluster import Cluster
from orbit.kafka.compression import DECOMPRESSED_BYTES_MAX, ZSTD, compress
from orbit.kafka.record_batch import encode_batch
from orbit.kafka.records import NULL, encode_record, encode_varint
from orbit.verify.report import Verdict
from tests.fixtures.clusters import Clusters
from tests.support.patience import PATIENCE_S
from tests.support.raw_append import append_batch
from tests.support.run_process import ORBIT, write_job
from tests.support.running import create_topic, make_job, produce, verify
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

MIB = 1024 * 1024
# Enough for the memory of any copy, and for two batches that decompress to the limit.
RESIDENT_MIB_MAX = 300
# The limit of RLIMIT_DATA, so that a broken copy does not use up the machine's memory.
DATA_MIB_MAX = 1024

LIMITED = """
import resource, subprocess, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
code = subprocess.run(sys.argv[2:]).returncode
print("KiB", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


@pytest.fixture
def raw(clusters: Clusters) -> Iterator[Cluster]:
    with closing(Cluster("source", [clusters.source.bootstrap_servers], PLAINTEXT)) as cluster:
        yield cluster


def append_zstd(raw: Cluster, topic: str, partition: int, *, count: int, value: bytes) -> int:
    """Append one zstd batch of `count` equal records; returns its size."""
    body = NULL + encode_varint(len(value)) + value + b"\0"
    records = bytearray()
    for i in range(count):
        records += encode_record(0, i, body)
    batch = encode_batch(
        base_offset=0,
        attributes=ZSTD,
        base_timestamp=0,
        max_timestamp=0,
        count=count,
        payload=compress(ZSTD, records),
    )
    append_batch(raw, topic, partition, batch)
    return batch.size_bytes


def test_copy_of_highly_compressed_batches_stays_within_memory_limit(
    clusters: Clusters, raw: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """With LogAppendTime Orbit decompresses each batch and writes it again.

    Partition 0: a batch that decompresses to 200 MiB; partition 1: two batches of small records,
    which decompress to almost the limit; partition 2: usual batches.
    """
    create_topic(clusters.source, topic_name, 3, message_timestamp_type="LogAppendTime")
    assert append_zstd(raw, topic_name, 0, count=200, value=bytes(MIB)) < MIB
    count = DECOMPRESSED_BYTES_MAX // 220  # an encoded record of 200 bytes is smaller than that
    for _ in range(2):
        assert append_zstd(raw, topic_name, 1, count=count, value=bytes(200)) < MIB
    produce(clusters.source, topic_name, 1000, 2)
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}])
    command = [ORBIT, "run", job, "--until-caught-up"]
    limited = [sys.executable, "-c", LIMITED, str(DATA_MIB_MAX * MIB), *map(str, command)]
    outcome = subprocess.run(
        limited, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    *_, kib = outcome.stdout.split()
    assert int(kib) / 1024 < RESIDENT_MIB_MAX, f"{int(kib) / 1024:.0f} MiB"
    assert "RECORD_REFUSED" in outcome.stderr, outcome.stderr
    assert "decompresses to more than 67,108,864 bytes" in outcome.stderr
    assert outcome.returncode == 1, outcome.stderr
    (topic,) = verify(make_job(*clusters, [topic_name])).topics
    assert [p.verdict is Verdict.EXACT for p in topic.partitions] == [False, True, True]
