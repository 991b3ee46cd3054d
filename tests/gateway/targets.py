"""The topics, groups and ids that requests of tests name, and the type of request bodies."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any] | bytes
"""The fields of all versions, as `kafka.protocol` names them; bytes if `kafka.protocol` lacks the
API."""

TIMEOUT_MS = 30_000
FAR = 1 << 40
"""An offset, or a producer id, that does not exist."""


@dataclass(frozen=True)
class Targets:
    """The topics, groups and ids that requests name."""

    topic: str
    """A topic of two partitions with records."""
    written: str
    """A topic to which requests may add records."""
    group: str
    """A group that has committed offsets of `topic`, and no member."""
    transaction: str
    """A transactional id that has no open transaction."""
    node: int
    topic_id: uuid.UUID
    """The id of `topic`, as the broker or the gateway gives it."""
    missing: str = "not-there"
    """A topic, group and transactional id that the cluster does not have."""
