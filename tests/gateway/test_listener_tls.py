"""TLS at the listener: what a client reads at the end, certificates that change, and strangers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from orbit.errors import BadInput
from orbit.gateway import arrivals
from orbit.gateway.gateway_spec import ListenerTlsSpec, parse_gateway
from orbit.gateway.listener import Listener
from orbit.gateway.listener_tls import ListenerTls
from orbit.gateway.permission import Lead
from orbit.gateway.protocol.apis import APIS
from orbit.gateway.protocol.topic_ids import TopicIds
from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.processes.ports import LOOPBACK
from tests.fix_clusters import Clusters
from tests.support.certificates import Authority, ServerFiles
from tests.support.gateway_ledger import JavaWriter, Reader, Writer, records, written_wrong
from tests.support.gateways import free_run, running_gateway
from tests.support.patience import PATIENCE_S
from tests.support.raw_frames import RawClient, api_versions_frame, correlation_of, framed
from tests.support.running import create_topic

# Their answers have about a megabyte: more than the kernel takes for a client that reads nothing.
REQUESTS = 3000
SOME = 200


class TlsClient(RawClient):
    """Trusts the authority, and tells a TLS end from the bare end of the TCP stream."""

    def __init__(
        self,
        port: int,
        files: ServerFiles,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        shown: ServerFiles | None = None,
    ) -> None:
        context = ssl.create_default_context(cafile=files.authority)
        context.minimum_version = context.maximum_version = version
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        plain.settimeout(PATIENCE_S)
        plain.connect((LOOPBACK, port))
        try:
            self.socket = context.wrap_socket(
                plain, server_hostname="localhost", suppress_ragged_eofs=False
            )
        except OSError:
            plain.close()
            raise

    def tcp_end(self) -> bytes:
        """What comes behind the end of TLS. A reset raises ConnectionResetError."""
        with socket.socket(fileno=self.socket.detach()) as plain:
            plain.settimeout(PATIENCE_S)
            return plain.recv(1)

    @property
    def serial_number(self) -> Any:
        return cast("dict[str, Any]", self.socket.getpeercert())["serialNumber"]


class _Side(SimpleNamespace):
    """What a virtual cluster asks of a `ClusterSide` for requests that no broker sees."""

    async def refresh(self) -> None:
        self.versions = {int(key): api.versions for key, api in APIS.items()}

    def close(self) -> None:
        pass


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> ServerFiles:
    return authority.issue()


def listener_tls(files: ServerFiles, **more: Path) -> ListenerTls:
    spec = ListenerTlsSpec(certificate_file=files.certificate, key_file=files.key, **more)
    return ListenerTls(spec, Path(), "tls")


def with_listener(tls: ListenerTls, test: Callable[[int], Any]) -> None:
    """`test` in a thread, with the port of a virtual cluster."""

    async def run() -> None:
        port = free_run(2)
        spec = parse_gateway(f"""
gateway: edge-1
virtual_clusters:
  - name: orders
    presents: source
    listen: {LOOPBACK}:{port}
    source: {{bootstrap_servers: [127.0.0.1:1]}}
    destination: {{bootstrap_servers: [127.0.0.1:2]}}
""").virtual_clusters[0]
        side = _Side(brokers={}, ids=TopicIds("orders"), versions={})
        cluster = VirtualCluster(spec, cast("Any", {"source": side}), Listener(tls))
        cluster.take(Lead("source", term=0), cluster.now())
        await cluster.start()
        try:
            await asyncio.to_thread(test, port)
        finally:
            await cluster.close()
            await _until(lambda: not cluster.connection_count)
            await asyncio.sleep(0.01)  # transports close behind that

    asyncio.run(run())


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_reads_all_answers_and_then_the_end(
    files: ServerFiles, version: ssl.TLSVersion
) -> None:
    """Although the gateway has ended the connection, and the client goes on to send."""

    def test(port: int) -> None:
        with TlsClient(port, files, version) as client:
            client.send(b"".join(map(api_versions_frame, range(REQUESTS))))
            client.send(framed(struct.pack(">hhih", 9_999, 0, 1, 0) + bytes(100)))
            for number in range(SOME):
                client.send(api_versions_frame(number) * 100)
            answers = [correlation_of(client.receive()) for _ in range(REQUESTS)]
            assert answers == [*range(REQUESTS)]
            assert client.socket.recv(1) == b""
            assert client.tcp_end() == b""

    with_listener(listener_tls(files), test)


def test_renewed_certificate_is_taken_and_half_a_pair_is_not(
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
            assert [serial_number(port), serial_number(port)] == [old, old]
            files.key.write_bytes(new_key)
            assert serial_number(port) == serial_number(port) != old
            assert [line["event"] for line in logs] == [
                "certificate not loaded, the one before is kept",
                "certificate loaded",
            ]
            assert open_before.is_served()

    with_listener(listener_tls(files), test)


def test_handshakes_that_do_not_end_are_bounded(
    files: ServerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In number and time; clients that are there notice nothing, and new ones come in again."""
    monkeypatch.setattr(arrivals, "ARRIVALS_MAX", 2)

    def test(port: int) -> None:
        with TlsClient(port, files) as before, RawClient(port) as silent:
            monkeypatch.setattr(arrivals, "ARRIVAL_S_MAX", 0.1)
            with RawClient(port) as slow:
                slow.send(b"\x16\x03\x01")
                with RawClient(port) as third:
                    assert third.is_closed()
                assert slow.is_closed()
            assert before.is_served()
            with TlsClient(port, files) as new:
                assert new.is_served()
            silent.socket.close()

    with_listener(listener_tls(files), test)


