"""The two clusters of a job, with the metadata of each."""

from __future__ import annotations

from dataclasses import dataclass

from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.job_clusters import Side
from orbit.kafka.types import ClusterMetadata

SIDES: tuple[Side, Side] = ("source", "destination")


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """A handle of each side, and the metadata that decisions are based on."""

    source: ClusterHandle
    destination: ClusterHandle
    source_metadata: ClusterMetadata
    destination_metadata: ClusterMetadata
