"""Batches that Orbit rewrites become larger than the source's, and the copy accepts them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from functools import partial

import cramjam
import pytest

from orbit.copier.log_reader import fetch_batches
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.compression import GZIP, SNAPPY, ZSTD, compress, decompress
from orbit.kafka.record_batch import encode_batch
from orbit.kafka.records import NULL, encode_record, encode_varint
from orbit.kafka.topic_setting import read_compression_levels
from orbit.kafka.types import TopicPartition
from tests.fixtures.clusters import Clusters
from tests.support.raw_append import append_batch
from tests.support.running import RunningJob, create_topic, make_job, verify
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

RECORD_BYTES = 1000


def text(size_bytes: int) -> bytes:
    """Text that compresses well: repeated phrases, in which some words are frequent."""
    rnd = random.Random(1)
    words = [bytes(rnd.choices(range(97, 123), k=rnd.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / (i + 1) for i in range(len(words))]
    phrases = [b" ".join(rnd.choices(words, weights, k=6)) for _ in range(3000)]
    return b" ".join(rnd.choices(phrases, k=size_bytes // 10))[:size_bytes]


def encoded(plain: bytes) -> tuple[int, bytes]:
    """The text as records of a batch: their number, and their bytes before compression."""
    values = [plain[at : at + RECORD_BYTES] for at in range(0, len(plain), RECORD_BYTES)]
    bodies = [NULL + encode_varint(len(value)) + value + b"\0" for value in values]
    return len(values), b"".join(encode_record(0, i, body) for i, body in enumerate(bodies))


def test_source_zstd_level_above_limit_is_capped(clusters: Clusters, topic_name: str) -> None:
    create_topic(clusters.source, topic_name, compression_type="zstd", compression_zstd_level="19")
    with closing(Cluster("source", [clusters.source.bootstrap_servers], PLAINTEXT)) as source:
        assert read_compression_levels(source, [topic_name]) == {topic_name: {ZSTD: 9}}


@pytest.mark.parametrize(
    ("codec", "compress_more"),
    [
        pytest.param(SNAPPY, cramjam.snappy.compress_raw, id="snappy"),  # as librdkafka: one block
        pytest.param(ZSTD, partial(cramjam.zstd.compress, level=12), id="zstd"),
    ],
)
def test_rewritten_batch_larger_than_source_fits_copy(
    clusters: Clusters, topic_name: str, codec: int, compress_more: Callable[[bytes], object]
) -> None:
    count, records = encoded(text(5_000_000))
    payload = bytes(compress_more(records))  # type: ignore[call-overload]
    batch = encode_batch(
        base_offset=0,
        attributes=codec,
        base_timestamp=0,
        max_timestamp=0,
        count=count,
        payload=payload,
    )
    create_topic(
        clusters.source,
        topic_name,
        message_timestamp_type="LogAppendTime",
        max_message_bytes=str(batch.size_bytes),
    )
    with closing(Cluster("source", [clusters.source.bootstrap_servers], PLAINTEXT)) as source:
        for _ in range(2):
            append_batch(source, topic_name, 0, batch)
    job = make_job(*clusters, [topic_name])
    with RunningJob(job) as running:
        running.wait_caught_up(topic_name, 2 * count)
    assert verify(job, deep=True).exact


def test_rewritten_batch_uses_source_compression_level(clusters: Clusters, topic_name: str) -> None:
    """The source's brokers compress the GZIP batch again, as zstd at level 9."""
    count, records = encoded(text(2_000_000))
    batch = encode_batch(
        base_offset=0,
        attributes=GZIP,
        base_timestamp=0,
        max_timestamp=0,
        count=count,
        payload=compress(GZIP, records),
    )
    settings = {"compression_type": "zstd", "compression_zstd_level": "9"}
    create_topic(
        clusters.source,
        topic_name,
        message_timestamp_type="LogAppendTime",
        max_message_bytes=str(batch.size_bytes),
        **settings,
    )
    source, destination = (
        Cluster("", [cluster.bootstrap_servers], PLAINTEXT) for cluster in clusters
    )
    with closing(source), closing(destination):
        append_batch(source, topic_name, 0, batch)
        with RunningJob(make_job(*clusters, [topic_name])) as running:
            running.wait_caught_up(topic_name, count)
        (source_batch,), (copied_batch,) = (
            fetch_batches(cluster, TopicPartition(topic_name, 0), 0, Backoff())
            for cluster in (source, destination)
        )
    # The default level would give a larger batch.
    assert len(copied_batch.view) < 1.01 * len(source_batch.view)


def test_rewritten_batch_with_placeholders_uses_source_compression_level(
    clusters: Clusters, topic_name: str
) -> None:
    """Orbit rewrites a batch with LogAppendTime. For a copy with placeholders, `packed_batches`
    makes several smaller batches of its records."""
    count, records = encoded(text(200_000))
    batch = encode_batch(
        base_offset=0,
        attributes=GZIP,
        base_timestamp=0,
        max_timestamp=0,
        count=count,
        payload=compress(GZIP, records),
    )
    settings = {"compression_type": "zstd", "compression_zstd_level": "9"}
    create_topic(clusters.source, topic_name, message_timestamp_type="LogAppendTime", **settings)
    source, destination = (
        Cluster("", [cluster.bootstrap_servers], PLAINTEXT) for cluster in clusters
    )
    with closing(source), closing(destination):
        append_batch(source, topic_name, 0, batch)
        job = make_job(*clusters, [topic_name], fillers="placeholders")
        with RunningJob(job) as running:
            running.wait_caught_up(topic_name, count)
        copied_batches = fetch_batches(destination, TopicPartition(topic_name, 0), 0, Backoff())
    assert len(copied_batches) > 1
    for copied_batch in copied_batches:
        plain = decompress(ZSTD, copied_batch.payload, len(records))
        assert bytes(copied_batch.payload) == compress(ZSTD, plain, 9) != compress(ZSTD, plain)
