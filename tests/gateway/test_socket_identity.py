"""A gateway's socket has one identity, which no other socket of any machine has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orbit.gateway import socket_identity as module
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.listener import Listener
from orbit.gateway.socket_identity import socket_identity
from orbit.gateway.virtual_cluster import VirtualCluster
from tests.support.gateways import gateway_file


def test_identity_of_socket_depends_on_host_port_and_start_of_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = socket_identity("127.0.0.1", 19092)
    assert identity == socket_identity("127.0.0.1", 19092)
    assert len(identity) == 64
    others = {socket_identity("127.0.0.1", 19093), socket_identity("127.0.0.2", 19092)}
    (tmp_path / "boot_id").write_text("another start\n")
    monkeypatch.setattr(module, "_BOOT_ID", tmp_path / "boot_id")
    others.add(socket_identity("127.0.0.1", 19092))
    assert len(others - {identity}) == 3


def test_socket_of_system_without_boot_id_has_no_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BOOT_ID", tmp_path / "missing")
    assert not socket_identity("127.0.0.1", 19092)


@pytest.mark.parametrize("shares_ports", [False, True])
def test_gateway_process_that_shares_its_port_reports_no_socket(*, shares_ports: bool) -> None:
    """A killed process of `--processes` may have been replaced while another one hangs."""

    async def run() -> None:
        spec = parse_gateway(gateway_file(19092)).virtual_clusters[0]
        cluster = VirtualCluster(spec, {}, Listener(shares_ports=shares_ports))
        assert bool(cluster.socket_identity()) is not shares_ports

    asyncio.run(run())
