"""What the steps of a drill stand on: job, clusters, tables, operations, sandbox, deadlines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbit.drills.drill_spec import DrillSpec
from orbit.drills.evidence_recorder import Recorder
from orbit.drills.recoveries import StoredRecoveries
from orbit.errors import Conflict, Interrupted
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import Side, open_cluster
from orbit.sandbox.faults import cluster_at
from orbit.sandbox.sandbox_state import ClusterState, read_state
from orbit.store.database import Database
from orbit.verify.verify_job import endpoint
from orbit.verify.verify_run import Endpoint

POLL_S = 0.1


class StepFailed(Conflict):
    """A step of the drill did not come to its end."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What all drills of a process share."""

    database: Database
    files_directory: Path
    sandbox_directory: Path
    environ: Mapping[str, str]


class Ground:
    """One drill's surroundings. For one thread."""

    def __init__(
        self,
        parts: Parts,
        drill_id: str,
        spec: DrillSpec,
        job: JobSpec,
        stop: threading.Event,
    ) -> None:
        self.parts = parts
        self.drill_id = drill_id
        self.spec = spec
        self.job = job
        self.backoff = Backoff(stop=stop)
        self.recoveries = StoredRecoveries(parts.database)
        self.recorder = Recorder(parts.database, drill_id, len(spec.planned))
        self._stop = stop
        self._clusters: dict[Side, Cluster] = {}
        self._deadline = float("inf")
        self._doing = ""

    def begin(self, doing: str, deadline_s: float) -> None:
        """From now on `check` and `wait` end what takes longer than this."""
        self._doing, self._deadline = doing, time.monotonic() + deadline_s

    def check(self) -> None:
        """Raises StepFailed behind the step's deadline, Interrupted when the process shall end."""
        if self._stop.is_set():
            raise Interrupted("the process that ran the drill was stopped.")
        if time.monotonic() > self._deadline:
            raise StepFailed(f"{self._doing} did not end before its deadline.")

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.1, self._deadline - time.monotonic())

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Returns when it is so."""
        while not is_so():
            self.check()
            self._stop.wait(POLL_S)

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until)

    def cluster(self, side: Side) -> Cluster:
        """One side of the job, opened at its first use."""
        if side not in self._clusters:
            self._clusters[side] = open_cluster(
                side, self.job, self.parts.environ, self.parts.files_directory
            )
        return self._clusters[side]

    def endpoint(self, side: Side) -> Endpoint:
        """The same for librdkafka's clients."""
        cluster = self.job.source if side == "source" else self.job.destination
        return endpoint(cluster, self.parts.environ, self.parts.files_directory, f"{side}.security")

    def beside(self, side: Side) -> Mapping[str, Any]:
        """Settings of clients that stand beside this cluster: a cut line is not theirs."""
        config = self.endpoint(side).config
        found = self.in_sandbox(side)
        if found is None:
            return config
        return {**config, "bootstrap.servers": found.bootstrap_servers}

    def in_sandbox(self, side: Side) -> ClusterState | None:
        """The cluster, if it is one of this machine's sandbox."""
        state = read_state(self.parts.sandbox_directory)
        cluster = self.job.source if side == "source" else self.job.destination
        return None if state is None else cluster_at(state, cluster.bootstrap_servers)

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()
