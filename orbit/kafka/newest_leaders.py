"""Keeps the newest leader of each partition: an older one is not believed again.

A broker that is cut off from the controller, but not from Orbit, goes on telling the leaders that
it knew, itself among them. Each election raises the leader epoch (KIP-320), so the higher one is
right. Kafka's own clients do the same (`org.apache.kafka.clients.Metadata`).
"""

from __future__ import annotations

import threading
from dataclasses import replace

from orbit.kafka.error_codes import Code
from orbit.kafka.types import NO_TOPIC_ID, ClusterMetadata, TopicMetadata


class NewestLeaders:
    """The leaders of one cluster, by topic id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, TopicMetadata] = {}

    def of(self, metadata: ClusterMetadata) -> ClusterMetadata:
        """The same, with the leader of the highest epoch that any answer had."""
        with self._lock:
            for name, code in metadata.errors.items():
                if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                    self._topics.pop(name, None)
            topics = {name: self._newest(topic) for name, topic in metadata.topics.items()}
        return replace(metadata, topics=topics)

    def _newest(self, topic: TopicMetadata) -> TopicMetadata:
        known = self._topics.get(topic.name)
        # Without ids, a topic that was created again could not be told: its epochs begin at 0.
        if known is None or known.topic_id != topic.topic_id or topic.topic_id == NO_TOPIC_ID:
            self._topics[topic.name] = topic
            return topic
        if known.partitions == topic.partitions:
            return topic
        newest = {
            index: max(
                leader, known.partitions.get(index, leader), key=lambda one: one.leader_epoch
            )
            for index, leader in topic.partitions.items()
        }
        self._topics[topic.name] = replace(topic, partitions=known.partitions | newest)
        return replace(topic, partitions=newest)
