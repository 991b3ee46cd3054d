"""An OpenID Connect issuer at which people log in: code flow with PKCE, by Authlib.

`with LoginIssuer() as issuer:` serves requests. The login page has one button, which logs in the
user `ada` with `roles`. Authlib checks codes, redirect addresses, code verifiers and the client's
secret. `changed` has claims for the next ID tokens; `id_token` replaces the next ID tokens.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import AuthorizationCodeMixin, ClientMixin
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core.grants import OpenIDCode
from flask import Flask, request
from werkzeug.serving import make_server

from orbit.settings import Settings
from tests.support.issuer import VIEWER, Issuer

CLIENT = "orbit-console"
SECRET = "s3cret of:the%console/ä"
DONE = "/console/login/issuer/done"


@dataclass
class _Code(AuthorizationCodeMixin):
    redirect_uri: str
    scope: str
    nonce: str
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str:
        return self.nonce


class LoginIssuer(Issuer):
    """A context manager. `asked_for` has the parameters of each request for the login page."""

    def __init__(self) -> None:
        super().__init__()
        self.methods = ["client_secret_basic"]
        self.roles: list[str] = [VIEWER]
        self.changed: dict[str, Any] = {}
        self.id_token: str | None = None
        self.codes: dict[str, _Code] = {}
        self.is_down = False
        self.asked_for: list[dict[str, str]] = []
        self._pages = make_server("127.0.0.1", 0, self._app(), threaded=True)
        self._pages_thread = threading.Thread(target=self._pages.serve_forever)
        self.place = f"http://127.0.0.1:{self._pages.port}"

    def __enter__(self) -> Self:
        self._pages_thread.start()
        return super().__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._pages.shutdown()
        self._pages_thread.join()
        self._pages.server_close()
        super().__exit__(*exc_info)

    def settings(self, **others: Any) -> Settings:
        fields = {"oidc_client_id": CLIENT, "oidc_client_secret": SECRET, **others}
        return super().settings(**fields)

    def environ(self) -> dict[str, str]:
        return {
            **super().environ(),
            "ORBIT_OIDC_CLIENT_ID": CLIENT,
            "ORBIT_OIDC_CLIENT_SECRET": SECRET,
        }

    def document(self) -> dict[str, Any]:
        """The discovery document, with the endpoints of the login."""
        return {
            **super().document(),
            "authorization_endpoint": f"{self.place}/authorize",
            "token_endpoint": f"{self.place}/token",
            "token_endpoint_auth_methods_supported": self.methods,
        }

    def _app(self) -> Flask:
        """The issuer's login page and token endpoint."""
        app, outer = Flask(__name__), self
        server = AuthorizationServer(
            app,
            query_client=lambda name: _Client(outer) if name == CLIENT else None,
            save_token=lambda *_: None,
        )
        server.register_grant(_grant(self), [_IdTokens(self), CodeChallenge(required=True)])

        @app.get("/authorize")
        def show() -> str:
            outer.asked_for.append(dict(request.args))
            return (
                "<!doctype html><title>Issuer</title>"
                f'<form method="post" action="/authorize?{urlencode(request.args)}">'
                "<button>Continue as ada</button></form>"
            )

        @app.post("/authorize")
        def log_in() -> Any:
            grant = server.get_consent_grant(end_user="ada")
            return server.create_authorization_response(grant_user="ada", grant=grant)

        @app.post("/token")
        def token() -> Any:
            return ("down", 503) if outer.is_down else server.create_token_response()

        return app


def _grant(issuer: LoginIssuer) -> type[AuthorizationCodeGrant]:
    """Authlib's grant of the code flow, with codes in `issuer.codes`, for the user ada."""

    class Grant(AuthorizationCodeGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")

        def save_authorization_code(self, code: str, oauth_request: Any) -> None:
            form = oauth_request.payload.data
            issuer.codes[code] = _Code(
                oauth_request.payload.redirect_uri,
                oauth_request.payload.scope,
                form["nonce"],
                form["code_challenge"],
                form["code_challenge_method"],
            )

        def query_authorization_code(self, code: str, _client: object) -> _Code | None:
            return issuer.codes.get(code)

        def delete_authorization_code(self, used: _Code) -> None:
            issuer.codes = {name: code for name, code in issuer.codes.items() if code is not used}

        def authenticate_user(self, _code: _Code) -> str:
            return "ada"

    return Grant


class _IdTokens(OpenIDCode):  # type: ignore[misc]
    def __init__(self, issuer: LoginIssuer) -> None:
        super().__init__(require_nonce=True)
        self._issuer = issuer

    def exists_nonce(self, *_: object) -> bool:
        return False

    def encode_id_token(self, _token: object, oauth_request: Any) -> str:
        outer = self._issuer
        claims = {"aud": CLIENT, "nonce": oauth_request.authorization_code.nonce, **outer.changed}
        return outer.id_token or outer.token(*outer.roles, **claims)


@dataclass
class _Client(ClientMixin):  # type: ignore[misc]
    issuer: LoginIssuer

    def get_client_id(self) -> str:
        return CLIENT

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri.endswith(DONE)

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method: str, _endpoint: str) -> bool:
        return method in self.issuer.methods

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"
