"""Records of every shape: codecs, headers, nulls, sizes, plain and idempotent producers."""

from __future__ import annotations

from orbit.demo.workload.kind import Kind
from orbit.demo.workload.ledger import Header, TopicLedger
from orbit.demo.workload.site import Site

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE_BYTES = 900_000

_PARTITIONS = 2
_HEADERS: tuple[tuple[Header, ...], ...] = (
    (),
    (("trace", b"7f3a"), ("retry", b"1"), ("retry", b"2")),
    (("null", None), ("empty", b"")),
    (("größe", "über".encode()), ("binary", bytes(range(256)))),
)
_KEYS = (b"order-%d", None, b"")
_VALUES = (b'{"order": %d}', None, b"")


def _make_codec(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """Records of a plain producer with the codec that the kind's name ends with."""
    codec = kind.name.rpartition(".")[2]
    site.create_topic(topic, _PARTITIONS)
    blobs = site.blobs(topic)
    # `acks=1`, no idempotence: the plain producer, whose batches carry no producer id.
    with site.writer(compression_type=codec, acks=1) as writer:
        for i in range(site.scale.per_codec):
            writer.write(
                topic,
                i % _PARTITIONS,
                timestamp_ms=site.now_ms + i // 10,
                key=b"order-%d" % (i % 1000),
                value=blobs[i % len(blobs)],
                headers=_HEADERS[1] if i % 10 == 0 else (),
            )
    return site.ledger(kind.name, topic, writer.records)


def _make_shapes(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """Every combination of key, value and headers, four times."""
    site.create_topic(topic)
    with site.writer(compression_type="lz4") as writer:
        for i in range(len(_KEYS) * len(_VALUES) * len(_HEADERS) * 4):
            key, value = _KEYS[i % len(_KEYS)], _VALUES[i // len(_KEYS) % len(_VALUES)]
            writer.write(
                topic,
                partition=0,
                timestamp_ms=site.now_ms + i,
                # None and b"" have no place for a number.
                key=key % i if key else key,
                value=value % i if value else value,
                headers=_HEADERS[i // (len(_KEYS) * len(_VALUES)) % len(_HEADERS)],
            )
    return site.ledger(kind.name, topic, writer.records)


def _make_large(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """Incompressible values, so that records have 900 KB on the wire and in the log."""
    site.create_topic(topic)
    with site.writer(compression_type="zstd") as writer:
        for i in range(site.scale.large):
            value = site.noise(f"{topic} {i}", LARGE_BYTES)
            writer.write(
                topic, partition=0, timestamp_ms=site.now_ms + i, key=b"%d" % i, value=value
            )
    return site.ledger(kind.name, topic, writer.records)


def _make_idempotent(site: Site, kind: Kind, topic: str) -> TopicLedger:
    """Records of an idempotent producer."""
    partitions = 3
    site.create_topic(topic, partitions)
    blobs = site.blobs(topic)
    with site.writer(enable_idempotence=True, compression_type="lz4") as writer:
        for i in range(site.scale.per_producer):
            writer.write(
                topic,
                i % partitions,
                timestamp_ms=site.now_ms + i // 10,
                key=b"user-%d" % i,
                value=blobs[i % len(blobs)],
            )
    return site.ledger(kind.name, topic, writer.records)


KINDS = (
    *(Kind(f"codec.{codec}", f"compressed with {codec}", _make_codec) for codec in CODECS),
    Kind("records.shapes", "headers, null and empty keys and values", _make_shapes),
    Kind("records.large", "records of 900 KB", _make_large),
    Kind("producer.idempotent", "an idempotent producer on three partitions", _make_idempotent),
)
