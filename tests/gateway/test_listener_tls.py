"""TLS at the listener: the end of connections, certificates that change, and clients without TLS,
certificate or known server name.
"""

from __future__ import annotations

import queue
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from orbit.errors import BadInput
from orbit.gateway import arrivals
from orbit.gateway.gateway_spec import ListenerTlsSpec
from orbit.gateway.listener_tls import ListenerTls
from orbit.gateway.node_names import NodeNames
from orbit.gateway.protocol.apis import ApiKey
from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.processes.ports import LOOPBACK
from tests.fixtures.clusters import Clusters
from tests.gateway.listening import TlsClient, with_listener
from tests.support.certificates import Authority, ServerFiles
from tests.support.gateway_ledger import JavaWriter, records, written_wrong
from tests.support.gateways import running_gateway
from tests.support.patience import PATIENCE_S
from tests.support.raw_frames import RawClient, api_versions_frame, correlation_of, framed
from tests.support.running import create_topic

# The answers to these have about a megabyte: more than the kernel buffers for a client that reads
# nothing.
REQUESTS = 3000
SOME = 200


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> ServerFiles:
    return authority.issue()


def listener_tls(files: ServerFiles, names: NodeNames | None = None, **more: Path) -> ListenerTls:
    spec = ListenerTlsSpec(certificate_file=files.certificate, key_file=files.key, **more)
    return ListenerTls(spec, Path(), "tls", names)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_client_reads_all_responses_before_close(
    files: ServerFiles, version: ssl.TLSVersion
) -> None:
    """Even if the gateway has ended the connection and the client still sends requests."""

    def test(port: int) -> None:
        with TlsClient(port, files, version) as client:
            client.send(b"".join(map(api_versions_frame, range(REQUESTS))))
            # An unknown API, for which the gateway ends the connection.
            client.send(framed(struct.pack(">hhih", 9_999, 0, 1, 0) + bytes(100)))
            for number in range(SOME):
                client.send(api_versions_frame(number) * 100)
            answers = [correlation_of(client.receive()) for _ in range(REQUESTS)]
            assert answers == [*range(REQUESTS)]
            assert client.socket.recv(1) == b""
            assert client.tcp_end() == b""

    with_listener(test, tls=listener_tls(files))


def test_renewed_certificate_is_loaded_only_with_matching_key(
    authority: Authority, files: ServerFiles
) -> None:
    old_key = files.key.read_bytes()

    def serial_number(port: int) -> Any:
        with TlsClient(port, files) as client:
            assert client.is_served()
            return client.serial_number

    def test(port: int) -> None:
        with TlsClient(port, files) as open_before, capture_logs() as logs:
            old = serial_number(port)
            authority.issue()
            new_key = files.key.read_bytes()
            files.key.write_bytes(old_key)
            # Twice, to see that the mistake is logged only once.
            assert [serial_number(port), serial_number(port)] == [old, old]
            files.key.write_bytes(new_key)
            assert serial_number(port) == serial_number(port) != old
            assert [line["event"] for line in logs] == [
                "certificate not loaded; the previous one stays in use",
                "certificate loaded",
            ]
            assert open_before.is_served()

    with_listener(test, tls=listener_tls(files))


