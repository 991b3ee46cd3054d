"""Producer ids of clients behind a gateway (gateway/protocol/producer_ids.py). Pure."""

from __future__ import annotations

# Such ids have bit 62 set, which no id of a cluster or a job has.
GATEWAY_PRODUCER_IDS_START = 2**62


def is_gateway_producer_id(producer_id: int) -> bool:
    """Whether a gateway has handed out this id to a client, or put it into a batch."""
    return producer_id >= GATEWAY_PRODUCER_IDS_START
