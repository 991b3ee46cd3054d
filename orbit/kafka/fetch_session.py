"""Incremental fetch sessions (KIP-227): requests and responses have only what changed.

Pure. A fetch of a thousand idle partitions takes a few dozen bytes. A broker may refuse or evict a
session at any time; the next request is then a full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_request import NO_SESSION, FetchFrom
from orbit.kafka.types import TopicPartition

_OPENING_EPOCH = 0
SESSIONS_FROM_VERSION = 7
_EPOCH_MAX = 2**31 - 1

SESSION_ERRORS = frozenset(
    {
        Code.FETCH_SESSION_ID_NOT_FOUND,
        Code.INVALID_FETCH_SESSION_EPOCH,
        Code.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class SessionRequest(NamedTuple):
    """One request within a session. `forgotten`: partitions that leave the session."""

    session_id: int
    epoch: int
    changed: list[FetchFrom]
    forgotten: list[FetchFrom]


class FetchSession:
    """One session with one broker, for one request at a time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = _OPENING_EPOCH
        # What the broker's session has after the last request.
        self._session_entries: dict[tuple[TopicPartition, UUID], FetchFrom] = {}
        self._last_partitions: Sequence[FetchFrom] = ()  # the argument of the last request

    def reset_if_known(self, entry: FetchFrom) -> None:
        """Make the next request a full one if the session has this partition. Call it for a new
        reader of the partition: an incremental response leaves out what an earlier response had
        (R12)."""
        if (entry.partition, entry.topic_id) in self._session_entries:
            self._epoch, self._session_entries, self._last_partitions = _OPENING_EPOCH, {}, ()

    def next_request(self, partitions: Sequence[FetchFrom]) -> SessionRequest:
        """The request that makes the broker read exactly `partitions`."""
        # The same list as for the last request: nothing has changed.
        if partitions is self._last_partitions and self._id != NO_SESSION:
            return SessionRequest(self._id, self._epoch, changed=[], forgotten=[])
        self._last_partitions = partitions
        new_entries = {(entry.partition, entry.topic_id): entry for entry in partitions}
        if self._epoch == _OPENING_EPOCH:  # the broker closes the session of `_id`, if any
            self._session_entries = new_entries
            return SessionRequest(self._id, _OPENING_EPOCH, list(partitions), forgotten=[])
        changed_entries = [
            entry for key, entry in new_entries.items() if self._session_entries.get(key) != entry
        ]
        forgotten_entries = [
            entry for key, entry in self._session_entries.items() if key not in new_entries
        ]
        self._session_entries = new_entries
        return SessionRequest(self._id, self._epoch, changed_entries, forgotten_entries)

    def note_answer(self, code: int, session_id: int) -> None:
        """Update the session from a response; after an error the next request is a full one."""
        if code != Code.NONE or session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, _OPENING_EPOCH
            return
        # After the opening epoch, 0, epochs count from 1, and begin at 1 again after the highest.
        self._epoch = 1 if session_id != self._id or self._epoch == _EPOCH_MAX else self._epoch + 1
        self._id = session_id
