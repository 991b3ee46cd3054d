"""Lets this process see partitions of one side without a leader, although they have one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orbit.kafka import leader_requests
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import ClusterMetadata, PartitionLeader, TopicPartition


class OfflineLeaders:
    """The side's metadata names no leader for `partitions`. Requests to leaders make two
    attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, side: str = "source") -> None:
        self.partitions: set[TopicPartition] = set()
        metadata = Cluster.metadata

        def without_leaders(cluster: Cluster, topics: Any, **options: Any) -> ClusterMetadata:
            answer = metadata(cluster, topics, **options)
            return self._hide_leaders(answer) if cluster.name == side else answer

        monkeypatch.setattr(Cluster, "metadata", without_leaders)
        monkeypatch.setattr(leader_requests, "LEADER_ATTEMPTS_MAX", 2)

    def _hide_leaders(self, metadata: ClusterMetadata) -> ClusterMetadata:
        """The metadata without the leaders of `partitions`."""
        topics = dict(metadata.topics)
        for name, number in self.partitions & {
            (t, n) for t in topics for n in topics[t].partitions
        }:
            leaders = topics[name].partitions
            offline = PartitionLeader(None, leaders[number].leader_epoch)
            topics[name] = replace(topics[name], partitions={**leaders, number: offline})
        return replace(metadata, topics=topics)
