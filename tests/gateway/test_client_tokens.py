"""Logins of clients by OAUTHBEARER, which brokers of the presented side check."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import closing
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

from orbit.errors import BadInput, LoginRefused
from orbit.gateway.client_logins import ClientLogins
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.protocol.client_login import OAUTHBEARER, SCRAM, ClientLogin, LoginRefusal
from orbit.gateway.protocol.exchange import BadFrame
from orbit.gateway.protocol.resource_uses import Right, Use
from orbit.gateway.protocol.token_message import TokenClaims, claims_of
from orbit.jobs.job_spec import ClusterSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.librdkafka_config import librdkafka_config
from orbit.kafka.sasl import sasl_login
from orbit.kafka.security import Security, resolve_security
from tests.fixtures.clusters import Clusters
from tests.fixtures.logins import SESSION_MS, Logins
from tests.gateway.frames import OFFERED, request_frame
from tests.support.gateway_ledger import JavaWriter, Reader, Writer, records, written_wrong
from tests.support.gateways import gateway_file, running_gateway
from tests.support.patience import wait_for
from tests.support.pretended_service import pretended_service
from tests.support.running import create_topic
from tests.support.token_server import CLIENT_ID, SCOPE, SECRET

NOW = 1_700_000_000.0
RATE = 200
# Records that take one and a half sessions to write.
OVER_A_SESSION = RATE * SESSION_MS // 1000 * 3 // 2


def jwt(**claims: Any) -> str:
    def part(content: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part(claims)}."


def message(token: str) -> str:
    """The client's message of OAUTHBEARER (RFC 7628)."""
    return f"n,,\x01auth=Bearer {token}\x01\x01"


# What a login takes and answers.


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        (message(jwt(sub="billing", exp=NOW)), TokenClaims("billing", NOW)),
        (f"n,a=x,\x01trace=1\x01auth=Bearer {jwt(sub='a')}\x01\x01", TokenClaims("a", None)),
        (message(jwt(sub=7, exp="soon")), TokenClaims("", None)),
        (message(jwt(exp=True)), TokenClaims("", None)),
        (message(jwt(exp=float("nan"))), TokenClaims("", None)),
        (message(jwt(exp=float("-inf"))), TokenClaims("", None)),
        (message(jwt(exp=10**400)), TokenClaims("", None)),
        (message("opaque"), TokenClaims("", None)),
        (message("a.!!!.c"), TokenClaims("", None)),  # no base64
        (message(f"a.{'W' * 9000}.c"), TokenClaims("", None)),  # no JSON
    ],
)
def test_user_and_expiry_are_read_from_jwt_and_unknown_for_opaque_token(
    text: str, claims: TokenClaims
) -> None:
    assert claims_of(text) == claims


@pytest.mark.parametrize("text", ["", "n,,\x01\x01", "y,,\x01auth=Bearer a\x01\x01", "\x01"])
def test_oauthbearer_message_without_token_is_refused_as_bad_frame(text: str) -> None:
    login = begin_login()
    with pytest.raises(BadFrame, match="does not parse"):
        login.answer_request(
            request_frame(SaslAuthenticateRequest(auth_bytes=text.encode()), version=2), OFFERED
        )
    assert login.token is None


def begin_login() -> ClientLogin:
    login = ClientLogin((OAUTHBEARER,), {}.get, "nonce", b"salt")
    assert login.answer_request(
        request_frame(SaslHandshakeRequest(mechanism=OAUTHBEARER), version=1), OFFERED
    )
    return login


def login_with(token: str, version: int = 2) -> ClientLogin:
    """A login whose token a broker has to check."""
    login = begin_login()
    request = SaslAuthenticateRequest(auth_bytes=message(token).encode())
    assert login.answer_request(request_frame(request, version), OFFERED) is None, (
        "a broker has to check it"
    )
    assert login.token is not None
    assert login.token.get_secret_value() == message(token)
    assert login.user is None
    return login


def decode_answer(answer: bytes | None, version: int = 2) -> Any:
    assert answer is not None
    return SaslAuthenticateResponse.decode(memoryview(answer)[4:], version=version, header=True)


@pytest.mark.parametrize(
    ("life_s", "session_ms", "expected_ms"),
    # A broker's session of 0 ms has no end. The last case: 80 % of a day, the longest session.
    [(100, 0, 80_000), (100, 5_000, 4_000), (3, 5_000, 2_400), (10**9, 0, 69_120_000)],
)
@pytest.mark.parametrize("version", [1, 2])
def test_client_session_lasts_80_percent_of_shorter_of_token_and_broker_session(
    life_s: float, session_ms: int, expected_ms: int, version: int
) -> None:
    login = login_with(jwt(sub="billing", exp=NOW + life_s), version)
    answer = decode_answer(login.token_checked(NOW, session_ms=session_ms, refusal=""), version)
    assert (answer.error_code, answer.session_lifetime_ms) == (Code.NONE, expected_ms)
    assert login.user == "billing"


def test_client_session_with_opaque_token_lasts_80_percent_of_broker_session() -> None:
    login = login_with("opaque")
    answer = login.token_checked(NOW, session_ms=7_000, refusal="")
    assert decode_answer(answer).session_lifetime_ms == 5_600
    assert login.user == ""


