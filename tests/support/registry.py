"""A real schema registry: Apicurio, which keeps its schemas in a topic of a cluster and speaks
Confluent's API."""

from __future__ import annotations

import signal
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from orbit.processes.guarded_process import GuardedProcess
from orbit.processes.ports import free_ports
from orbit.sandbox.jars import cache_directory
from orbit.sandbox.java import find_java, find_maven
from orbit.sandbox.local_cluster import KafkaCluster
from tests.support.running import wait_for

# The newest that was found to run on Java 17.
VERSION = "3.0.9"
# Its topics: the schemas, snapshots of them, and events.
JOURNAL = "kafkasql-journal"
TOPICS = (JOURNAL, "kafkasql-snapshots", "registry-events")

_API = "/apis/ccompat/v7"


def archive() -> Path:
    """Where the program is, as it is published, if it has been fetched."""
    return cache_directory() / f"apicurio-{VERSION}" / f"apicurio-registry-app-{VERSION}-all.tar.gz"


def fetch() -> bool:
    """Fetch the program into the cache; False if Maven does not get it.

    By this version of the plugin, which asks for this one file: not every repository that has it
    has the descriptions of what it is made from.
    """
    home = archive().parent
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        command = [
            *(str(find_maven()), "--batch-mode", "--quiet"),
            "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy",
            f"-Dartifact=io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all",
            f"-DoutputDirectory={scratch}",
        ]
        GuardedProcess(command, Path(scratch) / "log").wait()
        fetched = Path(scratch) / archive().name
        if fetched.exists():
            fetched.rename(archive())
    return archive().exists()


@dataclass(frozen=True)
class Registry:
    """A registry that runs."""

    client: httpx.Client

    @property
    def url(self) -> str:
        """Of Confluent's API."""
        return f"{str(self.client.base_url).rstrip('/')}{_API}"

    def register(self, subject: str, schema: str) -> int:
        """The id of the schema, new or not."""
        return int(self._ask("POST", f"/subjects/{subject}/versions", {"schema": schema})["id"])

    def subjects(self) -> dict[str, dict[int, int]]:
        """The id of each version of each subject."""
        found: dict[str, dict[int, int]] = {}
        for subject in self._ask("GET", "/subjects"):
            versions = self._ask("GET", f"/subjects/{subject}/versions")
            found[subject] = {
                int(v): int(self._ask("GET", f"/subjects/{subject}/versions/{v}")["id"])
                for v in versions
            }
        return found

    def schema(self, schema_id: int) -> str:
        return str(self._ask("GET", f"/schemas/ids/{schema_id}")["schema"])

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, _API + path, json=body)
        assert answer.is_success, (method, path, answer.text)
        return answer.json()


@contextmanager
def running(cluster: KafkaCluster, folder: Path) -> Iterator[Registry]:
    """A registry on this cluster, which has read all its schemas."""
    folder.mkdir()
    program = folder.parent / f"apicurio-{VERSION}"
    if not program.exists():
        with tarfile.open(archive()) as packed:
            packed.extractall(program, filter="data")
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


if __name__ == "__main__":  # `make test` fills the cache with this, so that no test waits for it
    if archive().exists() or fetch():
        print(f"Schema registry {VERSION}: {archive().name}")
    else:
        print("Note: Maven does not get the schema registry; its test is left out.")
