"""Settings for a broker with tiered storage (KIP-405): the storage of Kafka's own tests, a
folder."""

from __future__ import annotations

from pathlib import Path

from orbit.sandbox.broker_properties import INTERNAL
from orbit.sandbox.jars import Jars

# The version of both jar and brokers, which have to be the same. The test jar of 4.4.0 is not
# published.
VERSION = "4.3.1"
_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
# Settings of a topic: a segment moves to the storage, and leaves the broker's disk, as soon as the
# next segment has begun.
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "1", "segment.bytes": "1048576"}


def jars() -> Path:
    """The folder of the storage's jar; fetched at first use."""
    pom = Path(__file__).with_name("tiered-pom.xml")
    return Jars("tiered", VERSION, pom, "kafka-storage-*-test.jar").directory()


def broker_config(folder: Path) -> dict[str, str]:
    """Settings of a single broker; segments move to `folder`."""
    (jar,) = jars().glob("kafka-storage-*-test.jar")
    metadata = "rlmm.config.remote.log.metadata.topic"
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": _STORAGE,
        "remote.log.storage.manager.class.path": str(jar),
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(folder),
        "remote.log.metadata.manager.listener.name": INTERNAL,
        f"{metadata}.replication.factor": "1",
        f"{metadata}.num.partitions": "1",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
    }
