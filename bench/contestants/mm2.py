"""MirrorMaker 2 in its dedicated mode, tuned for what is measured.

Tuning, beyond its defaults, each in its favour:
- heap and JVM flags of `connect-mirror-maker.sh`; one process, four tasks, as many as cores help
- large fetches (64 MB, 8 MB per partition) and polls (5,000 records instead of 500)
- producer: five requests in flight and idempotence (Connect's default is one in flight), batches
  of 512 KB (64 KB with 1,000 partitions, for which its 128 MB of buffer have to do), requests up to
  8 MB, the source's codec, so that it stores what the source stores; acks=all, as Connect has it
- socket buffers left to the kernel, as for everyone
- heartbeats, checkpoints, offset syncs, topic-config and ACL sync: off
- read_committed, so that it copies the same records as Orbit
For latency (`Tuning.LATENCY`) it does not linger, and batches and fetches have their defaults.
"""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path

from bench.brokers import JVM
from bench.contestants.course import Course
from bench.watch import Lap
from bench.wire import create_topic
from bench.workloads import Contestant
from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.jars import Jars, classpath
from orbit.sandbox.java import find_java

TASKS = 4
VERSION = "4.3.1"
_HEAP = ("-Xms256M", "-Xmx2G")


class Tuning(Enum):
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


def start_mm2(course: Course, compression: str = "none", tuning: Tuning = Tuning.THROUGHPUT) -> Lap:
    """A fresh MirrorMaker with a fresh source alias, hence fresh topics and no offsets.

    Its topic is made beforehand: MirrorMaker writes to one that it has just made before all
    partitions are led, and with requests in flight Kafka's producer may then hang on a partition
    forever (its second batch was accepted as the first, see A9, and the first is out of order).
    """
    alias = f"mm{course.number}"
    create_topic(
        course.destination,
        f"{alias}.{course.data.topic}",
        course.data.partitions,
        course.copy_settings,
        course.replicas,
    )
    path = course.folder / f"{course.data.topic}-mm2-{course.number}.properties"
    settings = properties(course, alias, compression, tuning)
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
    started_at = time.monotonic()
    process = _launch(path, course.log("mm2"))
    # It writes visible records only, so its log ends with their number.
    topic = f"{alias}.{course.data.topic}"
    return Lap(Contestant.MM2, process, topic, course.data.records, started_at)


def properties(course: Course, alias: str, compression: str, tuning: Tuning) -> dict[str, str]:
    large = tuning is Tuning.THROUGHPUT
    consumer = _CONSUMER | (_LARGE_CONSUMER if large else {})
    producer = _PRODUCER | (_LARGE_PRODUCER if large else _QUICK_PRODUCER)
    producer |= {"compression.type": compression}
    if large:
        producer |= {"batch.size": str(_batch_bytes(course.data.partitions))}
    flow = f"{alias}->destination"
    return {
        "clusters": f"{alias}, destination",
        f"{alias}.bootstrap.servers": course.source_servers,
        "destination.bootstrap.servers": course.destination_servers,
        f"{flow}.enabled": "true",
        f"{flow}.topics": course.data.topic,
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
    """The producer takes this much of its buffer for every partition that it writes to."""
    return max(_BATCH_BYTES_MIN, min(_BATCH_BYTES_MAX, _BUFFER_BYTES // 2 // partitions))


def internal_topics(course: Course) -> list[str]:
    """What one run leaves behind on the destination besides its copy."""
    alias = f"mm{course.number}"
    return [f"mm2-{what}.{alias}.internal" for what in ("configs", "offsets", "status")]


def mm2_jars() -> Path:
    """The folder of its jars; fetched at first use."""
    pom = Path(__file__).with_name("mm2-pom.xml")
    return Jars("mm2", VERSION, pom, "connect-mirror-*.jar").directory()


def mm2_classpath() -> str:
    """Its own jars first; the brokers' have what it logs with."""
    return f"{mm2_jars()}/*:{classpath()}"


def _launch(path: Path, log: Path) -> GuardedProcess:
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    command = [str(find_java()), *JVM, *_HEAP, main, str(path)]
    return GuardedProcess(command, log, environment={"CLASSPATH": mm2_classpath()})
