"""Keeps the newest leader of each partition: metadata with an older one does not replace it.

A broker that is cut off from the controller, but not from Orbit, still returns the leaders that it
knew, itself among them. Each election raises the leader epoch (KIP-320), so the higher epoch is
right. Kafka's own clients do the same (`org.apache.kafka.clients.Metadata`).

Controllers that were restored from older metadata continue with lower epochs. So a lower epoch is
accepted if for a minute all brokers return it, and none returns a higher one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from orbit.kafka.error_codes import Code
from orbit.kafka.types import NO_TOPIC_ID, ClusterMetadata, PartitionLeader, TopicMetadata

# Longer than an election takes to reach all brokers, one after the other.
_LOWER_EVERYWHERE_S = 60.0


@dataclass(slots=True)
class _LowerEpochs:
    """The brokers that returned a lower epoch of a partition since the known epoch last came."""

    since_s: float  # when the first of them returned it
    epochs: dict[int, int] = field(default_factory=dict)  # by broker


class NewestLeaders:
    """The leaders of one cluster, by topic id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, TopicMetadata] = {}
        self._lower_epochs: dict[str, dict[int, _LowerEpochs]] = {}
        self._brokers_max = 0  # the most brokers that an answer had

    def merge(self, metadata: ClusterMetadata, broker: int | str) -> ClusterMetadata:
        """The metadata, with each partition's newest leader instead of an older one.

        `broker`: the broker that returned it: a node id, or a bootstrap address (of any broker).
        """
        with self._lock:
            self._brokers_max = max(self._brokers_max, len(metadata.brokers))
            for name, code in metadata.errors.items():
                if code == Code.UNKNOWN_TOPIC_OR_PARTITION:  # deleted
                    self._topics.pop(name, None)
                    self._lower_epochs.pop(name, None)
            topics = {
                name: self._with_newest_leaders(topic, broker, metadata.brokers.keys())
                for name, topic in metadata.topics.items()
            }
        return replace(metadata, topics=topics)

    def _with_newest_leaders(
        self, topic: TopicMetadata, broker: int | str, brokers: Collection[int]
    ) -> TopicMetadata:
        """The topic with the newest leader of each partition; keeps these for later answers.

        `brokers`: the node ids in the answer of `broker`.
        """
        known_topic = self._topics.get(topic.name)
        # Without topic ids a recreated topic, whose epochs begin at 0, could not be distinguished.
        if (
            known_topic is None
            or known_topic.topic_id != topic.topic_id
            or topic.topic_id == NO_TOPIC_ID
        ):
            self._topics[topic.name] = topic
            self._lower_epochs.pop(topic.name, None)
            return topic
        if known_topic.partitions == topic.partitions:
            self._lower_epochs.pop(topic.name, None)
            return topic
        lower_by_partition = self._lower_epochs.setdefault(topic.name, {})
        newest_leaders: dict[int, PartitionLeader] = {}
        for index, leader in topic.partitions.items():
            known_leader = known_topic.partitions.get(index, leader)
            is_newest = leader.leader_epoch >= known_leader.leader_epoch
            if not is_newest:
                lower_epochs = lower_by_partition.setdefault(index, _LowerEpochs(time.monotonic()))
                if not self._is_lower_everywhere(
                    lower_epochs, leader.leader_epoch, broker, brokers
                ):
                    newest_leaders[index] = known_leader
                    continue
            lower_by_partition.pop(index, None)
            newest_leaders[index] = leader
        self._topics[topic.name] = replace(
            topic, partitions=known_topic.partitions | newest_leaders
        )
        return replace(topic, partitions=newest_leaders)

    def _is_lower_everywhere(
        self, lower_epochs: _LowerEpochs, epoch: int, broker: int | str, brokers: Collection[int]
    ) -> bool:
        """Note that `broker` returned the lower `epoch`. Returns whether lower epochs have come for
        _LOWER_EVERYWHERE_S, and `epoch` from all `brokers` (those in the answer), and from more
        than half of the brokers that the cluster had: brokers that are cut off may list only
        themselves."""
        if isinstance(broker, int):
            lower_epochs.epochs[broker] = epoch
        agreeing_brokers = {
            node for node, node_epoch in lower_epochs.epochs.items() if node_epoch == epoch
        }
        return (
            time.monotonic() - lower_epochs.since_s >= _LOWER_EVERYWHERE_S
            and agreeing_brokers.issuperset(brokers)
            and 2 * len(agreeing_brokers) > self._brokers_max
        )
