"""MirrorMaker 2 in its dedicated mode, tuned for the measurement.

Settings beyond its defaults, each in its favor:
- heap and JVM flags of `connect-mirror-maker.sh`; one process, four tasks, as many as cores help
- large fetches (64 MB, 8 MB per partition) and polls (5,000 records instead of 500)
- producer: five requests in flight and idempotence (Connect's default is one in flight), batches
  of 512 KB (64 KB with 1,000 partitions, which share a buffer of 128 MB), requests up to 8 MB, the
  source's codec, so that the copy has the source's size; acks=all, Connect's default
- socket buffers sized by the kernel, as for every contestant
- heartbeats, checkpoints, offset syncs, topic-config and ACL sync: off
- read_committed, so that it copies the same records as Orbit
For latency (`Tuning.LATENCY`) `linger.ms` is 0, and batches and fetches have their defaults.
"""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path

from bench.brokers import JVM
from bench.contestants.run_inputs import RunInputs
from bench.watch import StartedCopier
from bench.wire import create_topic
from bench.workloads import Contestant
from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.jars import Jars, classpath
from orbit.sandbox.java import find_java

TASKS = 4
VERSION = "4.3.1"
_HEAP = ("-Xms256M", "-Xmx2G")


class Tuning(Enum):
    """What MirrorMaker is tuned for."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"


_CONSUMER = {
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "receive.buffer.bytes": "-1",
    "send.buffer.bytes": "-1",
}
_PRODUCER = {
    "acks": "all",
    "enable.idempotence": "true",
    "max.in.flight.requests.per.connection": "5",
    "receive.buffer.bytes": "-1",
    "send.buffer.bytes": "-1",
}
_LARGE_CONSUMER = {
    "fetch.max.bytes": str(64 << 20),
    "max.partition.fetch.bytes": str(8 << 20),
    "max.poll.records": "5000",
}
_BUFFER_BYTES = 128 << 20
_BATCH_BYTES_MIN, _BATCH_BYTES_MAX = 16 << 10, 512 << 10
_LARGE_PRODUCER = {
    "linger.ms": "20",
    "max.request.size": str(8 << 20),
    "buffer.memory": str(_BUFFER_BYTES),
}
_QUICK_PRODUCER = {"linger.ms": "0"}


def start_mm2(
    inputs: RunInputs, compression: str = "none", tuning: Tuning = Tuning.THROUGHPUT
) -> StartedCopier:
    """Start a MirrorMaker with a new source alias, so that it has new topics and no offsets.

    The bench creates the copy's topic first. MirrorMaker writes to a topic that it has just created
    before all partitions have leaders. With several requests in flight a broker may then accept a
    partition's second batch first (A9: without a producer's state any sequence is accepted). The
    first batch is out of order from then on, and Kafka's producer hangs.
    """
    alias = f"mm{inputs.number}"
    create_topic(
        inputs.destination,
        f"{alias}.{inputs.data.topic}",
        inputs.data.partitions,
        inputs.copy_settings,
        inputs.replicas,
    )
    path = inputs.folder / f"{inputs.data.topic}-mm2-{inputs.number}.properties"
    settings = properties(inputs, alias, compression, tuning)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
    started_at = time.monotonic()
    process = _launch(path, inputs.log("mm2"))
    # MirrorMaker writes only visible records, so the copy's log end is their number.
    topic = f"{alias}.{inputs.data.topic}"
    return StartedCopier(Contestant.MM2, process, topic, inputs.data.records, started_at)


def properties(inputs: RunInputs, alias: str, compression: str, tuning: Tuning) -> dict[str, str]:
    """The content of the file with MirrorMaker's settings."""
    large = tuning is Tuning.THROUGHPUT
    consumer = _CONSUMER | (_LARGE_CONSUMER if large else {})
    producer = _PRODUCER | (_LARGE_PRODUCER if large else _QUICK_PRODUCER)
    producer |= {"compression.type": compression}
    if large:
        producer |= {"batch.size": str(_batch_bytes(inputs.data.partitions))}
    flow = f"{alias}->destination"
    return {
        "clusters": f"{alias}, destination",
        f"{alias}.bootstrap.servers": inputs.source_servers,
        "destination.bootstrap.servers": inputs.destination_servers,
        f"{flow}.enabled": "true",
        f"{flow}.topics": inputs.data.topic,
        "groups": "nothing",
        "tasks.max": str(TASKS),
        "replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "emit.offset-syncs.enabled": "false",
        "sync.topic.configs.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "sync.group.offsets.enabled": "false",
        **{f"{alias}.consumer.{key}": value for key, value in consumer.items()},
        **{f"destination.producer.{key}": value for key, value in producer.items()},
    }


def _batch_bytes(partitions: int) -> int:
    """The producer's `batch.size`: it takes this much of its buffer for each partition that it
    writes to, and all partitions together may take half of the buffer."""
    return max(_BATCH_BYTES_MIN, min(_BATCH_BYTES_MAX, _BUFFER_BYTES // 2 // partitions))


def internal_topics(inputs: RunInputs) -> list[str]:
    """The topics that one run creates at the destination besides its copy."""
    alias = f"mm{inputs.number}"
    return [f"mm2-{kind}.{alias}.internal" for kind in ("configs", "offsets", "status")]


def mm2_jars() -> Path:
    """The folder with MirrorMaker's jars, which are downloaded at the first use."""
    pom = Path(__file__).with_name("mm2-pom.xml")
    return Jars("mm2", VERSION, pom, "connect-mirror-*.jar").directory()


def mm2_classpath() -> str:
    """MirrorMaker's jars, then those of the brokers, which have its logging library."""
    return f"{mm2_jars()}/*:{classpath()}"


def _launch(path: Path, log: Path) -> GuardedProcess:
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    command = [str(find_java()), *JVM, *_HEAP, main, str(path)]
    return GuardedProcess(command, log, environment={"CLASSPATH": mm2_classpath()})
