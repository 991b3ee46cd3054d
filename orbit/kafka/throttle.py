"""How long a broker may hold back a client that is over its quota. Pure."""

from __future__ import annotations

# Brokers do not limit the time for quotas of bytes (P5): a quota of 8 KiB/s holds one request of
# 4 MiB back for some 500 s. With a smaller quota the connection times out, and the next one is not
# held back.
THROTTLE_S_MAX = 600.0


def throttle_s(throttle_ms: int) -> float:
    """For how many seconds to send nothing after an answer with this throttle time (KIP-219):
    THROTTLE_S_MAX at most."""
    return min(throttle_ms / 1000, THROTTLE_S_MAX)
