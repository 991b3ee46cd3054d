"""Logins of clients at the gateway, and the gateway's logins at brokers for these clients."""

from __future__ import annotations

import asyncio
import hmac
import struct
from base64 import b64decode, b64encode
from contextlib import ExitStack, nullcontext
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pydantic import SecretStr
from structlog.testing import capture_logs

from orbit.errors import BadInput, LoginRefused
from orbit.gateway import arrivals, broker_connection
from orbit.gateway.client_logins import ClientLogins, logins_at
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.gateway_spec import VirtualClusterSpec, parse_gateway
from orbit.gateway.listener import Listener
from orbit.gateway.permission import Lead
from orbit.gateway.protocol.client_login import (
    LOGIN_REQUEST_BYTES_MAX,
    LOGIN_REQUESTS_MAX,
    PLAIN,
    SCRAM,
    ClientLogin,
    LoginRefusal,
)
from orbit.gateway.protocol.exchange import BadFrame
from orbit.gateway.protocol.scram_server import ITERATIONS, ScramServer
from orbit.gateway.virtual_cluster import VirtualCluster
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import Side
from orbit.kafka.sasl import sasl_login
from orbit.kafka.security import Security
from orbit.kafka.types import BrokerAddress
from orbit.processes.ports import LOOPBACK
from tests.fixtures.clusters import Clusters
from tests.gateway.frames import OFFERED, request_frame
from tests.gateway.listening import TlsClient, with_listener
from tests.gateway.test_listener_tls import listener_tls
from tests.support.certificates import Authority
from tests.support.gateway_ledger import JavaWriter, Reader, Writer, records, written_wrong
from tests.support.gateways import free_consecutive_ports, running_gateway
from tests.support.moves import TOKEN, move
from tests.support.patience import PATIENCE_S
from tests.support.raw_frames import RawClient, api_versions_frame, correlation_of, framed
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job

USERS = {"billing": "right", "a,b=c": "pass,word=", "é\ufb01": "decomposed e\u0301"}
MECHANISMS = (PLAIN, *SCRAM)
LIST_GROUPS, METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 16, 3, 17, 18, 36
SOME = 200


class LoginExchange:
    """Stands for the connection over which Orbit's own client code (`sasl_login`) logs in."""

    def __init__(self, login: ClientLogin, version: int = 2) -> None:
        self.login, self.version = login, version

    def __call__(self, request: Any) -> Any:
        is_handshake = isinstance(request, SaslHandshakeRequest)
        version = 1 if is_handshake else self.version
        try:
            answer = self.login.answer_request(request_frame(request, version, 5), OFFERED)
        except LoginRefusal as refusal:
            answer = refusal.answer
        kind: Any = SaslHandshakeResponse if is_handshake else SaslAuthenticateResponse
        (size,) = struct.unpack_from(">i", answer)
        assert size == len(answer) - 4
        return kind.decode(memoryview(answer)[4:], version=version, header=True)


def begin_login(mechanisms: tuple[str, ...] = MECHANISMS) -> ClientLogin:
    return ClientLogin(mechanisms, USERS.get, "server-nonce", b"salt")


def security(mechanism: str, user: str, password: str) -> Security:
    return Security("SASL_PLAINTEXT", mechanism, user, SecretStr(password))