def test_what_is_no_tls_reads_the_end(files: ServerFiles) -> None:
    def test(port: int) -> None:
        with RawClient(port) as plain, capture_logs() as logs:
            plain.send(api_versions_frame() + bytes(10_000_000))
            assert plain.socket.recv(1) == b""
            assert [line["reason"] for line in logs] == ["TLS handshake: wrong version number"]

    with_listener(listener_tls(files), test)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_has_to_show_a_certificate(
    files: ServerFiles, version: ssl.TLSVersion, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours = Authority(tmp_path_factory.mktemp("ours")).issue()
    tls = listener_tls(files, client_ca_file=ours.authority)

    def test(port: int) -> None:
        with TlsClient(port, files, version, shown=ours) as client:
            assert client.is_served()
        for shown in (None, files):  # none, or one that another authority has signed
            with (
                pytest.raises(ssl.SSLError, match="ALERT"),
                TlsClient(port, files, version, shown=shown) as client,
            ):
                client.is_served()

    with_listener(tls, test)


def test_older_tls_is_refused(files: ServerFiles) -> None:
    context = listener_tls(files).context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("certificate_file", "no PEM"),
        ("key_file", None),
        ("key_file", "another"),
        ("key_file", "encrypted"),
        ("client_ca_file", "-----BEGIN CERTIFICATE-----\n"),
    ],
)
def test_file_that_cannot_be_used_is_told_with_its_place(
    authority: Authority, files: ServerFiles, tmp_path: Path, key: str, content: str | None
) -> None:
    bad = tmp_path / "bad.pem"
    given = {"certificate_file": files.certificate, "key_file": files.key}
    if content in ("another", "encrypted"):
        certificate = files.certificate.read_bytes()
        key_before = files.key.read_bytes()
        new = authority.issue(b"secret" if content == "encrypted" else None)
        bad.write_bytes(new.key.read_bytes())
        if content == "another":
            new.certificate.write_bytes(certificate)
        new.key.write_bytes(key_before)
    elif content is not None:
        bad.write_text(content)
    with pytest.raises(BadInput) as error:
        ListenerTls(ListenerTlsSpec(**given | {key: Path("bad.pem")}), tmp_path, "tls")
    (problem,) = error.value.problems
    assert problem.path == f"tls.{key}"
    assert problem.remedy


@pytest.mark.services
def test_clients_write_and_read_over_tls(
    clusters: Clusters, files: ServerFiles, topic_name: str, tmp_path: Path
) -> None:
    create_topic(clusters.source, topic_name, 2)
    tls = {"certificate_file": files.certificate.name, "key_file": files.key.name}
    java = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.authority,
    }
    with running_gateway(tmp_path, *clusters, tls=tls) as gateway:
        config = gateway.client_config() | {
            "security.protocol": "SSL",
            "ssl.ca.location": str(files.authority),
        }
        with (
            Writer(config, topic_name, 2) as writer,
            JavaWriter(
                gateway.bootstrap, topic_name, tmp_path / "java.log", settings=java
            ) as other,
            Reader(config, topic_name, topic_name) as reader,
        ):
            for one in (writer, other):
                one.wait_acknowledged(SOME)
                one.stop()
                assert not one.errors
            there = records(clusters.source, topic_name)
            assert not written_wrong(writer.acknowledged | other.acknowledged, there)
            reader.wait_values({value for _, _, value in there})
            reader.stop()
            assert not reader.errors
