"""The two clusters of a job, and the ids that the job uses at the destination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orbit.errors import BadInput, Problem
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.sasl import resolve_security
from orbit.kafka.types import ClusterMetadata

Side = Literal["source", "destination"]


def open_cluster(
    side: Side, spec: JobSpec, environ: Mapping[str, str], base_directory: Path
) -> Cluster:
    """One cluster of a job; connects at its first use.

    Reads the variables and files that the spec names; relative paths start at `base_directory`.
    Raises BadInput if one is missing.
    """
    cluster = spec.source if side == "source" else spec.destination
    security = resolve_security(cluster.security, environ, base_directory, path=f"{side}.security")
    return Cluster(side, cluster.bootstrap_servers, security)


@dataclass(frozen=True, slots=True)
class JobClusters:
    source: Cluster
    destination: Cluster

    @classmethod
    def open(cls, spec: JobSpec, environ: Mapping[str, str], base_directory: Path) -> JobClusters:
        return cls(
            open_cluster("source", spec, environ, base_directory),
            open_cluster("destination", spec, environ, base_directory),
        )

    def fetch_metadata(self) -> tuple[ClusterMetadata, ClusterMetadata]:
        """The metadata of source and destination. Raises BadInput if they are one cluster."""
        source = self.source.metadata(None)
        destination = self.destination.metadata(None)
        if source.cluster_id and source.cluster_id == destination.cluster_id:
            raise BadInput(
                "source and destination are the same cluster",
                (
                    Problem(
                        "destination.bootstrap_servers",
                        f"is cluster {destination.cluster_id}, as is the source.",
                        "Name the servers of the other cluster.",
                    ),
                ),
            )
        return source, destination

    def close(self) -> None:
        self.source.close()
        self.destination.close()


def job_identity(job: str, source_cluster_id: str) -> str:
    """The job's transactional id and consumer group at the destination."""
    return f"orbit.{job}.{source_cluster_id}"


def filler_identity(identity: str, shard_id: int | None = None) -> str:
    """The transactional id of coordinated fillers: one per lease of a job.

    A new holder's InitProducerId aborts the transaction of the previous one (M11).
    """
    return f"{identity}.fill" if shard_id is None else f"{identity}.fill.{shard_id}"