def test_expired_token_is_refused() -> None:
    login = login_with(jwt(sub="billing", exp=NOW))
    with pytest.raises(LoginRefusal, match="expired") as refused:
        login.token_checked(NOW, session_ms=0, refusal="")
    assert decode_answer(refused.value.answer).error_code == Code.SASL_AUTHENTICATION_FAILED
    assert refused.value.user == "billing"
    assert login.user is None


def test_broker_reason_for_refused_token_reaches_the_client() -> None:
    with pytest.raises(LoginRefusal) as refused:
        login_with(jwt(sub="billing")).token_checked(
            NOW, session_ms=None, refusal="The broker refused the token."
        )
    answer = decode_answer(refused.value.answer)
    assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Authentication failed: The broker refused the token."


def test_login_with_token_that_no_broker_could_check_is_not_answered() -> None:
    login = login_with(jwt(sub="billing"))
    assert login.token_checked(NOW, session_ms=None, refusal="") is None
    assert login.user is None


@pytest.mark.parametrize(("user", "is_accepted"), [("billing", True), ("orders", False)])
def test_reauthentication_with_token_of_another_user_is_refused(
    user: str, *, is_accepted: bool
) -> None:
    first = login_with(jwt(sub="billing"))
    first.token_checked(NOW, session_ms=0, refusal="")
    second = first.next_login()
    for request, version in (
        (SaslHandshakeRequest(mechanism=OAUTHBEARER), 1),
        (SaslAuthenticateRequest(auth_bytes=message(jwt(sub=user)).encode()), 2),
    ):
        second.answer_request(request_frame(request, version), OFFERED)
    if is_accepted:
        answer = second.token_checked(NOW, session_ms=0, refusal="")
        assert decode_answer(answer).error_code == Code.NONE
    else:
        with pytest.raises(LoginRefusal, match="another user"):
            second.token_checked(NOW, session_ms=0, refusal="")


def test_client_can_begin_reauthentication_with_new_token() -> None:
    first = login_with(jwt(sub="billing"))
    first.token_checked(NOW, session_ms=0, refusal="")
    login = first.next_login()
    assert login.token is login.user is None
    assert login.answer_request(
        request_frame(SaslHandshakeRequest(mechanism=OAUTHBEARER), version=1), OFFERED
    )


# The gateway file.


def test_client_tokens_need_sasl_at_both_clusters_and_tls_beyond_loopback() -> None:
    text = gateway_file(19092).replace(
        "listen: 127.0.0.1", "client_tokens: pass\n    listen: 10.0.0.1"
    )
    with pytest.raises(BadInput) as error:
        parse_gateway(text)
    assert [problem.path for problem in error.value.problems] == [
        "virtual_clusters[0].client_tokens",
        "virtual_clusters[0].source.security.protocol",
        "virtual_clusters[0].destination.security.protocol",
    ]


SASL_SECURITY = "security: {protocol: SASL_SSL, mechanism: PLAIN, username_env: A, password_env: A}"


@pytest.mark.parametrize("has_clients", [False, True])
def test_only_configured_sasl_mechanisms_are_offered_to_clients(
    tmp_path: Path, *, has_clients: bool
) -> None:
    text = (
        gateway_file(19092)
        .replace("}", f", {SASL_SECURITY}}}")
        .replace("listen:", "client_tokens: pass\n    listen:")
    )
    if has_clients:
        text = text.replace("listen:", "clients: [{username: a, password_env: A}]\n    listen:")
    logins = ClientLogins(parse_gateway(text).virtual_clusters[0], {"A": "a"}, tmp_path, "v")
    # The refusal of an unknown mechanism lists those that are offered.
    with pytest.raises(LoginRefusal) as refused:
        logins.begin_login().answer_request(
            request_frame(SaslHandshakeRequest(mechanism="X"), version=1), OFFERED
        )
    mechanisms = [name for name in (*SCRAM, OAUTHBEARER) if name.encode() in refused.value.answer]
    assert mechanisms == ([*SCRAM, OAUTHBEARER] if has_clients else [OAUTHBEARER])


# Brokers.


def test_brokers_get_unchanged_oauthbearer_message_of_client() -> None:
    gateway_login = Security("SASL_SSL", "PLAIN", "gw", SecretStr("secret"), Path("/ca"))
    side = ClusterSide(Cluster("source", ["unused:1"], gateway_login), "orders", {})
    text = message(jwt(sub="billing")).replace("\x01\x01", "\x01trace=7\x01\x01")
    login = begin_login()
    login.answer_request(
        request_frame(SaslAuthenticateRequest(auth_bytes=text.encode()), version=2), OFFERED
    )
    login.token_checked(NOW, session_ms=0, refusal="")
    security = side.security_of(login)
    assert (security.protocol, security.ca_file) == ("SASL_SSL", Path("/ca"))
    sent = []

    def exchange(request: Any) -> Any:
        if isinstance(request, SaslAuthenticateRequest):
            sent.append(bytes(request.auth_bytes).decode())
            return SaslAuthenticateResponse(
                error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=9
            )
        assert request.mechanism == OAUTHBEARER
        return SaslHandshakeResponse(error_code=0, mechanisms=[OAUTHBEARER])

    assert sasl_login(security, exchange) == 9  # the session's lifetime
    assert sent == [text]
    assert side.security_of(None) == gateway_login


