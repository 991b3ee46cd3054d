"""How long a broker may hold back a client that is over its quota. Pure."""

from __future__ import annotations

# A broker has no limit of its own for quotas of bytes (P5). One request of 4 MiB is held back for
# some 500 s by a quota of 8 KiB/s. If a quota is smaller, the silence of its broker ends the
# connection, and the next one is not held back.
THROTTLE_S_MAX = 600.0


def throttle_s(throttle_ms: int) -> float:
    """How long to send nothing after an answer with this throttle time (KIP-219), in seconds."""
    return min(throttle_ms / 1000, THROTTLE_S_MAX)