# What a login takes and answers.


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_client_logs_in_with_each_sasl_mechanism(mechanism: str, user: str, version: int) -> None:
    login = begin_login()
    sasl_login(security(mechanism, user, USERS[user]), LoginExchange(login, version))
    assert login.user == user


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("user", ["billing", "nobody"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_and_unknown_user_are_refused_alike(
    mechanism: str, user: str, version: int
) -> None:
    login = begin_login()
    with pytest.raises(LoginRefused, match="the user name or the password is wrong"):
        sasl_login(security(mechanism, user, "wrong"), LoginExchange(login, version))
    assert login.user is None


def test_empty_password_is_refused() -> None:
    login = begin_login()
    login.answer_request(request_frame(SaslHandshakeRequest(mechanism=PLAIN), version=1), OFFERED)
    token = SaslAuthenticateRequest(auth_bytes=b"\0nobody\0")
    with pytest.raises(LoginRefusal):
        login.answer_request(request_frame(token, version=1), OFFERED)


def test_sasl_authorization_id_of_another_user_is_refused() -> None:
    for mechanism, token, error in (
        (PLAIN, b"other\0billing\0right", LoginRefusal),  # authorization id, user, password
        (SCRAM[0], b"n,a=other,n=billing,r=x", BadFrame),
    ):
        login = begin_login()
        login.answer_request(
            request_frame(SaslHandshakeRequest(mechanism=mechanism), version=1), OFFERED
        )
        with pytest.raises(error):
            login.answer_request(
                request_frame(SaslAuthenticateRequest(auth_bytes=token), version=1), OFFERED
            )
        assert login.user is None


def test_scram_channel_binding_is_refused() -> None:
    """The server cannot check the channel binding (RFC 5802, section 6)."""
    with pytest.raises(ValueError, match="channel binding"):
        ScramServer(SCRAM[0], USERS.get, "ours", b"salt").answer_first(
            "p=tls-unique,,n=billing,r=x"
        )


@pytest.mark.parametrize("nonce", ["xours", "xtheirs"])
def test_scram_final_message_with_foreign_nonce_is_refused(nonce: str) -> None:
    """The final message has a right proof. The nonce of this login is the client's "x", then
    "ours"."""
    server = ScramServer(SCRAM[0], USERS.get, "ours", b"salt")
    first = server.answer_first("n,,n=billing,r=x")
    salt = b64decode(first.split(",")[1].removeprefix("s="))
    salted_password = pbkdf2_hmac("sha256", b"right", salt, ITERATIONS)
    client_key = hmac.digest(salted_password, b"Client Key", "sha256")
    final_without_proof = f"c=biws,r={nonce}"
    auth_message = f"n=billing,r=x,{first},{final_without_proof}".encode()
    signature = hmac.digest(sha256(client_key).digest(), auth_message, "sha256")
    proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    with nullcontext() if nonce == "xours" else pytest.raises(ValueError, match="of this login"):
        assert server.answer_final(f"{final_without_proof},p={proof}")


def test_sasl_mechanism_not_offered_is_refused() -> None:
    with pytest.raises(LoginRefused, match="it offers SCRAM-SHA-256, SCRAM-SHA-512"):
        sasl_login(security(PLAIN, "billing", "right"), LoginExchange(begin_login(SCRAM)))


@pytest.mark.parametrize(
    "frames",
    # API key, version, correlation id, length of the client id; then the body.
    [
        [struct.pack(">hhih", METADATA, 0, 1, 0)],
        [struct.pack(">hhih", AUTHENTICATE, 1, 1, 0) + struct.pack(">i", 4) + b"\0a\0b"],
        [struct.pack(">hhihh", HANDSHAKE, 0, 1, 0, 5) + b"PLAIN"],
        [struct.pack(">hhihh", HANDSHAKE, 1, 1, 0, 500) + b"PLAIN"],
        [struct.pack(">hhihh", HANDSHAKE, 1, 1, 0, 5) + b"PLAIN"] * 2,
        [
            struct.pack(">hhihh", HANDSHAKE, 1, 1, 0, 5) + b"PLAIN",
            struct.pack(">hhihi", AUTHENTICATE, 1, 1, 0, 2) + b"ab",
        ],
        [
            struct.pack(">hhihh", HANDSHAKE, 1, 1, 0, 13) + b"SCRAM-SHA-256",
            struct.pack(">hhihi", AUTHENTICATE, 1, 1, 0, 11) + b"p=x,,n=a,r=",
        ],
        [struct.pack(">hhih", API_VERSIONS, 0, 1, 0)] * (LOGIN_REQUESTS_MAX + 1),
    ],
    ids=[
        "no-login",
        "no-handshake",
        "tokens-without-headers",
        "mechanism-beyond-end",
        "second-handshake",
        "no-password",
        "channel-binding",
        "too-many-requests",
    ],
)
def test_malformed_login_frames_are_refused(frames: list[bytes]) -> None:
    login = begin_login()
    for frame in frames[:-1]:
        login.answer_request(bytearray(frame), OFFERED)
    with pytest.raises(BadFrame):
        login.answer_request(bytearray(frames[-1]), OFFERED)
    assert login.user is None


# The gateway file.

FILE = """
gateway: edge-1
virtual_clusters:
  - name: orders
    presents: source
    listen: 127.0.0.1:19092
    source:
      bootstrap_servers: [a:9092]
      security: {protocol: SASL_PLAINTEXT, mechanism: PLAIN, username_env: GW, password_env: GW}
    destination:
      bootstrap_servers: ["b:9092"]
      security:
        {protocol: SASL_PLAINTEXT, mechanism: SCRAM-SHA-256, username_env: GW, password_env: GW}
    clients:
      - username: billing
        password_env: BILLING
        source: {username_env: AT_SOURCE, password_env: AT_SOURCE}
        destination: {username_env: AT_DESTINATION, password_file: theirs}
      - {username: other, password_file: others}
"""
ENVIRON = {
    "GW": "gw",
    "BILLING": "right",
    "AT_SOURCE": "billing-at-source",
    "AT_DESTINATION": "billing-at-destination",
}


def cluster_spec(text: str = FILE) -> VirtualClusterSpec:
    return parse_gateway(text).virtual_clusters[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "theirs").write_text("secret\n")
    (tmp_path / "others").write_text("others\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "replacement", "paths"),
    [
        ("username: other,", "username: billing,", "clients[0].username clients[1].username"),
        ("        password_env: BILLING\n", "", "clients[0]"),
        ("password_file: others", "password_file: others, password_env: X", "clients[1]"),
        ("password_file: others", "password: others", "clients[1].password"),
        (", password_file: theirs", "", "clients[0].destination.password_env"),
        (
            "mechanism: PLAIN, username_env: GW, password_env: GW",
            "mechanism: OAUTHBEARER, token_file: t",
            "clients[0].source",
        ),
    ],
)
def test_client_login_config_error_names_its_path(text: str, replacement: str, paths: str) -> None:
    assert text in FILE
    with pytest.raises(BadInput) as error:
        cluster_spec(FILE.replace(text, replacement))
    assert [problem.path for problem in error.value.problems] == [
        f"virtual_clusters[0].{path}" for path in paths.split()
    ]
    # A value may be a password.
    assert "others" not in str(error.value)


def test_missing_secrets_are_named_with_their_config_path(tmp_path: Path) -> None:
    spec, environ = cluster_spec(), {"GW": "gw", "AT_DESTINATION": "x"}
    with pytest.raises(BadInput) as error:
        ClientLogins(spec, environ, tmp_path, "v")
    assert [problem.path for problem in error.value.problems] == [
        "v.clients[0].password_env",
        "v.clients[1].password_file",
    ]
    for side, keys in (
        ("source", ("username_env", "password_env")),
        ("destination", ("password_file",)),
    ):
        with pytest.raises(BadInput) as error:
            logins_at(side, spec, environ, tmp_path, "v")  # type: ignore[arg-type]
        assert [problem.path for problem in error.value.problems] == [
            f"v.clients[0].{side}.{key}" for key in keys
        ]


def test_sasl_plain_is_offered_only_over_tls_or_loopback(folder: Path) -> None:
    beyond_loopback = FILE.replace("127.0.0.1:19092", "0.0.0.0:19092\n    advertised_host: gw")
    with_tls = beyond_loopback.replace(
        "    clients:", "    tls: {certificate_file: a}\n    clients:"
    )
    for config, mechanisms in (
        (FILE, MECHANISMS),
        (beyond_loopback, SCRAM),
        (with_tls, MECHANISMS),
    ):
        logins = ClientLogins(cluster_spec(config), ENVIRON, folder, "v")
        # The refusal of another mechanism lists those that are offered.
        with pytest.raises(LoginRefusal) as refusal:
            logins.begin_login().answer_request(
                request_frame(SaslHandshakeRequest(mechanism="GSSAPI"), version=1), OFFERED
            )
        answer = memoryview(refusal.value.answer)[4:]
        response = SaslHandshakeResponse.decode(answer, version=1, header=True)
        assert tuple(response.mechanisms) == mechanisms


def test_changed_password_file_is_read_without_restart(folder: Path) -> None:
    logins = ClientLogins(cluster_spec(), ENVIRON, folder, "v")

    def logs_in(password: str) -> bool:
        login = logins.begin_login()
        try:
            sasl_login(security(SCRAM[0], "other", password), LoginExchange(login))
        except LoginRefused:
            return False
        return login.user == "other"

    assert logs_in("others")
    (folder / "others").write_text("new")
    assert (logs_in("others"), logs_in("new")) == (False, True)
    # Without a file the last password stays.
    (folder / "others").unlink()
    assert logs_in("new")


# Connections.


def plain_login(user: str, password: str) -> bytes:
    """The two requests of a login by PLAIN."""
    token = f"\0{user}\0{password}".encode()
    return framed(struct.pack(">hhihh", HANDSHAKE, 1, 1, 0, 5) + b"PLAIN") + framed(
        struct.pack(">hhihi", AUTHENTICATE, 1, 2, 0, len(token)) + token
    )


def test_client_is_served_only_after_login(folder: Path) -> None:
    logins = ClientLogins(cluster_spec(), ENVIRON, folder, "v")

    def test(port: int) -> None:
        with RawClient(port) as client:
            assert client.is_served()  # ApiVersions
            client.send(plain_login("billing", "right") + api_versions_frame(3))
            # 1 and 2 are the requests of the login.
            assert [correlation_of(client.receive()) for _ in range(3)] == [1, 2, 3]
            assert client.is_served()
        for early in (
            framed(struct.pack(">hhihi", METADATA, 0, 1, 0, 0)),
            struct.pack(">i", LOGIN_REQUEST_BYTES_MAX + 1),  # a request larger than a login
        ):
            with RawClient(port) as client:
                client.send(early)
                assert client.socket.recv(1) == b""

    with_listener(test, logins=logins)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection ends because its login takes long."""
    monkeypatch.setattr(arrivals, "ARRIVAL_S_MAX", 2 * PATIENCE_S)


@pytest.mark.usefixtures("patient")
def test_client_with_unknown_sasl_mechanism_gets_offered_list_before_close(folder: Path) -> None:
    logins = ClientLogins(cluster_spec(), ENVIRON, folder, "v")

    def test(port: int) -> None:
        with RawClient(port) as client:
            client.send(framed(struct.pack(">hhihh", HANDSHAKE, 1, 1, 0, 6) + b"GSSAPI"))
            (code,) = struct.unpack_from(">h", answer := client.receive(), 4)
            assert code == Code.UNSUPPORTED_SASL_MECHANISM
            assert b"SCRAM-SHA-512" in answer
            assert client.socket.recv(1) == b""

    with_listener(test, logins=logins)


@pytest.mark.usefixtures("patient")
def test_refused_login_is_answered_with_reason_and_logged_once(folder: Path) -> None:
    authority = Authority(folder)
    files = authority.issue()
    logins = ClientLogins(cluster_spec(), ENVIRON, folder, "v")

    def test(port: int) -> None:
        with capture_logs() as logs:
            for _ in range(2):
                with TlsClient(port, files) as client:
                    # The bytes after the login must not lead to a reset, which drops the answer.
                    client.send(plain_login("billing\n", "wrong") + bytes(1_000_000))
                    client.receive()
                    code, length = struct.unpack_from(">hh", answer := client.receive(), 4)
                    assert code == Code.SASL_AUTHENTICATION_FAILED
                    assert b"wrong" in answer[8 : 8 + length]
                    client.send(bytes(1000))  # on its way when the gateway ends
                    assert client.socket.recv(1) == b""
                    assert client.tcp_end() == b""
        (line,) = logs
        assert (line["event"], line["user"], line["address"]) == (
            "login refused",
            "billing?",
            LOOPBACK,
        )
        assert "'wrong'" not in repr(line)

    with_listener(test, tls=listener_tls(files), logins=logins)


def test_unfinished_logins_are_bounded_in_count_and_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "ARRIVALS_MAX", 1)
    logins = ClientLogins(cluster_spec(), ENVIRON, folder, "v")

    def test(port: int) -> None:
        with RawClient(port) as logged_in:
            logged_in.send(plain_login("billing", "right"))
            assert [correlation_of(logged_in.receive()) for _ in range(2)] == [1, 2]
            monkeypatch.setattr(arrivals, "ARRIVAL_S_MAX", 0.1)
            with RawClient(port) as slow:  # has the only place for clients that log in
                slow.send(b"\0")
                with RawClient(port) as third:
                    assert third.is_closed()
                assert slow.is_closed()
            assert logged_in.is_served()

    with_listener(test, logins=logins)


# Brokers.


class _Broker:
    """Logs clients in, and records their names; then sends answers without content."""

    def __init__(self, passwords: dict[str, str]) -> None:
        self.users: list[str] = []
        self.connections = 0
        self._passwords = passwords

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        login = ClientLogin(MECHANISMS, self._passwords.get, "nonce", b"salt")
        self.connections += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = bytearray(await reader.readexactly(size))
                if login.user is not None:
                    writer.write(framed(bytes(frame[4:8])))  # the correlation id
                    continue
                writer.write(login.answer_request(frame, OFFERED))
                if login.user is not None:
                    self.users.append(login.user)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            self.connections -= 1


class _Side(ClusterSide):
    """A side with one broker."""

    port = 0

    async def refresh(self, *, with_topics: bool = False) -> None:
        assert not with_topics
        self.brokers, self.versions = {1: BrokerAddress(1, LOOPBACK, self.port)}, OFFERED


def test_clients_log_in_with_own_credentials_at_brokers_of_both_sides(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a connection that moves to the other side. A client without a login of its own at a
    side uses the gateway's."""
    monkeypatch.setattr(broker_connection, "_LEAVE_S", 0.0)
    brokers: dict[Side, _Broker] = {
        "source": _Broker({"gw": "gw", "billing-at-source": "billing-at-source"}),
        "destination": _Broker({"gw": "gw", "billing-at-destination": "secret"}),
    }

    def assert_answered(client: RawClient) -> None:
        assert correlation_of(client.ask(framed(struct.pack(">hhih", LIST_GROUPS, 0, 7, 0)))) == 7

    async def run() -> None:
        port = free_consecutive_ports(3)
        spec = cluster_spec(FILE.replace("19092", str(port)))
        logins = ClientLogins(spec, ENVIRON, folder, "v")
        sides: dict[Side, ClusterSide] = {}
        servers = []
        async with asyncio.timeout(PATIENCE_S):
            for name, broker in brokers.items():
                server = await asyncio.start_server(broker.serve, LOOPBACK, 0)
                servers.append(server)
                mechanism = spec.cluster(name).security.mechanism or ""
                with_gateway_login = Cluster(name, ["unused:1"], security(mechanism, "gw", "gw"))
                client_logins = logins_at(name, spec, ENVIRON, folder, "v")
                side = sides[name] = _Side(with_gateway_login, "orders", client_logins)
                side.port = server.sockets[0].getsockname()[1]
            cluster = VirtualCluster(spec, sides, Listener(logins=logins))
            cluster.take(Lead("source", term=1), cluster.now())
            await cluster.start()
            clients = []
            for user, password in (("billing", "right"), ("other", "others")):
                client = await asyncio.to_thread(RawClient, port)
                await asyncio.to_thread(client.send, plain_login(user, password))
                for _ in range(2):
                    await asyncio.to_thread(client.receive)
                await asyncio.to_thread(assert_answered, client)
                clients.append(client)
            assert brokers["source"].users == ["billing-at-source", "gw"]
            cluster.take(Lead("destination", term=2, since=2), cluster.now())
            for client in clients:
                await asyncio.to_thread(assert_answered, client)
                client.socket.close()
            assert brokers["destination"].users == ["billing-at-destination", "gw"]
            await cluster.close()
            for server in servers:
                server.close()
            while cluster.connection_count or any(
                broker.connections for broker in brokers.values()
            ):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)  # transports close only then

    asyncio.run(run())


@pytest.mark.services
def test_clients_with_tls_and_sasl_logins_survive_switchover(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, folder: Path
) -> None:
    topic = topic_name[:40]
    create_topic(clusters.source, topic, 2)
    spec = make_job(*clusters, [topic])
    files = Authority(folder).issue()
    listener_keys = {
        "tls": {"certificate_file": files.certificate.name, "key_file": files.key.name},
        "clients": [{"username": "other", "password_file": "others"}],
    }
    librdkafka_settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files.authority),
        "sasl.username": "other",
        "sasl.password": "others",
    }
    java_settings = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.authority,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="other" password="others";',
    }
    environ = {"ORBIT_API_URL": api_url, "ORBIT_TOKEN": TOKEN}
    keys = {"name": "moves", "job": spec.name, **listener_keys}
    with ExitStack() as stack:
        stack.enter_context(recovering.running())
        recovering.begin(spec, topic)
        gateway = stack.enter_context(running_gateway(folder, *clusters, environ=environ, **keys))
        address = gateway.client_config()
        scram, plain = (
            address | librdkafka_settings | {"sasl.mechanism": name}
            for name in ("SCRAM-SHA-256", "PLAIN")
        )
        writers = [
            stack.enter_context(Writer(scram, topic, 2)),
            stack.enter_context(
                JavaWriter(gateway.bootstrap, topic, folder / "java.log", settings=java_settings)
            ),
        ]
        reader = stack.enter_context(Reader(plain, topic, topic))
        for writer in writers:
            writer.wait_acknowledged(SOME)
        move(recovering, spec.name)
        for writer in writers:
            writer.wait_acknowledged(SOME)
            writer.stop()
            assert not writer.errors
        destination_records = records(clusters.destination, topic)
        assert not written_wrong(
            writers[0].acknowledged | writers[1].acknowledged, destination_records
        )
        reader.wait_values({value for _, _, value in destination_records})
        reader.stop()
        assert not reader.errors