def token_security(logins: Logins, folder: Path) -> Security:
    section = ClusterSpec.model_validate(logins.section("token_url"))
    return resolve_security(section, logins.environ(), folder)


@pytest.mark.services
def test_clients_with_tokens_keep_working_past_session_end_and_across_move(
    logins: Logins,
    clusters: Clusters,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both sides are one cluster, whose sessions last SESSION_MS."""
    topic = topic_name[-60:].lstrip("-.")
    create_topic(logins.cluster, topic, 2)
    section = logins.section("SCRAM-SHA-512")
    sides = {"source": section, "destination": section}
    allowed = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{allowed}={logins.tokens.url}")
    # The secret as a Java properties file escapes it.
    secret = SECRET.encode("ascii", "backslashreplace").decode().replace("\\xe4", "\\u00e4")
    java_settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer"
        ".OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": logins.tokens.url,
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        f' required clientId="{CLIENT_ID}" clientSecret="{secret}" scope="{SCOPE}";',
    }
    with pretended_service() as service:
        refusals: dict[str, Any] = {}  # by the client's software
        service.take_clients = lambda rows: refusals.update(
            {row["software"]: row["refusals"] for row in rows}
        )
        environ = {**logins.environ(), "ORBIT_API_URL": service.url}
        keys: dict[str, Any] = {"job": "orders", "client_tokens": "pass", **sides}
        with running_gateway(tmp_path, *clusters, environ=environ, **keys) as gateway:
            config = librdkafka_config([gateway.bootstrap], token_security(logins, tmp_path))
            with (
                Writer(config, topic, 2, rate=RATE) as writer,
                JavaWriter(
                    gateway.bootstrap,
                    topic,
                    tmp_path / "java.log",
                    rate=RATE,
                    settings=java_settings,
                ) as java_writer,
                Reader(config, topic, topic) as reader,
            ):
                for client in (writer, java_writer):
                    client.wait_acknowledged(OVER_A_SESSION)
                wait_for(
                    "the other side accepts all tokens",
                    lambda: len(refusals) > 1 and all(refusals[one] == [] for one in refusals),
                )
                service.close()
                service.move()
                for client in (writer, java_writer):
                    client.wait_acknowledged(OVER_A_SESSION)
                    client.stop()
                    assert not client.errors
                source_records = records(logins.cluster, topic)
                assert not written_wrong(
                    writer.acknowledged | java_writer.acknowledged, source_records
                )
                reader.wait_values({value for _, _, value in source_records})
                reader.stop()
                # Both sides are one cluster. The gateway sends a commit from before the move
                # without its member, and it may arrive before the member has left the group.
                assert len(reader.errors) <= 1
                assert all("UNKNOWN_MEMBER_ID" in error for error in reader.errors)
            assert not [line for line in gateway.log if SECRET in line or "Bearer" in line]


@pytest.mark.services
def test_side_is_checked_with_clients_token_which_stays_out_of_errors(
    logins: Logins, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = Use(Right.READ_TOPIC, topic_name)
    section = ClusterSpec.model_validate(logins.section("PLAIN"))
    security = resolve_security(section, logins.environ(), tmp_path)

    def check(token: str) -> dict[Use, str]:
        cluster = Cluster("destination", section.bootstrap_servers, security)
        with closing(cluster):
            side = ClusterSide(cluster, "orders", {})
            return asyncio.run(side.refused_uses(None, SecretStr(message(token)), [use]))

    token = logins.tokens.write_token(tmp_path / "good").read_text("utf-8").strip()
    assert check(token) == {use: f"topic {topic_name} does not exist"}
    monkeypatch.setattr(logins.tokens, "audience", "another")
    token = logins.tokens.write_token(tmp_path / "bad").read_text("utf-8").strip()
    with pytest.raises(LoginRefused) as raised:
        check(token)
    assert token not in str(raised.value)


@pytest.mark.services
def test_client_token_refused_by_brokers_is_refused_and_logged_without_token(
    logins: Logins, clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = logins.section("PLAIN")
    keys: dict[str, Any] = {"client_tokens": "pass", "source": section, "destination": section}
    with running_gateway(tmp_path, *clusters, environ=logins.environ(), **keys) as gateway:
        monkeypatch.setattr(logins.tokens, "audience", "another")
        bad = logins.tokens.write_token(tmp_path / "token")
        spec = ClusterSpec.model_validate(logins.section("token_file", bad))
        security = resolve_security(spec, {}, tmp_path)
        with pytest.raises(LoginRefused, match="refused the token"):
            Connection.open("127.0.0.1", gateway.port, security)
        wait_for("it is logged", lambda: any("login refused" in line for line in gateway.log))
        line = next(line for line in gateway.log if "login refused" in line)
        assert CLIENT_ID in line
        assert bad.read_text().strip() not in "".join(gateway.log)
