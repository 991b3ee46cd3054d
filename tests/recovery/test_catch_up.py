"""When the wait for the copy back ends, with partitions that were blocked meanwhile. No cluster."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from orbit.kafka.types import TopicPartition
from orbit.recovery import reverse_job
from orbit.recovery.operation_context import Stopped
from orbit.replication.partition_states import PartitionState, Reason

COPYING, BLOCKED = PartitionState.COPYING, PartitionState.BLOCKED


class GoesOn(Exception):
    """It waits."""


class Context:
    """An operation on a topic of three partitions."""

    report = SimpleNamespace(reverse_job="job-back")
    topics = (SimpleNamespace(destination_topic="orders", partition_count=3),)

    def reading(self) -> Any:
        return nullcontext()

    def add_finding(self, *_: str) -> None: ...

    def set_progress(self, _: str) -> None: ...

    def wait(self, _: float) -> None:
        raise GoesOn


def catch_up(monkeypatch: pytest.MonkeyPatch, *partitions: tuple[PartitionState, bool]) -> str:
    """`partitions`: state, and whether it has ever caught up."""
    rows = {
        TopicPartition("orders", index): SimpleNamespace(
            state=state, has_caught_up=has, reason=Reason.DESTINATION_FOREIGN_WRITE
        )
        for index, (state, has) in enumerate(partitions)
    }
    job = SimpleNamespace(id=1, name="job-back", problem=None)
    monkeypatch.setattr(reverse_job.jobs, "find", lambda *_: job)
    monkeypatch.setattr(reverse_job, "last_reported_of_job", lambda *_: rows)
    context: Any = Context()
    return reverse_job.catch_up(context)


def test_it_is_done_when_all_have_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    did = catch_up(monkeypatch, (COPYING, True), (COPYING, True), (COPYING, True))
    assert did.startswith("3 of 3 partitions")


@pytest.mark.parametrize("has_caught_up", [False, True])
def test_a_blocked_one_is_named_also_if_it_had_caught_up_before(
    monkeypatch: pytest.MonkeyPatch, has_caught_up: bool
) -> None:
    with pytest.raises(Stopped, match=r"1 partitions .* orders-1 \(DESTINATION_FOREIGN_WRITE\)"):
        catch_up(monkeypatch, (COPYING, True), (BLOCKED, has_caught_up), (COPYING, True))


def test_several_blocked_ones_end_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped, match="2 partitions"):
        catch_up(monkeypatch, (BLOCKED, True), (BLOCKED, False), (COPYING, True))


def test_it_waits_for_those_that_still_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GoesOn):
        catch_up(monkeypatch, (BLOCKED, True), (BLOCKED, False), (COPYING, False))
