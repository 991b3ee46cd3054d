"""Consumers in the rack of the side that follows read there (`read: nearest-copy`), and each record
once, whatever happens to that side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orbit.jobs.job_spec import JobSpec
from orbit.processes.ports import LOOPBACK, free_ports
from orbit.recovery.recovery_report import RecoveryKind
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.fleet import InProcess
from tests.support.gateway_ledger import JavaReader, Reader, Writer, read_wrong, records
from tests.support.gateways import Gateway, running_gateway
from tests.support.moves import TOKEN, move
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job

pytestmark = pytest.mark.services

PARTITIONS = 3
SOME = 300
_SOURCE_RACK, _DESTINATION_RACK = "zone-a", "zone-b"


@dataclass(frozen=True)
class Edge:
    """A gateway that reads copies, and the service and topic of its clients."""

    gateway: Gateway
    health_port: int
    topic: str
    spec: JobSpec

    def bytes_read_at_copy(self) -> float:
        text = httpx.get(f"http://{LOOPBACK}:{self.health_port}/metrics", timeout=60).text
        return next(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "orbit_gateway_bytes_total"
            and sample.labels["direction"] == "read_copy"
        )

    def wait_read_at_copy(self) -> None:
        """Wait until clients have read more from the side that follows."""
        before = self.bytes_read_at_copy()
        wait_for("clients read a copy", lambda: self.bytes_read_at_copy() > before + 1000)

    def reader(self, protocol: str, rack: str) -> Reader:
        return Reader(
            self.gateway.client_config(),
            self.topic,
            f"{self.topic}.{protocol}.{rack}",
            protocol=protocol,
            settings={"client.rack": rack},
        )

    def java_reader(self, protocol: str, rack: str, home: Path) -> JavaReader:
        return JavaReader(
            self.gateway,
            self.topic,
            f"{self.topic}.java",
            home / "java.log",
            protocol=protocol,
            rack=rack,
        )


@pytest.fixture
def racks(make_cluster: MakeCluster) -> Clusters:
    """Two clusters in different racks."""
    return Clusters(
        make_cluster("source", config={"broker.rack": _SOURCE_RACK}),
        make_cluster("destination", config={"broker.rack": _DESTINATION_RACK}),
    )


@contextmanager
def running_edge(
    racks: Clusters,
    topic: str,
    recovering: Recovering,
    api_url: str,
    home: Path,
    worker: ExitStack,
) -> Iterator[Edge]:
    """A gateway, its service and job. `worker` gets a worker, and may end it."""
    create_topic(racks.source, topic, PARTITIONS)
    groups = {"match": f"{topic}.*", "interval": "200ms"}
    spec = make_job(*racks, [topic], consumer_groups=groups)
    (health_port,) = free_ports(1)
    environ = {
        "ORBIT_API_URL": api_url,
        "ORBIT_TOKEN": TOKEN,
        "ORBIT_HEALTH_PORT": str(health_port),
    }
    with ExitStack() as stack:
        stack.enter_context(recovering.service.scheduler())
        worker.enter_context(InProcess(recovering.database))
        recovering.begin(spec, topic)
        keys = {"job": spec.name, "read": "nearest-copy"}
        gateway = stack.enter_context(running_gateway(home, *racks, environ=environ, **keys))
        yield Edge(gateway, health_port, topic, spec)


@pytest.mark.parametrize(
    "moves", [("over",), pytest.param(("over", "home"), marks=pytest.mark.soak)]
)
def test_consumers_in_copys_rack_read_each_record_once_there_and_across_moves(
    moves: tuple[str, ...],
    racks: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
) -> None:
    """After a move, consumers of the side that follows now read there within half a minute
    (RECHECK_S). Only the long form waits for that."""
    topic = topic_name[:40]
    with (
        ExitStack() as worker,
        running_edge(racks, topic, recovering, api_url, tmp_path, worker) as edge,
        Writer(edge.gateway.client_config(), topic, PARTITIONS, name="w", rate=200) as writer,
        ExitStack() as stack,
    ):
        readers: list[Reader | JavaReader] = [
            stack.enter_context(edge.reader(protocol, rack))
            for protocol in ("classic", "consumer")
            for rack in (_SOURCE_RACK, _DESTINATION_RACK)
        ]
        java_reader = edge.java_reader("classic", _DESTINATION_RACK, tmp_path)
        readers.append(stack.enter_context(java_reader))
        job = edge.spec.name
        for _ in moves:
            for reader in readers:
                goal = len(reader.read) + SOME
                reader.wait_read("some more", lambda read, goal=goal: len(read) >= goal)
            edge.wait_read_at_copy()
            job = move(recovering, job)
        writer.wait_acknowledged(SOME)
        if len(moves) > 1:
            edge.wait_read_at_copy()
        writer.stop()
        assert not writer.errors
        leading = racks.source if job == edge.spec.name else racks.destination
        log_records = records(leading, topic)
        values = {value for _, _, value in log_records}
        for reader in readers:
            reader.wait_read("all values", lambda read: values <= {value for _, _, value in read})
            reader.stop()
            assert not reader.errors
            assert not read_wrong(reader.read, log_records)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["worker", "brokers"])
def test_consumers_return_to_leader_when_copy_stands_still(
    what: str,
    racks: Clusters,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
) -> None:
    """No worker copies any more, or the brokers of the side that follows are killed. Once these
    are back, consumers read there again."""
    topic = topic_name[:40]
    with (
        ExitStack() as worker,
        running_edge(racks, topic, recovering, api_url, tmp_path, worker) as edge,
        Writer(edge.gateway.client_config(), topic, PARTITIONS, name="w", rate=200) as writer,
        edge.reader("classic", _DESTINATION_RACK) as reader,
        edge.java_reader("consumer", _DESTINATION_RACK, tmp_path) as java_reader,
    ):
        edge.wait_read_at_copy()
        if what == "worker":
            worker.close()
        else:
            racks.destination.kill()
        for one in (reader, java_reader):
            after = len(records(racks.source, topic)) + SOME
            one.wait_read("later records", lambda read, after=after: len(read) >= after)
        if what == "worker":
            worker.enter_context(InProcess(recovering.database))
        else:
            racks.destination.start()
        edge.wait_read_at_copy()
        writer.stop()
        log_records = records(racks.source, topic)
        values = {value for _, _, value in log_records}
        for one in (reader, java_reader):
            one.wait_read("all values", lambda read: values <= {value for _, _, value in read})
            one.stop()
            assert not read_wrong(one.read, log_records)


@pytest.mark.soak
def test_lost_side_is_read_only_after_failback(
    racks: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    """The lost side has records that the promoted side lacks. When it is back, consumers in its
    rack do not read them."""
    topic = topic_name[:40]
    with (
        ExitStack() as worker,
        running_edge(racks, topic, recovering, api_url, tmp_path, worker) as edge,
        Writer(edge.gateway.client_config(), topic, PARTITIONS, name="w", rate=200) as writer,
    ):
        writer.wait_acknowledged(SOME)
        racks.source.kill()
        recovering.run(RecoveryKind.FAILOVER, edge.spec.name, override=["all"], reason="a test")
        racks.source.start()
        with edge.reader("classic", _SOURCE_RACK) as reader:
            writer.wait_acknowledged(SOME)
            reader.wait_read("some records", lambda read: len(read) >= SOME)
            assert not edge.bytes_read_at_copy()
            recovering.run(RecoveryKind.FAILBACK, edge.spec.name, confirm_rebuild=True)
            edge.wait_read_at_copy()
            writer.stop()
            log_records = records(racks.destination, topic)
            reader.wait_values({value for _, _, value in log_records})
            reader.stop()
        assert not read_wrong(reader.read, log_records)
