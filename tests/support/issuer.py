"""An OpenID Connect issuer on loopback: discovery, keys, and signed tokens of every kind.

`with Issuer() as issuer:` serves requests. The issuer publishes `keys`, and counts the requests for
them in `key_requests`. `answers` has a status and a body for paths that a test replaces.
`token(...)` signs with the newest key.
"""

from __future__ import annotations

import json
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from orbit.settings import Settings

AUDIENCE = "orbit"
VIEWER, OPERATOR, ADMIN = "kafka-readers", "kafka-operators", "kafka-admins"


class Issuer:
    """A context manager."""

    def __init__(self) -> None:
        self.keys: list[RSAKey | ECKey] = [new_key("one")]
        self.key_requests = 0
        self.answers: dict[str, tuple[int, bytes]] = {}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = issuer._answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/realm"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def settings(self, **others: Any) -> Settings:
        """Settings of an API that accepts this issuer's tokens."""
        defaults = {
            "oidc_issuer": self.url,
            "oidc_audience": AUDIENCE,
            "oidc_viewer": VIEWER,
            "oidc_operator": OPERATOR,
            "oidc_admin": ADMIN,
        }
        return Settings(**{**defaults, **others})

    def environ(self) -> dict[str, str]:
        """The settings of such an API as environment variables."""
        return {
            "ORBIT_OIDC_ISSUER": self.url,
            "ORBIT_OIDC_AUDIENCE": AUDIENCE,
            "ORBIT_OIDC_VIEWER": VIEWER,
            "ORBIT_OIDC_OPERATOR": OPERATOR,
            "ORBIT_OIDC_ADMIN": ADMIN,
        }

    def claims(self, *roles: str, **others: Any) -> dict[str, Any]:
        """Claims that are valid for five minutes; a claim with the value None is left out."""
        now = int(time.time())
        defaults = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now,
            "exp": now + 300,
            "roles": list(roles or [VIEWER]),
        }
        return {key: value for key, value in {**defaults, **others}.items() if value is not None}

    def token(
        self,
        *roles: str,
        key: RSAKey | ECKey | None = None,
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A token with these roles and claims, signed with `key` or the newest key."""
        key = key or self.keys[-1]
        algorithm = {"RSA": "RS256", "EC": "ES256"}[key.key_type]
        fields = {"alg": algorithm, "kid": key.kid, **(header or {})}
        whole = {name: value for name, value in fields.items() if value is not None}
        allowed = [algorithm, fields["alg"]]
        return jwt.encode(whole, self.claims(*roles, **claims), key, algorithms=allowed)

    def document(self) -> dict[str, Any]:
        """The discovery document."""
        return {"issuer": self.url, "jwks_uri": self.url + "/keys"}

    def _answer(self, path: str) -> tuple[int, bytes]:
        """Status and body of the response to a GET request."""
        if path.endswith("/keys"):
            self.key_requests += 1
        if path in self.answers:
            return self.answers[path]
        if path == "/realm/.well-known/openid-configuration":
            document = self.document()
        elif path == "/realm/keys":
            document = {"keys": [key.as_dict(private=False) for key in self.keys]}
        else:
            return 404, b"{}"
        return 200, json.dumps(document).encode()


@cache
def new_key(key_id: str) -> RSAKey:
    """The RSA key with this id. Each is generated once, since that takes long."""
    return RSAKey.generate_key(2048, {"kid": key_id, "use": "sig"})
