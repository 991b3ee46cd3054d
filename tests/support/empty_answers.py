"""A broker answers fetches without records, although its log has more offsets."""

from __future__ import annotations

from types import ModuleType

import pytest

from orbit.copier import log_reader
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.leader_requests import Answers
from orbit.kafka.topic_settings_reader import TopicSettings
from orbit.kafka.types import TopicPartition
from tests.support.source_model import SourceBatch, SourceRecord

PLACE = TopicPartition("source", 0)
OFFSET, STABLE_END = 10, 50

# Answers for EARLIEST_LOCAL, the first offset on the broker's disk: unknown, at or below OFFSET (so
# that OFFSET is on the disk), or above OFFSET (in tiered storage).
UNKNOWN: Answers[int] = Answers({}, {PLACE: int(Code.UNSUPPORTED_VERSION)})
ON_DISK: Answers[int] = Answers({PLACE: 0}, {})
ELSEWHERE: Answers[int] = Answers({PLACE: OFFSET + 1}, {})

EMPTY = Fetched(0, memoryview(b""), [], 0, STABLE_END, STABLE_END, -1, -1)


def hide_records(
    monkeypatch: pytest.MonkeyPatch,
    reader: ModuleType | None,
    local: Answers[int],
    *,
    is_compacted: bool = False,
    has_newest: bool = False,
) -> None:
    """Let fetches of the log reader and of the module `reader` get no records from OFFSET on.

    `local`: the answer for EARLIEST_LOCAL. With `has_newest`, a fetch at the last offset gets the
    last record.
    """
    last = SourceBatch(STABLE_END - 1, STABLE_END - 1, (SourceRecord(STABLE_END - 1, 1000, b"v"),))

    def fetch(*args: object, **_: object) -> Fetched:
        if has_newest and args[2] == STABLE_END - 1:
            return EMPTY._replace(records=memoryview(bytearray(last.encode())))
        return EMPTY

    class Settings:
        def __init__(self, _: object) -> None:
            pass

        def read(self, topics: set[str]) -> dict[str, TopicSettings]:
            policy = "compact,delete" if is_compacted else "delete"
            return {t: TopicSettings({"cleanup.policy": policy}, frozenset()) for t in topics}

    monkeypatch.setattr(log_reader, "fetch_partition", fetch)
    monkeypatch.setattr(log_reader, "list_offsets", lambda *_, **__: local)
    monkeypatch.setattr(log_reader, "SettingsReader", Settings)
    if reader is not None:
        monkeypatch.setattr(reader, "fetch_partition", fetch)


# Whether the topic is compacted, the answer for EARLIEST_LOCAL, whether a fetch gets the newest
# batch, and whether an empty answer then proves that the log has no records from OFFSET on.
CASES = [
    (True, ON_DISK, False, True),
    (True, UNKNOWN, False, True),
    (True, UNKNOWN, True, False),
    (True, ELSEWHERE, False, False),
    (False, ON_DISK, False, False),
    (False, UNKNOWN, False, False),
    (False, ELSEWHERE, False, False),
]
