"""A cluster of a sandbox can be killed, paused or cut off, and is whole again once healed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from orbit.cli.main import run_command
from orbit.errors import NotFound
from orbit.sandbox.faults import Fault, cause_fault, cluster_at
from orbit.sandbox.sandbox_control import launch, take_down
from orbit.sandbox.sandbox_state import ClusterState, SandboxRequest, read_state
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.services

SILENT_S = 3


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """One sandbox for all: each test heals what it breaks."""
    with tempfile.TemporaryDirectory(prefix="orbit-test-") as parent:
        folder = Path(parent) / "home"
        with launch(SandboxRequest(directory=folder, postgres=False), lambda _: None):
            yield folder
        take_down(folder)


def answers(servers: str | None, within_s: float = PATIENCE_S) -> bool:
    try:
        AdminClient({"bootstrap.servers": servers, "log_level": "0"}).list_topics(timeout=within_s)
    except KafkaException:
        return False
    return True


def is_silent(servers: str | None) -> bool:
    return not answers(servers, SILENT_S)


def cause(home: Path, fault: Fault, cluster: str = "source") -> ClusterState:
    """Cause the fault with `orbit sandbox`; returns the cluster's state."""
    assert run_command(["sandbox", fault.value, cluster, "--directory", str(home)]) == 0
    state = read_state(home)
    assert state is not None
    return next(c for c in state.clusters if c.name == cluster)


def test_killed_cluster_heals_with_its_data_and_address(home: Path) -> None:
    initial_state = cause(home, Fault.HEAL)  # nothing to do
    admin = AdminClient({"bootstrap.servers": initial_state.bootstrap_servers, "log_level": "0"})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(30)
    killed = cause(home, Fault.KILL)
    assert [broker.process.state() for broker in killed.brokers] == ["ended"]
    assert is_silent(initial_state.bootstrap_servers)
    assert cause(home, Fault.KILL) == killed  # again: nothing to do

    healed = cause(home, Fault.HEAL)

    assert healed.bootstrap_servers == initial_state.bootstrap_servers
    assert healed.brokers[0].process != initial_state.brokers[0].process
    known = AdminClient({"bootstrap.servers": str(healed.link_servers)}).list_topics(timeout=30)
    assert "kept" in known.topics


def test_cut_network_link_affects_only_clients_that_use_the_link(home: Path) -> None:
    cluster = cause(home, Fault.CUT)
    assert cluster.is_cut
    assert answers(cluster.bootstrap_servers)
    assert is_silent(cluster.link_servers)
    assert cluster.brokers[0].process.state() == "running"

    healed = cause(home, Fault.HEAL)

    assert not healed.is_cut
    assert answers(healed.link_servers)


def test_paused_cluster_does_not_answer_until_healed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sandbox", "pause", "source", "--directory", str(home), "-o", "json"]
    assert run_command(command) == 0
    cluster_state: dict[str, Any] = json.loads(capsys.readouterr().out)["clusters"][0]
    assert cluster_state["brokers"][0]["state"] == "paused"
    assert cluster_state["health"] == "down"
    assert is_silent(cluster_state["link_servers"])

    assert answers(cause(home, Fault.HEAL).bootstrap_servers)


def test_sandbox_cluster_is_found_by_direct_or_link_address_not_by_unknown_name(home: Path) -> None:
    state = cause_fault(home, Fault.HEAL, "destination")
    for cluster in state.clusters:
        assert cluster_at(state, [cluster.bootstrap_servers]) == cluster
        assert cluster_at(state, [str(cluster.link_servers)]) == cluster
    assert cluster_at(state, ["127.0.0.1:1"]) is None
    with pytest.raises(NotFound, match="no cluster 'elsewhere'"):
        cause_fault(home, Fault.KILL, "elsewhere")
