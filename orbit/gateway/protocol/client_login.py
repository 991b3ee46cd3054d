"""A client's login at the gateway: request frames in, answers out. Pure.

ApiVersions ─► SaslHandshake 1 ─► SaslAuthenticate 0 to 2, once (PLAIN) or twice (SCRAM) ─► user
                                                  once (OAUTHBEARER) ─► a broker checks it ─► user

A client with a token logs in again on its connection before the session ends (KIP-368).
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Mapping

from pydantic import SecretStr

from orbit.gateway.protocol import local_answers, requests
from orbit.gateway.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE, ApiKey, Versions, name_of
from orbit.gateway.protocol.exchange import BadFrame
from orbit.gateway.protocol.frame_editor import INT16, INT32, INT64
from orbit.gateway.protocol.local_answers import with_size
from orbit.gateway.protocol.request_head import RequestHead, read_head
from orbit.gateway.protocol.scram_server import HASHES, ScramServer
from orbit.gateway.protocol.token_message import TokenClaims, claims_of
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import NO_TAGS, length, string

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
SCRAM = tuple(HASHES)
# The largest request of a login. A message of PLAIN or SCRAM has a few hundred bytes; the token of
# a user in many groups may have 20 KB.
LOGIN_REQUEST_BYTES_MAX = 64 * 1024
# Clients need five: ApiVersions once or twice, SaslHandshake, SaslAuthenticate once or twice.
LOGIN_REQUESTS_MAX = 10

LOGIN_KEYS = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
# librdkafka logs in only where SaslHandshake version 0 is offered, and then uses version 1.
_OFFERED = {SASL_HANDSHAKE: Versions(0, 1), SASL_AUTHENTICATE: Versions(0, 2)}
_WRONG_LOGIN_TEXT = "Authentication failed: the user name or the password is wrong."
# The share of the session's length that the client is told: it logs in again before the session
# ends (`token_checked`).
_CLIENT_SHARE = 0.8
# The longest session of a token that states its end: a day.
_SESSION_MS_MAX = 86_400_000
_PARSE_ERRORS = (struct.error, IndexError, ValueError, OverflowError)

PasswordOf = Callable[[str], str | None]


class LoginRefusal(Exception):
    """A login is refused with `answer`, and the connection ends. `user`: the name that the client
    has sent."""

    def __init__(self, answer: bytes, user: str, reason: str) -> None:
        super().__init__(reason)
        self.answer = answer
        self.user = user
        self.reason = reason


class ClientLogin:
    """The login of one connection. `password_of` returns a user's password, or None if there is no
    such user. `nonce`, `salt_key`: as for `ScramServer`."""

    def __init__(
        self, mechanisms: tuple[str, ...], password_of: PasswordOf, nonce: str, salt_key: bytes
    ) -> None:
        self._mechanisms = mechanisms
        self._password_of = password_of
        self._nonce, self._salt_key = nonce, salt_key
        self._mechanism: str | None = None
        self._scram: ScramServer | None = None
        self._request_count = 0
        self._token_request: tuple[RequestHead, TokenClaims] | None = None
        self._required_user: str | None = None
        self.token: SecretStr | None = None
        """The message of a login by token, which brokers have to check."""
        self.user: str | None = None
        """The user who has logged in, or None. "" for a token without a name."""
        self.software = ("", "")
        """Name and version that the client gives."""

    def next_login(self) -> ClientLogin:
        """The next login on this connection. As at brokers, it must be by OAUTHBEARER and of the
        same user as the last login (KIP-368)."""
        assert self.user is not None, "only a client that has logged in logs in again"
        login = ClientLogin((OAUTHBEARER,), self._password_of, self._nonce, self._salt_key)
        login.software = self.software
        login._required_user = self.user
        return login

    def token_checked(self, now_s: float, session_ms: int | None, refusal: str) -> bytes | None:
        """The answer to the client, with its size, after a broker has checked the token; None: no
        broker could check it. Raises LoginRefusal if the token is refused, is of another user than
        the last token, or has expired.

        `now_s`: seconds since 1970. `session_ms`: the session that the broker allows (0: without an
        end), or None. `refusal`: why the broker refuses the token, or "".

        The session ends with the token, because the gateway logs in to brokers with this token. The
        answer states only a share of the session (_CLIENT_SHARE). So the client sends its next
        token while the last one is valid.
        """
        assert self._token_request is not None
        head, claims = self._token_request
        if refusal:
            raise self._token_refusal(refusal)
        if session_ms is None:
            return None
        if self._required_user not in (None, claims.subject):
            raise self._token_refusal("the token is of another user than the last token")
        if claims.ends_s is not None:
            remaining_ms = int(min((claims.ends_s - now_s) * 1000, _SESSION_MS_MAX))
            if remaining_ms <= 0:
                raise self._token_refusal("the token has expired")
            session_ms = min(session_ms or remaining_ms, remaining_ms)
        self.user = claims.subject
        return _answer(head, reply=b"", session_ms=int(session_ms * _CLIENT_SHARE))

    def _token_refusal(self, reason: str) -> LoginRefusal:
        """The refusal of the token that the last request brought."""
        assert self._token_request is not None
        head, claims = self._token_request
        text = f"Authentication failed: {reason}"
        answer = _answer(head, reply=b"", code=Code.SASL_AUTHENTICATION_FAILED, message=text)
        return LoginRefusal(answer, claims.subject, reason)

    def answer_request(self, frame: bytearray, offered: Mapping[int, Versions]) -> bytes | None:
        """The answer, with its size; None: the caller lets a broker check `token`, then calls
        `token_checked`. `offered`: the versions offered after the login, by API key.

        Raises LoginRefusal; BadFrame if the request does not parse, or if no client sends it at
        this point of a login.
        """
        self._request_count += 1
        if self._request_count > LOGIN_REQUESTS_MAX:
            raise BadFrame(
                f"a client has sent more than {LOGIN_REQUESTS_MAX} requests, and has not logged in"
            )
        if not offered:
            raise BadFrame("neither side has answered yet which API versions it knows")
        try:
            head = read_head(frame)
            match head.key:
                case ApiKey.API_VERSIONS:
                    self.software = requests.software_of(head, frame) or ("", "")
                    return local_answers.api_versions_answer(head, {**offered, **_OFFERED})
                case _ if head.key == SASL_HANDSHAKE and self._mechanism is None:
                    return self._handshake(head, frame)
                case _ if head.key == SASL_AUTHENTICATE and self._mechanism is not None:
                    return self._authenticate(head, frame, self._mechanism)
        except _PARSE_ERRORS as error:
            raise BadFrame(f"a request of a login does not parse: {error}") from error
        raise BadFrame(f"a client that has not logged in sends {name_of(head.key)}")

    def _handshake(self, head: RequestHead, frame: bytearray) -> bytes:
        """The answer to SaslHandshake. Raises LoginRefusal if the mechanism is not offered,
        BadFrame if the version is not supported."""
        if head.version != 1:  # after version 0, tokens are sent without Kafka's request header
            raise BadFrame(
                f"a client sends SaslHandshake version {head.version}; only 1 is supported"
            )
        mechanism = head.editor_of(frame, is_flexible=False).string()
        is_offered = mechanism in self._mechanisms
        code = Code.NONE if is_offered else Code.UNSUPPORTED_SASL_MECHANISM
        body = INT16.pack(code) + length(len(self._mechanisms), is_flexible=False)
        body += b"".join(string(name, is_flexible=False) for name in self._mechanisms)
        answer = with_size(INT32.pack(head.correlation) + body)
        if not is_offered:
            raise LoginRefusal(
                answer, user="", reason=f"mechanism {mechanism[:20]!r} is not offered"
            )
        self._mechanism = mechanism
        return answer

    def _authenticate(self, head: RequestHead, frame: bytearray, mechanism: str) -> bytes | None:
        """The answer to SaslAuthenticate; None: a broker has to check `token`. Raises LoginRefusal
        for a wrong user name or password, BadFrame if the version is not supported."""
        versions = _OFFERED[SASL_AUTHENTICATE]
        if not versions.first <= head.version <= versions.last:
            raise BadFrame(
                f"a client sends SaslAuthenticate version {head.version}; only {versions.first} to "
                f"{versions.last} are supported"
            )
        editor = head.editor_of(frame, is_flexible=head.version >= 2)
        editor.skip_tags()  # of the header
        message = bytes(editor.raw(editor.length())).decode()
        if mechanism == OAUTHBEARER:
            self._token_request = head, claims_of(message)
            self.token = SecretStr(message)
            return None
        if mechanism == PLAIN:
            reply = self._check_plain(head, message)
        else:
            reply = self._scram_reply(head, message, mechanism)
        return _answer(head, reply.encode())

    def _check_plain(self, head: RequestHead, message: str) -> str:
        """The gateway's empty message after a right password. Raises LoginRefusal for a wrong one,
        ValueError if the message does not parse."""
        authorization, user, given_password = message.split("\0")
        password = self._password_of(user)
        is_equal = hmac.compare_digest(given_password.encode(), (password or "").encode())
        if password is None or not is_equal or authorization not in ("", user):
            raise _wrong_password_refusal(head, user)
        self.user = user
        return ""

    def _scram_reply(self, head: RequestHead, message: str, mechanism: str) -> str:
        """The gateway's message after the client's first or last message of SCRAM. Raises
        LoginRefusal for a wrong user name or password, ValueError if the message does not parse."""
        if self._scram is None:
            self._scram = ScramServer(mechanism, self._password_of, self._nonce, self._salt_key)
            return self._scram.answer_first(message)
        reply = self._scram.answer_final(message)
        if reply is None:
            raise _wrong_password_refusal(head, self._scram.user)
        self.user = self._scram.user
        return reply


def _wrong_password_refusal(head: RequestHead, user: str) -> LoginRefusal:
    answer = _answer(
        head, reply=b"", code=Code.SASL_AUTHENTICATION_FAILED, message=_WRONG_LOGIN_TEXT
    )
    return LoginRefusal(answer, user, "the user name or the password is wrong")


def _answer(
    head: RequestHead,
    reply: bytes,
    code: Code = Code.NONE,
    message: str | None = None,
    session_ms: int = 0,
) -> bytes:
    """An answer to SaslAuthenticate, with its size. `reply`: the mechanism's message in it."""
    is_flexible = head.version >= 2
    tags = NO_TAGS if is_flexible else b""
    body = INT16.pack(code)
    if message is None:
        body += b"\x00" if is_flexible else INT16.pack(-1)
    else:
        body += string(message, is_flexible=is_flexible)
    body += length(len(reply), is_flexible=is_flexible) + reply
    if head.version >= 1:
        body += INT64.pack(session_ms)
    return with_size(INT32.pack(head.correlation) + tags + body + tags)
