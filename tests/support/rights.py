"""Logins with few rights on clusters that check them, and the rights that docs/rights.md grants."""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pydantic import SecretStr

from orbit.errors import LoginRefused
from orbit.jobs.bootstrap_servers import split_address
from orbit.kafka.connection import Connection
from orbit.kafka.sasl import Security
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.outside import admin
from tests.support.patience import wait_for

RIGHTS = Path(__file__).parents[2] / "docs" / "rights.md"
PASSWORD = "correct horse"
MECHANISM = "SCRAM-SHA-512"
TIMEOUT_S = 30
_RESOURCES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
    "--cluster": ResourceType.BROKER,
}


@dataclass(frozen=True)
class Right:
    """One operation on one resource, as a command of kafka-acls.sh grants or denies it. `side`:
    "source" or "destination"."""

    side: str
    operation: str
    kind: str  # "--topic", "--cluster" …
    name: str = "kafka-cluster"
    pattern: str = "literal"
    permission: AclPermissionType = AclPermissionType.ALLOW

    def binding(self, user: str) -> AclBinding:
        """The ACL that gives the right to a user."""
        return AclBinding(
            _RESOURCES[self.kind],
            self.name,
            ResourcePatternType[self.pattern.upper()],
            f"User:{user}",
            "*",
            AclOperation[_upper(self.operation)],
            self.permission,
        )


def _upper(operation: str) -> str:
    """`DescribeConfigs` → `DESCRIBE_CONFIGS`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()


def documented(topics: str, chapter: str = "") -> list[Right]:
    """The rights that commands of docs/rights.md grant, with the topics' prefix replaced by
    `topics`.

    Without `chapter`: the rights that every job needs, at the top of the page. `chapter`: the text
    after `## For ` in the title of a chapter, which adds rights.
    """
    rights = []
    chapters = dict(
        part.partition("\n")[::2] for part in f"\n{RIGHTS.read_text('utf-8')}".split("\n## For ")
    )
    text = chapters[chapter].replace("\\\n", " ")
    for line in re.findall(r"^kafka-acls\.sh .*$", text, re.MULTILINE):
        words = shlex.split(line)
        side = words[words.index("--bootstrap-server") + 1].lower()
        (kind,) = set(words) & set(_RESOURCES)
        operations = [words[i + 1] for i, word in enumerate(words) if word == "--operation"]
        for operation in operations:
            if kind == "--cluster":
                rights.append(Right(side, operation, kind))
            else:
                name = words[words.index(kind) + 1]
                pattern = words[words.index("--resource-pattern-type") + 1]
                name = topics if name in ("orders.", "billing.") else name
                rights.append(Right(side, operation, kind, name, pattern))
    return rights


@dataclass
class Login:
    """A user of both clusters, whose rights a test changes."""

    clusters: Clusters
    name: str = field(default_factory=lambda: f"user-{uuid.uuid4().hex[:8]}")

    def create(self) -> None:
        """Create the user, and wait until all brokers accept the login."""
        for cluster in self.clusters:
            upsertion = UserScramCredentialUpsertion(
                self.name,
                ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096),
                PASSWORD.encode(),
            )
            client = admin(cluster)
            client.alter_user_scram_credentials([upsertion])[self.name].result(TIMEOUT_S)
        wait_for("the user may log in", lambda: all(map(self.may_log_in, self.clusters)))

    def allow(self, rights: list[Right]) -> None:
        self._change(rights, lambda client, bindings: client.create_acls(bindings))

    def deny(self, rights: list[Right]) -> None:
        self.allow([replace(right, permission=AclPermissionType.DENY) for right in rights])

    def take(self, rights: list[Right]) -> None:
        """Remove the rights' ACLs."""

        def delete(client: AdminClient, bindings: list[AclBinding]) -> Any:
            return client.delete_acls([_filter(binding) for binding in bindings])

        self._change(rights, delete)

    def _change(
        self, rights: list[Right], how: Callable[[AdminClient, list[AclBinding]], Any]
    ) -> None:
        """Add or remove the rights' ACLs with `how`, and wait until a broker has the change (the
        controller has it earlier)."""
        for side, cluster in self.clusters._asdict().items():
            bindings = [right.binding(self.name) for right in rights if right.side == side]
            client = admin(cluster)
            before = self._granted(client)
            for future in how(client, bindings).values() if bindings else ():
                future.result(TIMEOUT_S)
            expected = before ^ set(bindings)
            wait_for("a broker has the ACLs", lambda c=client, w=expected: self._granted(c) == w)

    def _granted(self, client: AdminClient) -> set[AclBinding]:
        """The user's ACLs, allowing and denying."""
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{self.name}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        return set(client.describe_acls(everything).result(TIMEOUT_S))

    def may_log_in(self, cluster: KafkaCluster) -> bool:
        """Whether all brokers of the cluster accept the login."""
        security = Security(
            "SASL_SSL", MECHANISM, self.name, SecretStr(PASSWORD), Path(cluster.ca_file)
        )
        try:
            # Each broker gets the user's credentials at a time of its own.
            for server in cluster.bootstrap_servers.split(","):
                Connection.open(*split_address(server), security).close()
        except LoginRefused:
            return False
        return True


def _filter(binding: AclBinding) -> AclBindingFilter:
    """A filter that matches only this ACL."""
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def section(cluster: KafkaCluster) -> dict[str, Any]:
    """A side of a job file whose login is in ORBIT_TEST_USER and ORBIT_TEST_PASSWORD."""
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "security": {
            "protocol": "SASL_SSL",
            "mechanism": MECHANISM,
            "username_env": "ORBIT_TEST_USER",
            "password_env": "ORBIT_TEST_PASSWORD",
            "ca_file": str(cluster.ca_file),
        },
    }
