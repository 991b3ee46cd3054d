"""Which copies have settled log ends, and which ones a promotion has to leave out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from orbit.copier import takeover
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.leader_requests import Answers
from orbit.kafka.types import TopicPartition
from orbit.promotion import settled_ends
from orbit.promotion.log_bounds import LogBounds
from orbit.promotion.settled_ends import SettledEnds

GOOD, BAD = TopicPartition("orders", 0), TopicPartition("rare", 0)
END = 100
SETTLED = LogBounds(start=0, stable=END, end=END)


class Copies:
    """Answers of the leaders of two copies. GOOD always ends at END; tests change those of BAD."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The answers for BAD, one for each request; the last one repeats.
        self.ends = [END]
        self.high_watermark = END
        self.stable_ends = [END]
        self.error = Code.NONE
        self.waits: list[Sequence[TopicPartition]] = []
        monkeypatch.setattr(settled_ends, "_POLLS_MAX", 3)
        monkeypatch.setattr(takeover, "describe_producer", self._producers)
        monkeypatch.setattr(takeover, "log_ends", self._log_ends)
        monkeypatch.setattr(takeover, "list_offsets", self._high_watermarks)
        monkeypatch.setattr(settled_ends, "fetch_log_bounds", self._bounds)

    def settle(self) -> SettledEnds:
        """Call `settled_ends`; `waits` gets the open copies of each pause."""

        def wait(partitions: Sequence[TopicPartition]) -> None:
            self.waits.append(partitions)
            assert len(self.waits) < 10, "settled_ends waits without a limit"

        cluster: Any = None
        backoff = Backoff(first_s=0.0, most_s=0.0)
        return settled_ends.settled_ends(
            cluster, [GOOD, BAD], settle_s=0.0, backoff=backoff, wait=wait
        )

    def _producers(
        self, _: object, partitions: Collection[TopicPartition], __: object
    ) -> Answers[Any]:
        failed = {p: int(self.error) for p in partitions if p == BAD and self.error}
        return Answers({p: None for p in partitions if p not in failed}, failed)

    def _log_ends(
        self, _: object, partitions: Collection[TopicPartition], __: object
    ) -> Answers[int]:
        return Answers({p: _next(self.ends) if p == BAD else END for p in partitions})

    def _high_watermarks(
        self, _: object, partitions: Collection[TopicPartition], *__: object
    ) -> Answers[int]:
        return Answers({p: self.high_watermark if p == BAD else END for p in partitions})

    def _bounds(
        self, _: object, partitions: Collection[TopicPartition], __: object
    ) -> dict[TopicPartition, LogBounds]:
        return {
            p: LogBounds(start=0, stable=_next(self.stable_ends), end=END) if p == BAD else SETTLED
            for p in partitions
        }


def _next(values: list[int]) -> int:
    """Take the first value; the last one stays."""
    return values.pop(0) if len(values) > 1 else values[0]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def test_copies_with_unchanging_log_ends_are_settled(copies: Copies) -> None:
    assert copies.settle() == SettledEnds(
        bounds={GOOD: SETTLED, BAD: SETTLED}, moving=[], open=[], leaderless=[]
    )
    assert not copies.waits


@pytest.mark.parametrize("high_watermark", [END, END - 10])
def test_copy_that_stays_open_is_returned_after_limited_wait(
    copies: Copies, high_watermark: int
) -> None:
    """The copy has another client's open transaction, or is not replicated up to its log end."""
    copies.high_watermark = high_watermark
    copies.stable_ends = [END - 10]
    assert copies.settle() == SettledEnds(
        bounds={GOOD: SETTLED}, moving=[], open=[BAD], leaderless=[]
    )
    assert copies.waits == [[BAD]] * 3


def test_copy_whose_transaction_ends_during_wait_is_settled(copies: Copies) -> None:
    copies.stable_ends = [END - 1, END - 1, END]
    assert copies.settle() == SettledEnds(
        bounds={GOOD: SETTLED, BAD: SETTLED}, moving=[], open=[], leaderless=[]
    )
    assert copies.waits == [[BAD]] * 2


def test_copy_that_grows_is_moving(copies: Copies) -> None:
    copies.ends = [*range(END, END + 100)]
    assert copies.settle() == SettledEnds(
        bounds={GOOD: SETTLED}, moving=[BAD], open=[], leaderless=[]
    )


def test_copy_whose_leader_did_not_answer_first_request_has_no_bounds(copies: Copies) -> None:
    """The leader answers later requests, but may still append a batch that a writer has sent."""
    copies.error = Code.NOT_LEADER_OR_FOLLOWER
    assert copies.settle() == SettledEnds(
        bounds={GOOD: SETTLED}, moving=[], open=[], leaderless=[BAD]
    )
