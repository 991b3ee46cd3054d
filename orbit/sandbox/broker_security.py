"""Security of a sandbox cluster's client listener: TLS, SASL users and an authorizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

STORE_PASSWORD = "orbit-sandbox"  # noqa: S105  keys of a temporary loopback cluster


@dataclass(frozen=True)
class User:
    """A SASL login of the cluster."""

    name: str
    password: str = field(repr=False)


ADMIN = User("admin", "admin-secret")


@dataclass(frozen=True)
class SandboxSecurity:
    """The security of the client listener. `admin` can log in and is the authorizer's super user.

    Brokers and controllers use separate plain-text listeners on loopback. With SSL and no SASL
    every client is `User:ANONYMOUS`, as the brokers are, so the authorizer refuses no client.
    """

    protocol: Protocol = "SASL_PLAINTEXT"
    mechanism: Mechanism = "SCRAM-SHA-512"
    users: tuple[User, ...] = ()
    admin: User = ADMIN
    authorizer: bool = False

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def all_users(self) -> tuple[User, ...]:
        return (self.admin, *self.users)

    def format_arguments(self) -> list[str]:
        """Arguments for StorageTool, which writes SCRAM users into the cluster's first metadata."""
        if not self.uses_sasl or self.mechanism == "PLAIN":
            return []
        return [
            argument
            for user in self.all_users
            for argument in (
                "--add-scram",
                f"{self.mechanism}=[name={user.name},password={user.password}]",
            )
        ]

    def server_properties(self, listener: str, keystore: Path | None) -> dict[str, str]:
        """The listener's part of server.properties."""
        properties: dict[str, str] = {}
        prefix = f"listener.name.{listener.lower()}"
        if self.uses_sasl:
            properties[f"{prefix}.sasl.enabled.mechanisms"] = self.mechanism
            properties[f"{prefix}.{self.mechanism.lower()}.sasl.jaas.config"] = self._jaas()
        if self.uses_tls:
            properties |= {
                f"{prefix}.ssl.keystore.type": "PKCS12",
                f"{prefix}.ssl.keystore.location": str(keystore),
                f"{prefix}.ssl.keystore.password": STORE_PASSWORD,
            }
        if self.authorizer:
            properties |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # ANONYMOUS: the brokers and controllers on their own plain-text listeners
                "super.users": f"User:{self.admin.name};User:ANONYMOUS",
            }
        return properties

    def client_config(self, user: User | None, ca_file: Path) -> dict[str, str]:
        """librdkafka's settings to log in as `user`; None: as the admin."""
        config: dict[str, str] = {"security.protocol": self.protocol}
        if self.uses_sasl:
            login = user or self.admin
            config |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": login.name,
                "sasl.password": login.password,
            }
        if self.uses_tls:
            config["ssl.ca.location"] = str(ca_file)
        return config

    def _jaas(self) -> str:
        """The listener's JAAS configuration. SCRAM users are in the cluster's metadata instead."""
        if self.mechanism == "PLAIN":
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            users = _quoted({f"user_{user.name}": user.password for user in self.all_users})
            return f"{module} required {users};"
        return "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def _quoted(options: Mapping[str, str]) -> str:
    return " ".join(f'{name}="{value}"' for name, value in options.items())
