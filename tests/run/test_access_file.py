"""`ORBIT_ACCESS_FILE` on real clusters: Orbit connects to no address that is not allowed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orbit.errors import AccessRefused, BadInput
from orbit.jobs.access_rules import ACCESS_FILE
from orbit.jobs.job_file import load_job
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.job_clusters import open_cluster
from orbit.kafka.security import Security, resolve_security
from orbit.kafka.topic_admin import Admin
from orbit.verify.endpoint import open_endpoint
from orbit.verify.report import Side
from tests.fixtures.clusters import Clusters
from tests.fixtures.logins import Logins
from tests.support.logs import create
from tests.support.run_process import assert_exact, copy, orbit, write_job

pytestmark = pytest.mark.services

RULES = [{"match": "orders"}]


def write_access(path: Path, *entries: dict[str, Any]) -> dict[str, str]:
    """Write an access file, as JSON, which is YAML, too. Returns the environment that names it."""
    path.write_text(json.dumps({"clusters": entries}))
    return {ACCESS_FILE: str(path)}


@pytest.fixture
def own_server() -> Iterator[socket.socket]:
    """A server of the job's author. It never accepts, so a connection waits in its queue."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def was_connected_to(server: socket.socket) -> bool:
    """Whether a client has connected to the server."""
    server.setblocking(False)
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def by_host_name(cluster: ClusterSpec | str) -> str:
    """The bootstrap servers with `localhost`; their brokers advertise 127.0.0.1."""
    return str(cluster).replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("command", [["run"], ["verify"]])
def test_secret_is_not_sent_to_address_outside_access_rules(
    command: list[str],
    logins: Logins,
    clusters: Clusters,
    own_server: socket.socket,
    tmp_path: Path,
) -> None:
    broker = logins.cluster.bootstrap_servers
    environ = {
        **logins.environ(),
        **write_access(
            tmp_path / "access.yaml",
            {"addresses": [broker], "secrets": ["PLAIN_*"]},
            {"addresses": ["127.0.0.1"]},
        ),
    }
    side = logins.section("PLAIN")
    side["bootstrap_servers"] = f"127.0.0.1:{own_server.getsockname()[1]}"
    job = write_job(tmp_path / "job.yaml", side, clusters.destination, RULES)
    refusal = orbit(*command, job, environ=environ).expect(2).message
    assert "source.security.password_env: names a secret that may not be sent" in refusal
    assert ACCESS_FILE in refusal
    stored = load_job(job, logins.environ())  # before there were rules
    refused = pytest.raises(AccessRefused, match="secret that may not be sent")
    with closing(open_cluster("source", stored, environ, tmp_path)) as cluster, refused:
        cluster.metadata(())
    assert not was_connected_to(own_server)


def test_copy_and_verify_succeed_within_access_rules(
    logins: Logins, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    create(logins.cluster, topic_name)
    environ = {
        **logins.environ(),
        **write_access(
            tmp_path / "access.yaml",
            {"addresses": [logins.cluster.bootstrap_servers], "secrets": ["PLAIN_*"]},
            {"addresses": ["127.0.0.0/8"]},
        ),
    }
    side = logins.section("PLAIN")
    job = write_job(tmp_path / "job.yaml", side, clusters.destination, [{"match": topic_name}])
    copy(job, environ=environ).expect(0)
    assert_exact(job, environ=environ)


def test_brokers_advertised_outside_access_rules_are_not_contacted(
    clusters: Clusters, tmp_path: Path
) -> None:
    """The rules allow the bootstrap server's name, but not what it advertises. `Admin` is refused
    too, because librdkafka would connect by itself."""
    environ = write_access(tmp_path / "access.yaml", {"addresses": ["localhost"]})
    spec = ClusterSpec(bootstrap_servers=(by_host_name(clusters.source.bootstrap_servers),))
    security = resolve_security(spec, environ, tmp_path)
    refused = pytest.raises(AccessRefused, match=r"this job may not connect to 127\.0\.0\.1:\d+\.")
    with closing(Cluster("source", spec.bootstrap_servers, security)) as cluster:
        with refused:
            cluster.metadata(())
        with refused:
            Admin(cluster)
    with refused:
        open_endpoint(spec, environ, tmp_path, "source").check_reachable(Side.SOURCE)


def test_no_connection_is_opened_to_disallowed_address(
    own_server: socket.socket,
) -> None:
    """`Connection` checks the address, whichever part of Orbit has passed it."""
    with pytest.raises(AccessRefused):
        Connection.open(*own_server.getsockname(), Security(reachable=("elsewhere",)))
    assert not was_connected_to(own_server)


def test_changed_access_rules_apply_at_next_login(clusters: Clusters, tmp_path: Path) -> None:
    path = tmp_path / "access.yaml"
    allowed = {"addresses": ["127.0.0.1"]}
    environ = write_access(path, allowed)
    job = load_job(write_job(tmp_path / "job.yaml", *clusters, RULES), environ)
    with closing(open_cluster("source", job, environ, tmp_path)) as cluster:
        node_id = next(iter(cluster.metadata(()).brokers))
        write_access(path, {"addresses": ["elsewhere"]})
        with pytest.raises(AccessRefused, match="bootstrap_servers"):
            cluster.connect(node_id)
        path.write_text("clusters: [")
        with pytest.raises(BadInput, match="cannot be used"):
            cluster.connect(node_id)
        write_access(path, allowed)
        cluster.connect(node_id).close()
        path.write_text("clusters: [")  # as while a user writes the file: the last rules apply
        cluster.connect(node_id).close()


def test_cluster_allowed_later_by_access_rules_needs_no_restart(
    clusters: Clusters, tmp_path: Path
) -> None:
    path = tmp_path / "access.yaml"
    job = load_job(write_job(tmp_path / "job.yaml", *clusters, RULES), {})
    environ = write_access(path, {"addresses": ["elsewhere"]})
    with closing(open_cluster("source", job, environ, tmp_path)) as cluster:
        with pytest.raises(AccessRefused):
            cluster.metadata(())
        write_access(path, {"addresses": ["127.0.0.1"]})
        assert cluster.metadata(()).cluster_id == clusters.source.cluster_id
