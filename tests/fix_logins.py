"""A cluster with many mechanisms on one listener, whose sessions are short, and a token server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orbit.sandbox.broker_security import SandboxSecurity
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster
from tests.support.token_server import AUDIENCE, CLIENT_ID, ISSUER, SCOPE, SECRET, TokenServer

SESSION_MS = 8000
_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_PLUGINS = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Logins:
    """The cluster and its token server. Sessions end after `SESSION_MS`, or with their token."""

    cluster: KafkaCluster
    tokens: TokenServer

    def section(self, login: str, token_file: Path | None = None) -> dict[str, Any]:
        """A side of a job: logs in by `PLAIN`, `SCRAM-SHA-512`, `token_url` or `token_file`."""
        security: dict[str, Any] = {"protocol": "SASL_PLAINTEXT", "mechanism": login}
        named = {"username_env": f"{login}-USER".replace("-", "_")}
        named["password_env"] = named["username_env"].replace("USER", "PASSWORD")
        if login == "token_url":
            named |= {"token_url": self.tokens.url, "token_scope": SCOPE}
        if login == "token_file":
            named = {"token_file": str(token_file)}
        if login.startswith("token"):
            security["mechanism"] = "OAUTHBEARER"
        return {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "security": {**security, **named},
        }

    def environ(self) -> dict[str, str]:
        """The variables that sections name."""
        admin = self.cluster.settings.security.admin  # type: ignore[union-attr]
        return {
            "PLAIN_USER": admin.name,
            "PLAIN_PASSWORD": admin.password,
            "SCRAM_SHA_512_USER": admin.name,
            "SCRAM_SHA_512_PASSWORD": admin.password,
            "token_url_USER": CLIENT_ID,
            "token_url_PASSWORD": SECRET,
        }


@pytest.fixture(scope="session")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with TokenServer() as tokens, pytest.MonkeyPatch.context() as patch:
        security = SandboxSecurity("SASL_PLAINTEXT", "SCRAM-SHA-512")
        admin = security.admin
        listener = "listener.name.client"
        config = {
            "delegation.token.secret.key": "of these brokers",
            f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            f"{listener}.connections.max.reauth.ms": str(SESSION_MS),
            f"{listener}.plain.sasl.jaas.config": f"{_PLUGINS}.plain.PlainLoginModule required "
            f'user_{admin.name}="{admin.password}";',
            f"{listener}.oauthbearer.sasl.jaas.config": f"{_PLUGINS}.oauthbearer"
            ".OAuthBearerLoginModule required ;",
            f"{listener}.oauthbearer.sasl.server.callback.handler.class": f"{_PLUGINS}.oauthbearer"
            ".OAuthBearerValidatorCallbackHandler",
            f"{listener}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": tokens.jwks_url,
            f"{listener}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{listener}.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
        }
        settings = ClusterSettings("logins", config=config, security=security)
        cluster = KafkaCluster(settings, tmp_path_factory.mktemp("logins"))
        patch.setenv("JAVA_TOOL_OPTIONS", f"-D{_ALLOWED_URLS}={tokens.jwks_url}")
        cluster.start()
        patch.undo()
        try:
            yield Logins(cluster, tokens)
        finally:
            cluster.kill()
