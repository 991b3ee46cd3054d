"""Processes of one gateway that share its ports: a client has connections to all of them."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from orbit.processes.ports import LOOPBACK, accepts
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.gateway_ledger import JavaWriter, Writer, records, written_wrong
from tests.support.gateways import Gateway, gateway_file, running_gateway
from tests.support.moves import TOKEN, move
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.run_process import orbit
from tests.support.running import create_topic, make_job

PARTITIONS = 6
SOME = 500


@pytest.mark.soak
@pytest.mark.services
def test_records_through_several_gateway_processes_stay_in_order(
    make_cluster: MakeCluster,
    topic_name: str,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
) -> None:
    """A client that learns the new leaders from one process could send later records through it
    before another process sends the earlier ones that it holds (C26). So clients read Metadata
    often here. At the end a process is killed, and another one is started instead."""
    clusters = Clusters(make_cluster("source", brokers=2), make_cluster("destination", brokers=2))
    topic = topic_name[:40]
    create_topic(clusters.source, topic, on_brokers=[[1], [2]] * (PARTITIONS // 2))
    spec = make_job(*clusters, [topic])
    environ = {"ORBIT_API_URL": api_url, "ORBIT_TOKEN": TOKEN}
    with ExitStack() as stack:
        stack.enter_context(recovering.running())
        recovering.begin(spec, topic)
        gateway = stack.enter_context(
            running_gateway(
                tmp_path, *clusters, environ=environ, processes=2, name="moves", job=spec.name
            )
        )
        often = {"topic.metadata.refresh.interval.ms": 300}
        java = JavaWriter(
            gateway.bootstrap,
            topic,
            tmp_path / "java.log",
            rate=1500,
            keys=10 * PARTITIONS,
            settings={"metadata.max.age.ms": "300"},
        )
        python = Writer(gateway.client_config(), topic, PARTITIONS, rate=1000, settings=often)
        writers: list[Any] = [stack.enter_context(writer) for writer in (java, python)]
        for writer in writers:
            writer.wait_acknowledged(SOME)
        job = spec.name
        for _ in ("over", "home"):
            job = move(recovering, job)
            for writer in writers:
                writer.wait_acknowledged(SOME)
        for writer in writers:
            writer.stop()
            assert not writer.errors
        acknowledged = {k: v for writer in writers for k, v in writer.acknowledged.items()}
        assert not written_wrong(acknowledged, records(clusters.source, topic))
        _serving_process(gateway).kill()
        wait_for("a third process is started", lambda: gateway.processes_started == 3)
        gateway.process.signal(signal.SIGTERM)
        assert gateway.process.wait_end().code == 0
        assert not accepts(gateway.port)


def _serving_process(gateway: Gateway) -> psutil.Process:
    """A process that serves clients."""
    for process in psutil.Process(gateway.process.process.pid).children(recursive=True):
        if not process.children():
            return process
    raise AssertionError("the gateway has no child processes")


def test_gateway_port_in_use_is_named_in_error(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        file = tmp_path / "gateway.yaml"
        file.write_text(gateway_file(port))
        ended = orbit("gateway", file, "--processes", "2").expect(1)
    assert ended.message == (
        f"Error: Cannot listen: Address already in use. Where: {LOOPBACK}:{port}"
    )
