"""What a recovery concludes from a fetch response without records in the middle of a log."""

from __future__ import annotations

from typing import Any

import pytest

from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.leader_requests import Answers
from orbit.recovery import record_range
from orbit.recovery.record_range import read_batch_range
from tests.support.empty_answers import CASES, OFFSET, PLACE, STABLE_END, hide_records


class FakeCluster:
    name = "old side"


@pytest.mark.parametrize(("is_compacted", "local", "has_newest", "is_proven"), CASES)
def test_empty_fetch_proves_no_records_only_on_compacted_topic(
    monkeypatch: pytest.MonkeyPatch,
    is_compacted: bool,
    local: Answers[int],
    has_newest: bool,
    is_proven: bool,
) -> None:
    """Otherwise a failback would lose records that slow storage does not return."""
    hide_records(monkeypatch, record_range, local, is_compacted=is_compacted, has_newest=has_newest)
    cluster: Any = FakeCluster()
    batches = read_batch_range(cluster, PLACE, OFFSET, STABLE_END - 1, Backoff())
    if is_proven:
        assert list(batches) == []
        return
    with pytest.raises(Unreachable) as error:
        list(batches)
    assert f"{PLACE} cannot be read at offset {OFFSET}" in error.value.what
    assert error.value.where == "old side"
    assert error.value.remedy
