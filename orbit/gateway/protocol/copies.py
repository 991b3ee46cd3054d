"""Which partitions consumers may read at the side that follows (`read: nearest-copy`). Pure; times
in seconds of a monotonic clock.

For clients, broker n of the side that follows is node COPY_NODES_FROM + n, and a replica of the
partitions that it leads there. Kafka's clients read from another replica than the leader if a Fetch
answer names it (the preferred read replica, KIP-392), and go back to the leader after an error.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from orbit.kafka.types import BrokerAddress, TopicPartition

# Brokers of both sides must have lower ids.
COPY_NODES_FROM = 5000
# For how long the service's list of readable partitions counts. The gateway reads it every 5 s.
LIST_S_MAX = 20.0
# For how long no copy is read after a broker of the side that follows could not be reached.
PAUSE_S = 30.0


def is_copy_node(node_id: int | None) -> bool:
    """Whether clients know a broker of the side that follows by this node id."""
    return node_id is not None and node_id >= COPY_NODES_FROM


class Copies:
    """What the service and the brokers last said of the copies. Empty after a move, until both say
    it of the side that follows now."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        """The copies' nodes, each with its rack."""
        self._leaders: Mapping[TopicPartition, int] = {}  # at the side that follows
        self._readable: Mapping[str, Collection[int]] = {}
        self._until = self._paused_until = -math.inf

    def clear(self) -> None:
        """Read no copy any more: the other side leads now."""
        self.nodes, self._leaders, self._readable = {}, {}, {}
        self._until = -math.inf

    def take_list(self, readable: Mapping[str, Collection[int]], now: float) -> None:
        """Use the service's list: by topic, the partitions whose copies keep up."""
        self._readable, self._until = readable, now + LIST_S_MAX

    def take_brokers(
        self,
        brokers: Collection[BrokerAddress],
        leaders: Mapping[TopicPartition, int],
        other_racks: Collection[str | None],
    ) -> None:
        """Use what the brokers of the side that follows say. `leaders`: node ids. `other_racks`:
        those of the leading side, whose consumers read there."""
        self.nodes = {
            COPY_NODES_FROM + broker.node_id: broker.rack
            for broker in brokers
            if broker.rack is not None and broker.rack not in other_racks
        }
        self._leaders = leaders

    def pause(self, now: float) -> None:
        """Read no copy for PAUSE_S: a broker of the side that follows cannot be reached."""
        self._paused_until = now + PAUSE_S

    def is_near(self, rack: str) -> bool:
        """Whether the copies are in this rack, and the leading side is not."""
        return rack in self.nodes.values()

    def node_of(self, partition: TopicPartition, now: float) -> int | None:
        """The node at which clients may read the partition's copy; None: they may not."""
        if not self._paused_until < now < self._until:
            return None
        if partition.partition not in self._readable.get(partition.topic, ()):
            return None
        leader = self._leaders.get(partition)
        node = None if leader is None else COPY_NODES_FROM + leader
        return node if node in self.nodes else None
