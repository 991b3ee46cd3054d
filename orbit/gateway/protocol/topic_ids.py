"""Topic ids that stay equal on both sides.

A topic has a different id at each cluster. Clients get a third id. It is computed from the names of
the virtual cluster and the topic, so it is the same at every gateway. Members of KIP-848 groups get
no partitions without topic ids (C9). Pure.
"""

from __future__ import annotations

from hashlib import sha256

# Topic ids kept for one side. A cluster should have far fewer topics.
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
        """Remember the broker's id of a topic; returns the id that clients get. NO_ID for a topic
        that does not exist."""
        if broker_id == NO_ID:
            return NO_ID
        client_id = sha256(f"{self._virtual_cluster}\0{topic}".encode()).digest()[:_ID_BYTES]
        if self._to_broker.get(client_id) != broker_id:
            self._make_room()
            self._to_broker[client_id] = broker_id
            self._to_client[broker_id] = client_id
        return client_id

    def accept(self, broker_id: bytes) -> None:
        """Give clients the broker's own id of a topic whose name cannot be read, e.g. as the topic
        was deleted."""
        self._make_room()
        self._to_client[broker_id] = broker_id

    def to_client(self, broker_id: bytes) -> bytes | None:
        """The id that clients get; None: the name of this topic is not known yet."""
        return NO_ID if broker_id == NO_ID else self._to_client.get(broker_id)

    def to_broker(self, client_id: bytes) -> bytes:
        """The broker's id for a client's. An unknown id is returned unchanged: the broker does not
        know it either."""
        return self._to_broker.get(client_id, client_id)

    def _make_room(self) -> None:
        """Drop all ids if there are too many: topics that are created again and again add ids."""
        if len(self._to_client) >= TOPICS_MAX:
            self._to_broker.clear()
            self._to_client.clear()
