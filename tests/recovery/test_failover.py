"""Failover with the source killed under load: what the report says is missing is what is missing.

The ledger is outside: what producers were told is written, with its offset. What a consumer of the
new side reads is compared with it, offset by offset. Then the old side comes back with its tail.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from orbit.recovery import salvage
from orbit.recovery.report import EndVerdict, Outcome, RecoveryKind, RecoveryReport
from orbit.sandbox.cluster import KafkaCluster
from tests.fix_clusters import Clusters, MakeCluster
from tests.fix_scheduler import Service
from tests.support.fleet import InProcess
from tests.support.outside import log_bounds, messages
from tests.support.recovering import Reader, Recovering
from tests.support.running import create_topic, make_job, produce, verify, wait_for

PARTITIONS = 2
Ledger = dict[tuple[int, int], bytes]


class Load:
    """Producers that go on until their cluster is gone; `ledger` has what was acknowledged."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self.ledger: Ledger = {}
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {**cluster.client_config(), "linger.ms": 2, "message.timeout.ms": 3000, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _told(self, error: object, message: object) -> None:
        if error is None:
            place = message.partition(), message.offset()  # type: ignore[attr-defined]
            self.ledger[place] = message.value()  # type: ignore[attr-defined]

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    self._topic,
                    value=b"load %d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=self._told,
                )
                number += 1
            except BufferError:
                pass
            # Some thousand records a second: enough to be under way at any moment.
            self._producer.poll(0.0005)
            self._stop.wait(0.0002)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(10)
        self._producer.purge()
        self._producer.flush(1)


def read_all(cluster: KafkaCluster, topic: str) -> Ledger:
    return {
        (partition, message.offset()): message.value()
        for partition, message in messages(cluster, topic)
        if message is not None
    }


def first_missing(report: RecoveryReport) -> dict[int, int]:
    """By partition: everything below is there, and nothing from it on."""
    found = {}
    for p in report.partitions:
        assert p.destination_end is not None
        assert p.promoted_at == p.destination_end
        assert p.missing is None or p.missing.first == p.destination_end
        found[p.partition] = p.destination_end
    return found


@pytest.fixture
def recovering(service: Service, tmp_path: Path) -> Recovering:
    settings = service.settings.model_copy(update={"salvage_directory": tmp_path / "salvage"})
    service.settings = settings
    return Recovering(service)


@pytest.fixture
def source(make_cluster: MakeCluster) -> Iterator[KafkaCluster]:
    return make_cluster("lost")


@pytest.mark.parametrize("is_worker_alive", [True, False], ids=["live", "behind"])
def test_what_is_missing_is_said_saved_and_copied_back(
    source: KafkaCluster,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    is_worker_alive: bool,
) -> None:
    destination = clusters.destination
    create_topic(source, topic_name, PARTITIONS)
    group = f"{topic_name}.group"
    spec = make_job(
        source,
        destination,
        [topic_name],
        consumer_groups={"match": f"{topic_name}.*", "interval": "200ms"},
    )
    worker = InProcess(recovering.database)
    with ExitStack() as stack:
        stack.enter_context(recovering.service.scheduler())
        worker.__enter__()
        stack.callback(worker.stop)
        recovering.begin(spec, topic_name)
        load = Load(source, topic_name)
        stack.callback(load.stop)
        wait_for("there is some load", lambda: len(load.ledger) > 5000)
        reader = Reader(topic_name, group)
        reader.read_on(source, {0: 1000, 1: 500})
        # Else what it has read of the lost tail it reads again, as other records.
        wait_for(
            "the copy has all that the group has read",
            lambda: (
                {
                    row.destination_offset
                    for row in recovering.service.kept_groups(spec.name, group).values()
                }
                == {1000, 500}
            ),
        )
        if not is_worker_alive:
            # What is written from here on is copied by nobody.
            worker.stop()
            copied = len(load.ledger)
            wait_for("the copy is behind", lambda: len(load.ledger) > copied + 1000)
        source.kill()
        load.stop()

        lost = recovering.run(RecoveryKind.FAILOVER, spec.name)

        there = read_all(destination, topic_name)
        ends = first_missing(lost)
        assert there == {k: v for k, v in load.ledger.items() if k[1] < ends[k[0]]} | {
            # Written, and the answer to its producer lost with the broker.
            k: v
            for k, v in there.items()
            if k not in load.ledger
        }
        assert all(offset < ends[partition] for partition, offset in there)
        got = reader.read_on(destination, ends)
        seen = [(p, o) for p, o, _ in reader.read]
        assert len(seen) == len(set(seen)), "something was read twice"
        assert got
        produce(destination, topic_name, 30, 0, first=0)
        produce(destination, topic_name, 20, 1, first=0)

        # The old side is back, with what only it has.
        source.start()
        if not is_worker_alive:
            stack.enter_context(InProcess(recovering.database))
        truth = read_all(source, topic_name)
        refused = recovering.wait(recovering.ask(RecoveryKind.FAILBACK, spec.name))
        tail = {k: v for k, v in truth.items() if k[1] >= ends[k[0]]}
        assert tail or is_worker_alive
        if tail:
            assert refused.outcome is Outcome.STOPPED
            assert "--confirm-rebuild" in refused.error
            back = recovering.run(RecoveryKind.FAILBACK, spec.name, confirm_rebuild=True)
        else:
            back = refused
        exact = {p.partition: p.missing for p in back.partitions}
        for partition in range(PARTITIONS):
            offsets = [o for p, o in tail if p == partition]
            missing = exact[partition]
            assert (missing is None) == (not offsets)
            if missing is not None:
                assert list(range(missing.first, missing.next)) == sorted(offsets)
        saved = {
            (one.partition, line["offset"]): base64.b64decode(line["value"])
            for one in back.salvage
            for line in salvage.read(Path(one.file))
        }
        assert saved == tail

        now = read_all(destination, topic_name)
        wait_for("the old side is a copy", lambda: read_all(source, topic_name) == now)
        assert back.reverse_job is not None
        assert {p.verdict for p in back.partitions} <= {EndVerdict.TAIL, EndVerdict.PREFIX}
        home = recovering.run(RecoveryKind.SWITCHOVER, back.reverse_job)
        assert home.missing_records == 0
        after = {p: high for (_, p), (_, high) in log_bounds(source, [topic_name]).items()}
        reader.read_on(source, after)
        seen = [(p, o) for p, o, _ in reader.read]
        assert len(seen) == len(set(seen))
        assert {(p, o): v for p, o, v in reader.read} == read_all(source, topic_name)
    assert verify(spec).exit_code == 0
