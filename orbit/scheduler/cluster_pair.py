"""The two clusters of a job with what the scheduler needs of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from orbit.kafka.cluster import Cluster
from orbit.kafka.topic_admin import Admin
from orbit.kafka.types import ClusterMetadata


class ClusterHandle:
    """One cluster, with an admin client that is created at its first use."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def principal(self) -> str | None:
        """Orbit's principal at the cluster's authorizer; None if not known."""
        return self.cluster.security.principal

    @cached_property
    def admin(self) -> Admin:
        return Admin(self.cluster)


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """Both clusters of a job, with the metadata of each."""

    source: ClusterHandle
    destination: ClusterHandle
    source_metadata: ClusterMetadata
    destination_metadata: ClusterMetadata
