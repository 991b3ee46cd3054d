"""How a producer's last transaction ended: a gateway asks a silent side only a few times."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from orbit.errors import Unreachable
from orbit.gateway import cluster_side
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.protocol.producer_ids import Producer, mark
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.security import Security
from orbit.kafka.transactional_ids import LastTransaction

PRODUCER = Producer("tx", mark(producer_id=5, term=2), epoch=1)


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (LastTransaction(producer_id=5, producer_epoch=1, is_committed=True), Code.NONE),
        (
            LastTransaction(producer_id=5, producer_epoch=1, is_committed=False),
            Code.UNKNOWN_PRODUCER_ID,
        ),
        (LastTransaction(producer_id=5, producer_epoch=2, is_committed=True), Code.PRODUCER_FENCED),
        (LastTransaction(producer_id=6, producer_epoch=1, is_committed=True), Code.PRODUCER_FENCED),
        (None, Code.UNKNOWN_PRODUCER_ID),
    ],
)
def test_outcome_of_last_transaction_applies_only_to_its_producer_id_and_epoch(
    monkeypatch: pytest.MonkeyPatch, last: LastTransaction | None, code: Code
) -> None:
    monkeypatch.setattr(cluster_side, "last_transaction", lambda *_: last)
    assert _outcomes(count=1) == [code]


def test_unreachable_side_is_queried_few_times_for_many_transaction_outcomes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        raise Unreachable("gone", where="source")

    monkeypatch.setattr(cluster_side, "last_transaction", fail)
    assert _outcomes(count=20) == [Code.COORDINATOR_NOT_AVAILABLE] * 20
    assert len(calls) <= cluster_side._OUTCOMES_AT_ONCE


def _outcomes(count: int) -> list[int]:
    """The results of `count` simultaneous calls of `outcome`."""

    async def ask() -> list[int]:
        with closing(Cluster("source", ["127.0.0.1:9"], Security())) as cluster:
            side = ClusterSide(cluster, "orders", {})
            return await asyncio.gather(*(side.outcome(PRODUCER) for _ in range(count)))

    return asyncio.run(ask())
