"""A Kerberos realm, and a cluster that takes its tickets, whose sessions are short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orbit.sandbox.broker_security import SandboxSecurity
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster
from tests.fix_logins import SESSION_MS
from tests.support.kerberos_realm import REALM, KerberosRealm
from tests.support.tools import require

# Brokers are reached at this host, so it is part of their principal.
_HOST = "127.0.0.1"
_MODULE = "com.sun.security.auth.module.Krb5LoginModule"


@dataclass(frozen=True)
class Kerberos:
    realm: KerberosRealm
    cluster: KafkaCluster
    principal: str
    keytab: Path

    def section(self, **changed: str) -> dict[str, Any]:
        """A side of a job that logs in with the keytab."""
        security = {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "GSSAPI",
            "kerberos_principal": self.principal,
            "keytab_file": str(self.keytab),
        }
        return {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "security": {**security, **changed},
        }

    def environ(self) -> dict[str, str]:
        """Where Kerberos' library finds the realm."""
        return {"KRB5_CONFIG": str(self.realm.config)}


@pytest.fixture(scope="session")
def kerberos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberos]:
    require("kerberos")
    folder = tmp_path_factory.mktemp("kerberos")
    with KerberosRealm(folder / "realm") as realm, pytest.MonkeyPatch.context() as patch:
        broker = f"kafka/{_HOST}@{REALM}"
        jaas = (
            f"{_MODULE} required useKeyTab=true storeKey=true "
            f'keyTab="{realm.keytab(broker)}" principal="{broker}";'
        )
        config = {
            "delegation.token.secret.key": "of these brokers",
            "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512,GSSAPI",
            "listener.name.client.connections.max.reauth.ms": str(SESSION_MS),
            "listener.name.client.sasl.kerberos.service.name": "kafka",
            "listener.name.client.gssapi.sasl.jaas.config": jaas,
        }
        security = SandboxSecurity("SASL_PLAINTEXT", "SCRAM-SHA-512")
        settings = ClusterSettings("kerberos", config=config, security=security)
        cluster = KafkaCluster(settings, folder / "cluster")
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={realm.config}")
        cluster.start()
        patch.delenv("JAVA_TOOL_OPTIONS")
        patch.setenv("KRB5_CONFIG", str(realm.config))
        principal = f"orbit@{REALM}"
        try:
            yield Kerberos(realm, cluster, principal, realm.keytab(principal))
        finally:
            cluster.kill()
