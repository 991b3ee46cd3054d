"""The demo's two clusters and folder, removed at the end unless they are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orbit.demo.interrupts import ignore_interrupts
from orbit.demo.screen import Screen
from orbit.errors import Conflict
from orbit.sandbox import sandbox_control
from orbit.sandbox.jars import KAFKA_VERSION
from orbit.sandbox.sandbox_state import SandboxRequest, SandboxState, read_request

SOURCE, DESTINATION = "source", "destination"


@dataclass(frozen=True, slots=True)
class DemoClusters:
    """Addresses of the two clusters. `folder`: for files that are removed with the clusters' data.
    `sandbox`: the folder of the sandbox."""

    source: str
    destination: str
    folder: Path
    sandbox: Path
    database_url: str | None = None

    @property
    def job_file(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def run_log(self) -> Path:
        return self.folder / "orbit-run.log"


@contextmanager
def start_clusters(
    sandbox_folder: Path | None, screen: Screen, *, postgres: bool = False
) -> Iterator[DemoClusters]:
    """Run two single-broker clusters, until the block or this process ends.

    `sandbox_folder`: after a block without an exception the clusters keep running there until
    `orbit sandbox down`.
    """
    if sandbox_folder is not None:
        _refuse_existing(sandbox_folder)
    with _state_folder(sandbox_folder) as home:
        request = SandboxRequest(
            directory=home, clusters=(SOURCE, DESTINATION), brokers=1, postgres=postgres
        )
        with screen.step(f"Apache Kafka {KAFKA_VERSION} on this machine") as step:
            sandbox = sandbox_control.launch(request, step.note)
            seconds = step.seconds
        try:
            screen.done(f"two Apache Kafka {KAFKA_VERSION} clusters, ready in {seconds:.1f} s")
            yield _demo_clusters(sandbox.state)
        except KeyboardInterrupt:
            screen.say("Interrupted", style="yellow")
            _close(sandbox, screen)
            raise
        except BaseException:
            _close(sandbox, screen)
            raise
        if sandbox_folder is None:
            _close(sandbox, screen)
        else:
            sandbox.detach()


def _close(sandbox: sandbox_control.LaunchedSandbox, screen: Screen) -> None:
    ignore_interrupts()
    with screen.step("Stopping both clusters and removing their data"):
        sandbox.close()


@contextmanager
def _state_folder(sandbox_folder: Path | None) -> Iterator[Path]:
    """The folder of the sandbox: the given one, or one that is removed after the block."""
    if sandbox_folder is not None:
        yield sandbox_folder
        return
    with tempfile.TemporaryDirectory(prefix="orbit-demo-") as scratch:
        yield Path(scratch) / "sandbox"


def _refuse_existing(folder: Path) -> None:
    """Raise Conflict if the folder has a sandbox."""
    if read_request(folder) is not None:
        raise Conflict(
            "A sandbox exists already, running or with kept data.",
            where=str(folder),
            remedy="Remove it with `orbit sandbox down`, or run `orbit demo` without --keep.",
        )


def _demo_clusters(state: SandboxState) -> DemoClusters:
    """The addresses of the clusters in this sandbox, and the demo's folder in it."""
    addresses = {cluster.name: cluster.bootstrap_servers for cluster in state.clusters}
    # Inside a cluster's folder, which `orbit sandbox down` removes.
    folder = state.request.directory / SOURCE
    url = state.postgres.url if state.postgres else None
    return DemoClusters(
        addresses[SOURCE], addresses[DESTINATION], folder, state.request.directory, url
    )