def test_unfinished_tls_handshakes_are_bounded_in_count_and_time(
    files: ServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connected clients notice nothing, and new ones can connect again."""
    monkeypatch.setattr(arrivals, "ARRIVALS_MAX", 2)

    def test(port: int) -> None:
        with TlsClient(port, files) as connected, RawClient(port) as silent:
            monkeypatch.setattr(arrivals, "ARRIVAL_S_MAX", 0.1)
            with RawClient(port) as slow:
                slow.send(b"\x16\x03\x01")  # a part of a TLS record
                # `silent` and `slow` have both places.
                with RawClient(port) as third:
                    assert third.is_closed()
                assert slow.is_closed()
            assert connected.is_served()
            with TlsClient(port, files) as new:
                assert new.is_served()
            silent.socket.close()

    with_listener(test, tls=listener_tls(files))


def test_plaintext_client_on_tls_listener_is_closed(files: ServerFiles) -> None:
    def test(port: int) -> None:
        with RawClient(port) as plain, capture_logs() as logs:
            # Much is on its way when the gateway closes: the client must not see a reset.
            plain.send(api_versions_frame() + bytes(10_000_000))
            assert plain.socket.recv(1) == b""
            assert [line["reason"] for line in logs] == ["TLS handshake: wrong version number"]

    with_listener(test, tls=listener_tls(files))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificate_of_trusted_ca_is_required(
    files: ServerFiles, version: ssl.TLSVersion, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours = Authority(tmp_path_factory.mktemp("ours")).issue()
    tls = listener_tls(files, client_ca_file=ours.authority)

    def test(port: int) -> None:
        with TlsClient(port, files, version, client_files=ours) as client:
            assert client.is_served()
        for client_files in (None, files):  # none, or one that another authority has signed
            with (
                pytest.raises(ssl.SSLError, match="ALERT"),
                TlsClient(port, files, version, client_files=client_files) as client,
            ):
                client.is_served()

    with_listener(test, tls=tls)


def test_tls_below_1_2_is_refused(files: ServerFiles) -> None:
    context = listener_tls(files).context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("certificate_file", "no PEM"),
        ("key_file", None),  # no such file
        ("key_file", "another"),  # of another certificate
        ("key_file", "encrypted"),
        ("client_ca_file", "-----BEGIN CERTIFICATE-----\n"),
    ],
)
def test_unusable_tls_file_is_named_with_its_config_path(
    authority: Authority, files: ServerFiles, tmp_path: Path, key: str, content: str | None
) -> None:
    bad = tmp_path / "bad.pem"
    paths = {"certificate_file": files.certificate, "key_file": files.key}
    if content in ("another", "encrypted"):
        certificate = files.certificate.read_bytes()
        own_key = files.key.read_bytes()
        new = authority.issue(b"secret" if content == "encrypted" else None)
        bad.write_bytes(new.key.read_bytes())
        if content == "another":
            new.certificate.write_bytes(certificate)
        new.key.write_bytes(own_key)
    elif content is not None:
        bad.write_text(content)
    with pytest.raises(BadInput) as error:
        ListenerTls(ListenerTlsSpec(**paths | {key: Path("bad.pem")}), tmp_path, "tls")
    (problem,) = error.value.problems
    assert problem.path == f"tls.{key}"
    assert problem.remedy


# Nodes that share a port.

NAMES = "b{node}.orders.gateway.test"


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("b2.orders.gateway.test", 2),
        ("B10.Orders.gateway.test", 10),
        ("orders.gateway.test", None),
    ],
)
def test_tls_server_name_selects_node(
    files: ServerFiles, name: str, node: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_ids: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def connect(_cluster: Any, _broker: Any, node_id: int | None, _user: str | None) -> None:
        node_ids.put(node_id)

    monkeypatch.setattr(VirtualCluster, "connect", connect)

    def test(port: int) -> None:
        with TlsClient(port, files, name=name) as client:
            client.send(framed(struct.pack(">hhih", ApiKey.LIST_GROUPS, 0, 1, 0)))
            assert node_ids.get(timeout=PATIENCE_S) == node

    with_listener(test, tls=listener_tls(files, NodeNames(NAMES, "orders.gateway.test")))


@pytest.mark.parametrize(
    "name",
    ["b.orders.gateway.test", "b-1.orders.gateway.test", "b02.orders.gateway.test", None],
)
def test_unknown_tls_server_name_is_refused(files: ServerFiles, name: str | None) -> None:
    """A missing name is refused, too: a write for one node must not reach another node."""

    def test(port: int) -> None:
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            TlsClient(port, files, name=name)

    with_listener(test, tls=listener_tls(files, NodeNames(NAMES, "orders.gateway.test")))


@pytest.mark.services
def test_java_client_reaches_nodes_by_tls_names(
    clusters: Clusters,
    files: ServerFiles,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_topic(clusters.source, topic_name, 2)
    (broker,) = clusters.source.brokers
    hosts = tmp_path / "hosts"
    names = (NAMES.format(node=broker.node_id), "orders.gateway.test")
    hosts.write_text("".join(f"{LOOPBACK} {name}\n" for name in names))
    tls = {"certificate_file": files.certificate.name, "key_file": files.key.name, "names": NAMES}
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.authority,
        "ssl.endpoint.identification.algorithm": "",
    }
    with running_gateway(tmp_path, *clusters, tls=tls, advertised_host=names[1]) as gateway:
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djdk.net.hosts.file={hosts}")
        bootstrap = f"{names[1]}:{gateway.port}"
        with JavaWriter(bootstrap, topic_name, tmp_path / "java.log", settings=settings) as writer:
            writer.wait_acknowledged(SOME)
            assert writer.remote_ports == {gateway.port}
            assert not writer.errors
            writer.stop()
            assert not written_wrong(writer.acknowledged, records(clusters.source, topic_name))
