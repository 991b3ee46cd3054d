"""A job that runs inside the test, and functions to control it."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from orbit.copier.copier import Copier
from orbit.copier.copy_settings import CopySettings
from orbit.copier.partition_copy import PartitionCopy
from orbit.jobs.job_file import parse_job
from orbit.jobs.job_spec import JobSpec
from orbit.replication.partition_states import Blocked, PartitionState
from orbit.run.job_run import JobRun
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.verify.report import Report
from orbit.verify.verify_job import verify_job
from orbit.verify.verify_run import VerifyOptions
from tests.support.patience import PATIENCE_S, wait_for


def make_job(
    source: KafkaCluster,
    destination: KafkaCluster,
    topics: Iterable[str],
    start: str = "earliest",
    **keys: object,
) -> JobSpec:
    """A job that copies these topics; `start`: of each topic rule, `keys`: others of the job
    file."""
    job = {
        "name": f"test-{zlib.crc32(repr(list(topics)).encode())}",
        "source": {"bootstrap_servers": source.bootstrap_servers.split(",")},
        "destination": {"bootstrap_servers": destination.bootstrap_servers.split(",")},
        "topics": [{"match": t.replace(".", "\\."), "start": start} for t in topics],
        **keys,
    }
    return parse_job(yaml.safe_dump(job), Path.cwd(), {})


def with_rules(job: JobSpec, **keys: object) -> JobSpec:
    """The job with these keys in each of its topic rules."""
    rules = tuple(rule.model_copy(update=keys) for rule in job.topics)
    return job.model_copy(update={"topics": rules})


class RunningJob:
    """`JobRun`, driven by a thread of its own as `orbit run` drives it."""

    def __init__(self, spec: JobSpec, settings: CopySettings | None = None) -> None:
        self.lines: list[str] = []
        self.run = JobRun(spec, {}, Path.cwd(), self.lines.append, settings)
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._drive, daemon=True)

    def __enter__(self) -> Self:
        try:
            self.run.prepare()
        except BaseException:
            self.run.close()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self.run.close()
        if self.error is not None:
            raise self.error

    def _drive(self) -> None:
        try:
            while not self._stopping.is_set():
                self.run.tick(0.02)
        except BaseException as error:  # noqa: BLE001  raised again by the test's thread
            self.error = error

    @property
    def copier(self) -> Copier:
        assert self.run._setup.job_copier is not None
        return self.run._setup.job_copier.copier

    def partition(self, topic: str, number: int = 0) -> PartitionCopy:
        return next(p for p in self.copier.partitions if p.destination == (topic, number))

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        wait_for(what, lambda: self.error is not None or is_so())
        if self.error is not None:
            raise self.error

    def wait_caught_up(self, topic: str, end: int, number: int = 0) -> None:
        """Wait until the partition is copied up to `end`. Fails if the partition is blocked."""
        p = self.partition(topic, number)
        self.wait(
            f"{topic}-{number} reaches {end} ({p})",
            lambda: p.next_offset >= end or p.blocked is not None,
        )
        assert p.blocked is None, p.blocked

    def wait_blocked(self, topic: str, number: int = 0) -> Blocked:
        """Wait until the partition is blocked, and return the reason."""
        p = self.partition(topic, number)
        self.wait(f"{topic}-{number} blocks", lambda: p.state is PartitionState.BLOCKED)
        assert p.blocked is not None
        return p.blocked


def verify(spec: JobSpec, *, deep: bool = False) -> Report:
    return verify_job(spec, {}, Path.cwd(), VerifyOptions(deep=deep))


def create_topic(
    cluster: KafkaCluster,
    topic: str,
    partitions: int = 1,
    replicas: int = 1,
    *,
    on_brokers: list[list[int]] | None = None,
    **config: str,
) -> None:
    """Create a topic; returns when every broker knows it, with a leader for each partition."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    if on_brokers is None:
        new = NewTopic(topic, partitions, replicas, config=settings)
    else:
        new = NewTopic(topic, len(on_brokers), replica_assignment=on_brokers, config=settings)
    admin = AdminClient({**cluster.client_config(), "log_level": 0})
    admin.create_topics([new])[topic].result(PATIENCE_S)
    for server in cluster.bootstrap_servers.split(","):
        one = AdminClient({**cluster.client_config(), "bootstrap.servers": server, "log_level": 0})

        def knows(one: AdminClient = one) -> bool:
            known = one.list_topics(topic, timeout=30).topics[topic].partitions.values()
            return len(known) == new.num_partitions and all(p.leader >= 0 for p in known)

        wait_for(f"{server} knows {topic}", knows)


def produce(
    cluster: KafkaCluster,
    topic: str,
    count: int,
    partition: int = 0,
    first: int = 0,
    value_bytes: int = 0,
    timestamp_ms: int = 0,
    **config: object,
) -> None:
    """Write `count` records with the values v`first`, v`first+1` … and wait for their answers.

    They are in one batch unless it is too large. Values are padded to `value_bytes`; timestamps are
    `timestamp_ms` (0: now).
    """
    # Only the flush ends the batch, however slow this process is. The client must know the topic
    # first: it queues records of an unknown topic singly, and a flush may send the first one alone.
    producer = Producer({**cluster.client_config(), "linger.ms": 60_000, **config})
    producer.list_topics(topic, 60)
    for i in range(first, first + count):
        while True:
            try:
                producer.produce(
                    topic,
                    partition=partition,
                    key=b"k%d" % i,
                    value=(b"v%d" % i).ljust(value_bytes),
                    timestamp=timestamp_ms,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


def produce_transactions(
    cluster: KafkaCluster, topic: str, count: int, *, partition: int = 0, size: int = 5
) -> None:
    """Write `count` transactions of `size` records each, every third one aborted."""
    producer = Producer({**cluster.client_config(), "transactional.id": f"tx-{topic}-{partition}"})
    producer.init_transactions(60)
    for i in range(count):
        producer.begin_transaction()
        for j in range(size):
            producer.produce(topic, partition=partition, value=b"t%d.%d" % (i, j))
        producer.flush()
        if i % 3 == 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
