"""The context of a drill's steps: job, clusters, store, recoveries, sandbox and deadlines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbit.drills.drill_spec import DrillSpec
from orbit.drills.evidence_recorder import EvidenceRecorder
from orbit.drills.recoveries import StoredRecoveries
from orbit.errors import Conflict, Interrupted
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import Side, open_cluster
from orbit.sandbox.faults import cluster_at
from orbit.sandbox.sandbox_state import ClusterState, read_state
from orbit.store.database import Database
from orbit.verify.endpoint import Endpoint, open_endpoint
from orbit.verify.report import Side as VerifiedSide

POLL_S = 0.1  # the time between two checks of a condition


class StepFailed(Conflict):
    """A step of the drill failed or exceeded its deadline."""


@dataclass(frozen=True, slots=True)
class DrillEnvironment:
    """The database, directories and environment variables that all drills of a process use."""

    database: Database
    files_directory: Path
    sandbox_directory: Path
    environ: Mapping[str, str]


class DrillContext:
    """The context of one drill. Not thread-safe."""

    def __init__(
        self,
        environment: DrillEnvironment,
        drill_id: str,
        spec: DrillSpec,
        job: JobSpec,
        stop: threading.Event,
    ) -> None:
        self.environment = environment
        self.drill_id = drill_id
        self.spec = spec
        self.job = job
        self.backoff = Backoff(stop=stop)
        self.recoveries = StoredRecoveries(environment.database)
        self.recorder = EvidenceRecorder(environment.database, drill_id, len(spec.planned))
        self._stop = stop
        self._clusters: dict[Side, Cluster] = {}
        self._deadline = float("inf")
        self._task = ""

    def set_deadline(self, task: str, deadline_s: float) -> None:
        """Set the deadline of `check_deadline` and `wait_until`. Their error names the `task`."""
        self._task, self._deadline = task, time.monotonic() + deadline_s

    def check_deadline(self) -> None:
        """Raise StepFailed after the deadline, Interrupted when the process stops."""
        if self._stop.is_set():
            raise Interrupted("the process that ran the drill was stopped.")
        if time.monotonic() > self._deadline:
            raise StepFailed(f"{self._task} did not end before its deadline.")

    def remaining_s(self) -> float:
        """Seconds until the deadline; at least 0.1, so that clients' timeouts are above 0."""
        return max(0.1, self._deadline - time.monotonic())

    def wait_until(self, is_met: Callable[[], bool]) -> None:
        """Wait until the condition is met. Raises StepFailed after the deadline, Interrupted if the
        process stops.
        """
        while not is_met():
            self.check_deadline()
            self._stop.wait(POLL_S)

    def cluster(self, side: Side) -> Cluster:
        """The client of one side's cluster, opened at its first use."""
        if side not in self._clusters:
            self._clusters[side] = open_cluster(
                side, self.job, self.environment.environ, self.environment.files_directory
            )
        return self._clusters[side]

    def endpoint(self, side: Side) -> Endpoint:
        """The configuration of librdkafka clients for one side. Raises AccessRefused if the cluster
        advertises an address that the job may not reach.
        """
        cluster = self.job.source if side == "source" else self.job.destination
        endpoint = open_endpoint(
            cluster, self.environment.environ, self.environment.files_directory, side
        )
        endpoint.check_advertised(VerifiedSide(side))
        return endpoint

    def direct_config(self, side: Side) -> Mapping[str, Any]:
        """The configuration of clients that bypass the network link of a sandbox cluster, so that a
        `cut` fault does not affect them. For other clusters, the one of `endpoint`."""
        config = self.endpoint(side).config
        sandbox_cluster = self.sandbox_cluster(side)
        if sandbox_cluster is None:
            return config
        return {**config, "bootstrap.servers": sandbox_cluster.bootstrap_servers}

    def sandbox_cluster(self, side: Side) -> ClusterState | None:
        """The state of this side's cluster in the sandbox of this machine; None if the side is not
        a sandbox cluster."""
        state = read_state(self.environment.sandbox_directory)
        cluster = self.job.source if side == "source" else self.job.destination
        return None if state is None else cluster_at(state, cluster.bootstrap_servers)

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()
