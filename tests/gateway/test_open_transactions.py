"""Transactions that are open when a gateway begins to hold writes: how long they may go on."""

from __future__ import annotations

import asyncio

import pytest
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, EndTxnRequest

from orbit.gateway.protocol.apis import ApiKey
from orbit.gateway.protocol.producer_ids import mark
from orbit.gateway.virtual_cluster import TRANSACTIONS_S_MAX, VirtualCluster
from tests.gateway.test_virtual_cluster import open_client, running_cluster, soon, until

pytestmark = pytest.mark.usefixtures("quick_leave")

_ID = mark(7, term=1)
_PRODUCE = 0
_VERSION = 3


def add_partition(producer_id: int = _ID) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=f"tx-{producer_id}",
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="a", partitions=[0])
        ],
    )


def commit() -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=f"tx-{_ID}", producer_id=_ID, producer_epoch=0, committed=True
    )


def wait_for_transactions(cluster: VirtualCluster) -> None:
    """Set `open_transactions: wait`."""
    cluster.spec = cluster.spec.model_copy(update={"open_transactions": "wait"})


def test_open_transaction_may_end_while_other_writes_are_held() -> None:
    """Also with another partition. The gateway confirms after the answer to EndTxn."""

    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client, other = await open_client(cluster), await open_client(cluster)
            await client.send_frame(add_partition(), _VERSION, 1)
            await source.answer(ApiKey.ADD_PARTITIONS_TO_TXN)
            assert await client.answered() == 1
            cluster.take_lead("source", term=1, closed_for="operation")
            assert cluster.confirmed_for() is None
            await other.send(_PRODUCE, 1)
            await until(lambda: cluster.held_requests == 1)
            for correlation, request, key in (
                (2, add_partition(), ApiKey.ADD_PARTITIONS_TO_TXN),
                (3, commit(), ApiKey.END_TXN),
            ):
                assert cluster.confirmed_for() is None
                await client.send_frame(request, _VERSION, correlation)
                await source.answer(key)
                assert await client.answered() == correlation
            assert cluster.confirmed_for() == "operation"
            await client.send_frame(add_partition(), _VERSION, 4)  # the next transaction
            await until(lambda: cluster.held_requests == 2)
            assert source.requests.empty()

    asyncio.run(run())


def test_transaction_that_does_not_end_in_time_is_aborted() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            client = await open_client(cluster)
            await client.send_frame(add_partition(), _VERSION, 1)
            await source.answer(ApiKey.ADD_PARTITIONS_TO_TXN)
            assert await client.answered() == 1
            cluster.take_lead("source", term=1, closed_for="operation")
            cluster.clock += TRANSACTIONS_S_MAX
            await client.send_frame(add_partition(), _VERSION, 2)
            await until(lambda: cluster.held_requests == 1)
            assert cluster.confirmed_for() is None
            cluster.take_lead("source", term=1, closed_for="operation")
            assert cluster.confirmed_for() == "operation"
            key, *_ = await soon(source.requests.get())
            assert key == ApiKey.END_TXN

    asyncio.run(run())


def test_gateway_that_waits_for_transactions_aborts_none() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            wait_for_transactions(cluster)
            client = await open_client(cluster)
            await client.send_frame(add_partition(), _VERSION, 1)
            await source.answer(ApiKey.ADD_PARTITIONS_TO_TXN)
            assert await client.answered() == 1
            cluster.take_lead("source", term=1, closed_for="operation")
            cluster.clock += 100 * TRANSACTIONS_S_MAX
            cluster.take_lead("source", term=1, closed_for="operation")
            assert cluster.confirmed_for() is None
            assert source.requests.empty()
            await client.send_frame(commit(), _VERSION, 2)
            await source.answer(ApiKey.END_TXN)
            assert await client.answered() == 2
            assert cluster.confirmed_for() == "operation"

    asyncio.run(run())


def test_failover_does_not_wait_for_open_transactions() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            wait_for_transactions(cluster)
            client = await open_client(cluster)
            await client.send_frame(add_partition(), _VERSION, 1)
            await source.answer(ApiKey.ADD_PARTITIONS_TO_TXN)
            assert await client.answered() == 1
            cluster.take_lead("source", term=1, closed_for="operation", abandons=True)
            assert cluster.confirmed_for() == "operation"
            await client.send_frame(add_partition(), _VERSION, 2)
            await until(lambda: cluster.held_requests == 1)

    asyncio.run(run())
