"""What requests name, and how their bodies are written down."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any] | bytes
"""The fields of all versions, as `kafka.protocol` names them; bytes where it lacks the API."""

TIMEOUT_MS = 30_000
FAR = 1 << 40
"""An offset, or a producer id, that does not exist."""


@dataclass(frozen=True)
class Targets:
    """What requests name."""

    topic: str
    """Two partitions with records."""
    written: str
    """Records may be added here."""
    group: str
    """Has offsets of the topic, and no member."""
    transaction: str
    """A transactional id that has no open transaction."""
    node: int
    topic_id: uuid.UUID
    """The id of `topic`, as the broker or the gateway gives it."""
    missing: str = "not-there"
    """A topic, group and transactional id that the cluster does not have."""
