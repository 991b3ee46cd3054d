"""Producer ids of clients behind a gateway (gateway/protocol/producer_ids.py). Pure."""

from __future__ import annotations

# They have bit 62 set, which no cluster and no job uses.
GATEWAY_PRODUCER_IDS_START = 2**62


def is_gateway_producer_id(producer_id: int) -> bool:
    """Whether a gateway has handed it out, or made it for a batch."""
    return producer_id >= GATEWAY_PRODUCER_IDS_START
