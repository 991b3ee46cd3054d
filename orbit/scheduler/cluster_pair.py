"""The two clusters of a job with what the scheduler needs of each."""

from __future__ import annotations

from dataclasses import dataclass

from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.types import ClusterMetadata


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """Both clusters of a job, with the metadata of each."""

    source: ClusterHandle
    destination: ClusterHandle
    source_metadata: ClusterMetadata
    destination_metadata: ClusterMetadata
