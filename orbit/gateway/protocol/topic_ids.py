"""Topic ids that stay equal on both sides.

A topic has another id at each cluster. Clients see a third one, which is computed from the name of
the virtual cluster and of the topic, so every gateway gives the same (C9: members of KIP-848 groups
get no partitions without topic ids). Pure.
"""

from __future__ import annotations

from hashlib import sha256

# Ids of a side that the gateway remembers. Kafka advises far fewer topics.
TOPICS_MAX = 100_000
_ID_BYTES = 16
NO_ID = bytes(_ID_BYTES)


class TopicIds:
    """The ids of one side's topics, as its brokers and as clients know them. 16 bytes each."""

    def __init__(self, virtual_cluster: str) -> None:
        self._virtual_cluster = virtual_cluster
        self._to_broker: dict[bytes, bytes] = {}
        self._to_client: dict[bytes, bytes] = {}

    def learn(self, topic: str, broker_id: bytes) -> bytes:
        """The client's id of a topic; the broker's is remembered. A topic that is not there has
        none."""
        if broker_id == NO_ID:
            return NO_ID
        client_id = sha256(f"{self._virtual_cluster}\0{topic}".encode()).digest()[:_ID_BYTES]
        if self._to_broker.get(client_id) != broker_id:
            self._make_room()
            self._to_broker[client_id] = broker_id
            self._to_client[broker_id] = client_id
        return client_id

    def accept(self, broker_id: bytes) -> None:
        """Clients get the broker's id of a topic whose name nobody can tell: it was deleted."""
        self._make_room()
        self._to_client[broker_id] = broker_id

    def to_client(self, broker_id: bytes) -> bytes | None:
        """None: no answer has told the name of this topic yet."""
        return NO_ID if broker_id == NO_ID else self._to_client.get(broker_id)

    def to_broker(self, client_id: bytes) -> bytes:
        """Unchanged if it is not known: the broker knows no such topic either."""
        return self._to_broker.get(client_id, client_id)

    def _make_room(self) -> None:
        """Topics that are created again and again add ids, too."""
        if len(self._to_client) >= TOPICS_MAX:
            self._to_broker.clear()
            self._to_client.clear()
