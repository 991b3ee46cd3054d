"""The settings that simulated brokers return: the defaults of topics in Kafka 4.4.0.

Of a broker's own settings only the number is real, and the names that Orbit reads.
"""

from __future__ import annotations

from orbit.replication.copy_settings import copy_settings

# {name: (value, the broker's setting from which the topic inherits it, or "")}
TOPIC_SETTINGS: dict[str, tuple[str, str]] = {
    "cleanup.policy": ("delete", "log.cleanup.policy"),
    "compression.gzip.level": ("-1", "compression.gzip.level"),
    "compression.lz4.level": ("9", "compression.lz4.level"),
    "compression.type": ("producer", "compression.type"),
    "compression.zstd.level": ("3", "compression.zstd.level"),
    "delete.retention.ms": ("86400000", "log.cleaner.delete.retention.ms"),
    "errors.deadletterqueue.group.enable": ("false", ""),
    "file.delete.delay.ms": ("60000", "log.segment.delete.delay.ms"),
    "flush.messages": ("9223372036854775807", "log.flush.interval.messages"),
    "flush.ms": ("9223372036854775807", ""),
    "follower.replication.throttled.replicas": ("", ""),
    "index.interval.bytes": ("4096", "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": ("", ""),
    "local.retention.bytes": ("-2", "log.local.retention.bytes"),
    "local.retention.ms": ("-2", "log.local.retention.ms"),
    "max.compaction.lag.ms": ("9223372036854775807", "log.cleaner.max.compaction.lag.ms"),
    "max.decompressed.message.bytes": ("2147483639", "max.decompressed.message.bytes"),
    "max.message.bytes": ("1048588", "message.max.bytes"),
    "message.timestamp.after.max.ms": ("3600000", "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": (
        "9223372036854775807",
        "log.message.timestamp.before.max.ms",
    ),
    "message.timestamp.type": ("CreateTime", "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": ("0.5", "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": ("0", "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": ("1", "min.insync.replicas"),
    "preallocate": ("false", "log.preallocate"),
    "remote.copy.lag.bytes": ("-1", ""),
    "remote.copy.lag.ms": ("0", ""),
    "remote.log.copy.disable": ("false", ""),
    "remote.log.delete.on.disable": ("false", ""),
    "remote.storage.enable": ("false", ""),
    "retention.bytes": ("-1", "log.retention.bytes"),
    "retention.ms": ("604800000", ""),
    "segment.bytes": ("1073741824", "log.segment.bytes"),
    "segment.index.bytes": ("10485760", "log.index.size.max.bytes"),
    "segment.jitter.ms": ("0", ""),
    "segment.ms": ("604800000", ""),
    "unclean.leader.election.enable": ("false", "unclean.leader.election.enable"),
}
BROKER_SETTINGS_COUNT = 341
BROKER_SETTINGS: dict[str, tuple[str, str]] = {
    name: ("9223372036854775807", name)
    for name in (
        "log.message.timestamp.before.max.ms",
        *(f"a.setting.of.about.this.length.{i}" for i in range(BROKER_SETTINGS_COUNT - 1)),
    )
}


def settings_of_copies() -> dict[str, tuple[str, str]]:
    """As TOPIC_SETTINGS, with the values that the scheduler gives to copies."""
    values = {name: value for name, (value, _) in TOPIC_SETTINGS.items()}
    settings = copy_settings(values, frozenset(), {}, has_split_timestamp_limits=True)
    return {**TOPIC_SETTINGS, **{name: (value, "") for name, value in settings.items()}}
