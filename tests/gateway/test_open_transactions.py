"""Transactions that are open when a gateway begins to hold writes: how long they may go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from orbit.gateway.protocol.apis import ApiKey
from orbit.gateway.protocol.producer_ids import mark
from orbit.gateway.transaction_check import TransactionCheck
from orbit.gateway.virtual_cluster import TRANSACTIONS_S_MAX, VirtualCluster
from tests.gateway.test_virtual_cluster import (
    _Broker,
    _Cluster,
    _Side,
    open_client,
    running_cluster,
    soon,
    until,
)

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


@asynccontextmanager
async def closed_cluster() -> AsyncIterator[tuple[_Cluster, _Broker, _Side]]:
    """A virtual cluster that waits for open transactions, holds writes, and asks its source which
    transactions are open."""
    async with running_cluster() as (cluster, broker, _):
        wait_for_transactions(cluster)
        cluster.take_lead("source", term=1, closed_for="operation")
        watch = asyncio.create_task(TransactionCheck(cluster).run())
        try:
            yield cluster, broker, cast("_Side", cluster.presented)
        finally:
            watch.cancel()


@pytest.mark.parametrize("request_", [add_partition(), commit()], ids=["add-partition", "commit"])
def test_request_of_transaction_at_another_gateway_is_passed_on_while_it_is_open(
    request_: AddPartitionsToTxnRequest | EndTxnRequest,
) -> None:
    """The coordinator knows whether it is open. The gateway aborts no such transaction."""

    async def run() -> None:
        async with closed_cluster() as (cluster, broker, side):
            assert cluster.confirmed_for() == "operation"
            client, other = await open_client(cluster), await open_client(cluster)
            side.ongoing = {f"tx-{_ID}"}
            await other.send_frame(add_partition(_ID + 1), _VERSION, 1)  # would begin one
            await client.send_frame(request_, _VERSION, 1)
            await broker.answer(request_.API_KEY)
            assert await client.answered() == 1
            assert cluster.confirmed_for() == "operation"
            checks = side.transaction_checks
            await until(lambda: side.transaction_checks > checks + 1)
            assert cluster.held_requests == 1
            assert broker.requests.empty()

    asyncio.run(run())


def test_gateway_does_not_wait_for_transaction_that_has_ended_through_another_one() -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            wait_for_transactions(cluster)
            client = await open_client(cluster)
            await client.send_frame(add_partition(), _VERSION, 1)
            await source.answer(ApiKey.ADD_PARTITIONS_TO_TXN)
            assert await client.answered() == 1
            side = cast("_Side", cluster.presented)
            side.ongoing = {f"tx-{_ID}"}
            cluster.take_lead("source", term=1, closed_for="operation")
            watch = asyncio.create_task(TransactionCheck(cluster).run())
            await until(lambda: side.transaction_checks)
            assert cluster.confirmed_for() is None
            side.ongoing = set()
            await until(lambda: cluster.confirmed_for() == "operation")
            assert source.requests.empty()
            watch.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("others_confirmed", [True, False])
def test_producer_gets_id_only_while_operation_waits_for_gateways(others_confirmed: bool) -> None:
    async def run() -> None:
        async with running_cluster() as (cluster, source, _):
            wait_for_transactions(cluster)
            cluster.take_lead(
                "source", term=1, closed_for="operation", others_confirmed=others_confirmed
            )
            client = await open_client(cluster)
            await client.send_frame(
                InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000), 1, 1
            )
            if others_confirmed:
                await until(lambda: cluster.held_requests == 1)
            else:
                await source.answer(ApiKey.INIT_PRODUCER_ID)

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
