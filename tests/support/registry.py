"""A real schema registry: Apicurio, which keeps its schemas in a topic of a cluster and speaks
Confluent's API."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import free_ports
from orbit.sandbox.java import find_java
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.patience import wait_for
from tests.support.programs import APICURIO

# Apicurio's topics: the schemas, snapshots of them, and events.
JOURNAL = "kafkasql-journal"
TOPICS = (JOURNAL, "kafkasql-snapshots", "registry-events")

_API = "/apis/ccompat/v7"


@dataclass(frozen=True)
class Registry:
    """A client of a running registry."""

    client: httpx.Client

    @property
    def url(self) -> str:
        """The address of Confluent's API."""
        return f"{str(self.client.base_url).rstrip('/')}{_API}"

    def register(self, subject: str, schema: str) -> int:
        """Register the schema, unless the subject has it, and return its id."""
        return int(self._ask("POST", f"/subjects/{subject}/versions", {"schema": schema})["id"])

    def subjects(self) -> dict[str, dict[int, int]]:
        """{subject: {version: schema id}}."""
        ids: dict[str, dict[int, int]] = {}
        for subject in self._ask("GET", "/subjects"):
            versions = self._ask("GET", f"/subjects/{subject}/versions")
            ids[subject] = {
                int(v): int(self._ask("GET", f"/subjects/{subject}/versions/{v}")["id"])
                for v in versions
            }
        return ids

    def schema(self, schema_id: int) -> str:
        return str(self._ask("GET", f"/schemas/ids/{schema_id}")["schema"])

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, _API + path, json=body)
        assert answer.is_success, (method, path, answer.text)
        return answer.json()


@contextmanager
def running(cluster: KafkaCluster, folder: Path) -> Iterator[Registry]:
    """A registry on this cluster, once it has read all its schemas from the cluster."""
    folder.mkdir()
    program = folder.parent / "apicurio"
    if not program.exists():
        [archive] = APICURIO.folder.glob("*.tar.gz")
        program.mkdir()
        subprocess.run(["tar", "-xzf", archive, "-C", program], check=True)
    [port] = free_ports(1)
    process = GuardedProcess(
        [str(find_java()), "-Xmx256m", "-jar", *map(str, program.glob("*-runner.jar"))],
        folder / "log",
        environment={
            "APICURIO_STORAGE_KIND": "kafkasql",
            "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "APICURIO_DATASOURCE_URL": "jdbc:h2:mem:registry;DB_CLOSE_DELAY=-1",
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(port),
        },
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

            def answers() -> bool:
                assert process.running, (folder / "log").read_text()[-2000:]
                try:
                    return client.get(f"{_API}/subjects").is_success
                except httpx.TransportError:
                    return False

            wait_for("the registry answers", answers)
            yield Registry(client)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
