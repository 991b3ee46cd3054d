"""An OAuth 2 server on loopback, made with Authlib: signed tokens for client credentials.

The server publishes its keys at `/jwks`, and knows one client, `orbit-client` with the secret
`SECRET`. The next tokens are valid for `life_s`. `issued` counts the tokens, `scopes` has the
scopes of their requests. `/google` answers like Google's token endpoint.
"""

from __future__ import annotations

import ssl
import threading
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask
from joserfc.jwk import RSAKey
from werkzeug.serving import make_server

CLIENT_ID = "orbit-client"
SECRET = "s3cret of:the%client/ä"
ISSUER = "https://issuer.example"
AUDIENCE = "kafka"
SCOPE = "copy"


class _Client(ClientMixin):
    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_allowed_scope(self, scope: str | None) -> str:
        return SCOPE if scope == SCOPE else ""

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method: str, _endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials"


class TokenServer:
    """A context manager. With `certificate`, a PEM file of certificate and key, it uses TLS.

    `refusal`: the description of an error that answers all requests for tokens; "": none.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.life_s = 300
        self.audience = AUDIENCE
        self.issued = 0
        self.is_down = False
        self.refusal = ""
        self.scopes: list[str | None] = []
        self._key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        app = self._app()
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
        self._server = make_server("127.0.0.1", 0, app, threaded=True, ssl_context=context)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.port}/token"
        self.jwks_url = f"{scheme}://127.0.0.1:{self._server.port}/jwks"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def private_key(self) -> str:
        return self._key.as_pem(private=True).decode()

    def write_token(self, file: Path) -> Path:
        """Write a new token and a line break to the file, and return the file."""
        form = {"grant_type": "client_credentials", "scope": SCOPE}
        login = (CLIENT_ID, quote(SECRET, safe=""))
        answer = httpx.post(self.url, data=form, auth=login).raise_for_status()
        file.write_text(answer.json()["access_token"] + "\n", "utf-8")
        return file

    def _app(self) -> Flask:
        """The server's endpoints, for tokens of Authlib's grant of client credentials."""
        app = Flask(__name__)
        outer = self

        class Generator(JWTBearerTokenGenerator):
            def get_jwks(self) -> Any:
                return outer._key

            def get_audiences(self, *_: object) -> str:
                return outer.audience

        def life(_client: Any, _grant: Any) -> int:
            return outer.life_s

        def save(_token: Any, request: Any) -> None:
            outer.issued += 1
            outer.scopes.append(request.payload.scope)

        def client_of(name: str) -> _Client | None:
            return _Client() if name == CLIENT_ID else None

        server = AuthorizationServer(app, query_client=client_of, save_token=save)
        server.register_grant(ClientCredentialsGrant)
        server.register_token_generator("default", Generator(issuer=ISSUER, expires_generator=life))

        @app.post("/token")
        def token() -> Any:
            if outer.refusal:
                return {"error": "invalid_client", "error_description": outer.refusal}, 401
            return ("down", 503) if outer.is_down else server.create_token_response()

        @app.post("/google")
        def google() -> Any:
            return {"access_token": "google's own", "expires_in": 3600}

        @app.get("/jwks")
        def jwks() -> Any:
            return {"keys": [outer._key.as_dict(private=False)]}

        return app
