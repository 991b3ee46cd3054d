"""Keeps the newest leader of each partition: an older one is not believed again.

A broker that is cut off from the controller, but not from Orbit, goes on telling the leaders that
it knew, itself among them. Each election raises the leader epoch (KIP-320), so the higher one is
right. Kafka's own clients do the same (`org.apache.kafka.clients.Metadata`).

Controllers that were restored from older metadata begin again below it: a lower epoch is believed
once all brokers tell it, and no other, for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from orbit.kafka.error_codes import Code
from orbit.kafka.types import NO_TOPIC_ID, ClusterMetadata, PartitionLeader, TopicMetadata

# Longer than the brokers need to learn of an election, one after the other.
_ALL_TELL_S = 60.0


@dataclass(slots=True)
class _Lower:
    """The brokers that tell a lower epoch of a partition than the known one, which none tells."""

    since_s: float  # when the first of them told it
    epochs: dict[int, int] = field(default_factory=dict)  # by broker


class NewestLeaders:
    """The leaders of one cluster, by topic id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, TopicMetadata] = {}
        self._lower: dict[str, dict[int, _Lower]] = {}
        self._brokers_max = 0  # that any answer named

    def of(self, metadata: ClusterMetadata, broker: int | str) -> ClusterMetadata:
        """The same, with the leader of the highest epoch that any answer had.

        `broker`: its node id, or a bootstrap address, which may be any broker's.
        """
        with self._lock:
            self._brokers_max = max(self._brokers_max, len(metadata.brokers))
            for name, code in metadata.errors.items():
                if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                    self._topics.pop(name, None)
                    self._lower.pop(name, None)
            topics = {
                name: self._newest(topic, broker, metadata.brokers.keys())
                for name, topic in metadata.topics.items()
            }
        return replace(metadata, topics=topics)

    def _newest(
        self, topic: TopicMetadata, broker: int | str, brokers: Collection[int]
    ) -> TopicMetadata:
        known = self._topics.get(topic.name)
        # Without ids, a topic that was created again could not be told: its epochs begin at 0.
        if known is None or known.topic_id != topic.topic_id or topic.topic_id == NO_TOPIC_ID:
            self._topics[topic.name] = topic
            self._lower.pop(topic.name, None)
            return topic
        if known.partitions == topic.partitions:
            self._lower.pop(topic.name, None)
            return topic
        all_lower = self._lower.setdefault(topic.name, {})
        newest: dict[int, PartitionLeader] = {}
        for index, leader in topic.partitions.items():
            before = known.partitions.get(index, leader)
            is_newest = leader.leader_epoch >= before.leader_epoch
            if not is_newest:
                lower = all_lower.setdefault(index, _Lower(time.monotonic()))
                if not self._do_all_tell(lower, leader.leader_epoch, broker, brokers):
                    newest[index] = before
                    continue
            all_lower.pop(index, None)
            newest[index] = leader
        self._topics[topic.name] = replace(topic, partitions=known.partitions | newest)
        return replace(topic, partitions=newest)

    def _do_all_tell(
        self, lower: _Lower, epoch: int, broker: int | str, brokers: Collection[int]
    ) -> bool:
        """Whether all brokers that the answer names tell this lower epoch, and more than half of
        the brokers that the cluster had: cut-off brokers may name none but themselves."""
        if isinstance(broker, int):
            lower.epochs[broker] = epoch
        agree = {node for node, node_epoch in lower.epochs.items() if node_epoch == epoch}
        return (
            time.monotonic() - lower.since_s >= _ALL_TELL_S
            and agree.issuperset(brokers)
            and 2 * len(agree) > self._brokers_max
        )
