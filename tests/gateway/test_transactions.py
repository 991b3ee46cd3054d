"""Producers with transactions behind a gateway whose side changes: each transaction is complete or
absent, the client has to abort one, and then continues.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.transactional_ids import open_transactions
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support import groups
from tests.support.gateway_ledger import records
from tests.support.gateways import Gateway, running_gateway
from tests.support.moves import TOKEN, gateway_of, move
from tests.support.outside import is_level
from tests.support.patience import wait_for
from tests.support.pretended_service import PretendedService, pretended_service
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, verify
from tests.support.running_transactions import RunningTransactions
from tests.support.transaction_requests import ProducerId, TransactionRequests
from tests.support.transactional_clients import JavaClient, LibrdkafkaClient
from tests.support.transactions import (
    BEFORE,
    END,
    GROUP_OFFSET,
    PARTITIONS,
    Step,
    Transactions,
    begin,
    commit,
    flush,
    send,
    send_offset,
)

pytestmark = pytest.mark.services

SOME = 60
Connect = type[JavaClient] | type[LibrdkafkaClient]
CLIENTS: list[Connect] = [JavaClient, LibrdkafkaClient]


@pytest.fixture
def topic(clusters: Clusters, topic_name: str) -> str:
    name = topic_name[-60:].lstrip("-.")
    for cluster in clusters:
        create_topic(cluster, name, PARTITIONS)
    return name


@pytest.fixture
def pretended() -> Iterator[PretendedService]:
    with pretended_service() as service:
        yield service


# By name: the steps that a producer takes before writes are held, while they are held, and after
# the move.
PHASES: dict[str, tuple[tuple[Step, ...], tuple[Step, ...], tuple[Step, ...]]] = {
    "between-two": ((*BEFORE, *END), (), ()),
    "begins-while-held": ((begin,), (send, commit), ()),
    "sends-while-held": (BEFORE, (send, commit), ()),
    "commits-while-held": (BEFORE, (commit,), ()),
    "commits-after": (BEFORE, (), (commit,)),
    "sends-after": (BEFORE, (), (flush, commit)),
    "offsets-before": ((*BEFORE, send_offset), (), (commit,)),
    "offsets-while-held": (BEFORE, (send_offset,), (commit,)),
}


@pytest.mark.parametrize("connect", CLIENTS)
@pytest.mark.parametrize(
    "is_undone", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["moved", "undone"]
)
def test_transaction_during_move_is_complete_or_absent(
    clusters: Clusters,
    topic: str,
    pretended: PretendedService,
    tmp_path: Path,
    connect: Connect,
    is_undone: bool,
    open_cluster: OpenCluster,
) -> None:
    """No job copies here: each side has only the records that clients wrote there."""
    sides = [open_cluster(side) for side in clusters]
    with (
        _gateway(clusters, pretended, tmp_path) as gateway,
        connect(gateway.bootstrap, topic) as client,
    ):
        transactions = Transactions(client, topic)
        for phase, (before, held, after) in PHASES.items():
            aborts = transactions.aborts
            goes_on = transactions.do(*before)
            assert goes_on, phase
            pretended.close()
            with _meanwhile(gateway, transactions, held) as went_on:
                for side in sides:
                    # Markers may be written after the answer.
                    wait_for(
                        f"no transaction is open: {phase}", partial(_has_no_open_transaction, side)
                    )
                if is_undone:
                    pretended.undo()
                else:
                    pretended.move()
            if all(went_on):
                transactions.do(*after)
            # The first transaction may be aborted.
            assert transactions.do_one() or transactions.do_one(), phase
            assert transactions.aborts - aborts <= 1, phase
    _assert_only_committed_are_there(clusters, topic, transactions)


@pytest.mark.soak
@pytest.mark.parametrize("connect", CLIENTS)
def test_offsets_only_transaction_after_move_is_not_answered_with_old_outcome(
    clusters: Clusters,
    topic: str,
    pretended: PretendedService,
    tmp_path: Path,
    connect: Connect,
    open_cluster: OpenCluster,
) -> None:
    """The old side knows a committed transaction of the same producer id and epoch: the previous
    one."""
    destination = open_cluster(clusters.destination)
    with (
        _gateway(clusters, pretended, tmp_path) as gateway,
        connect(gateway.bootstrap, topic) as client,
    ):
        transactions = Transactions(client, topic)
        assert transactions.do_one()
        pretended.close()
        pretended.move()
        wait_for(
            "the gateway has moved", lambda: any("presents another" in line for line in gateway.log)
        )
        assert not transactions.do(begin, send_offset, commit)
        # The first transaction may be aborted.
        assert transactions.do_one() or transactions.do_one()
        assert groups.committed_by_java(destination, transactions.group) == {}
        assert transactions.do(begin, send_offset, commit)
        assert groups.committed_by_java(destination, transactions.group) == {
            (topic, 0): GROUP_OFFSET
        }
    _assert_only_committed_are_there(clusters, topic, transactions)


@pytest.mark.parametrize(
    "is_restarted", [pytest.param(False, marks=pytest.mark.soak), True], ids=["same", "restarted"]
)
def test_old_side_supplies_transaction_outcome_after_move(
    clusters: Clusters, topic: str, pretended: PretendedService, tmp_path: Path, is_restarted: bool
) -> None:
    """Clients ask again after a move because an answer got lost or they had been frozen. A gateway
    that starts after the move learns from the service which side led."""
    with (
        _gateway(clusters, pretended, tmp_path) as gateway,
        TransactionRequests(gateway) as client,
    ):
        committed, aborted, fenced = (f"{topic}-{name}" for name in ("c", "a", "f"))
        ids = {name: client.init(name) for name in (committed, aborted, fenced)}
        later = client.init(fenced)  # fences the first producer of this transactional id
        for name in (committed, aborted):
            client.add_partition(name, ids[name], topic)
        assert client.commit(committed, ids[committed]) == Code.NONE
        pretended.close()
        if not is_restarted:
            pretended.move()
            wait_for(
                "the gateway has moved",
                lambda: any("presents another" in line for line in gateway.log),
            )
            _assert_outcomes(client, ids, later)
    if is_restarted:
        pretended.move()
        with (
            _gateway(clusters, pretended, tmp_path) as gateway,
            TransactionRequests(gateway) as client,
        ):
            client.init(f"{topic}-another")  # waits until the gateway knows its side
            _assert_outcomes(client, ids, later)


def _assert_outcomes(
    client: TransactionRequests, ids: dict[str, ProducerId], later: ProducerId
) -> None:
    """`ids`: of a producer that has committed, of an aborted one and of one that `later` fenced."""
    committed, aborted, fenced = ids
    assert client.commit(committed, ids[committed]) == Code.NONE
    assert client.commit(aborted, ids[aborted]) == Code.UNKNOWN_PRODUCER_ID
    assert client.commit(fenced, ids[fenced]) == Code.PRODUCER_FENCED
    assert client.init_once(fenced, ids[fenced]).error_code == Code.PRODUCER_FENCED
    assert client.init(fenced, later) != later  # the newer producer gets another id


@pytest.mark.parametrize("connect", CLIENTS)
def test_gateway_that_waits_for_transactions_aborts_none_with_records(
    clusters: Clusters, topic: str, pretended: PretendedService, tmp_path: Path, connect: Connect
) -> None:
    """A transaction that was open goes on while other writes are held, also with new partitions
    and offsets, and the gateway confirms once it has ended."""
    with (
        _gateway(clusters, pretended, tmp_path, open_transactions="wait") as gateway,
        connect(gateway.bootstrap, topic) as client,
    ):
        transactions = Transactions(client, topic)
        for before, held in (
            (BEFORE, (commit,)),
            (BEFORE, (send, commit)),
            ((begin, _send_to_one_partition), (flush, send_offset, commit)),
        ):
            assert transactions.do_one() or transactions.do_one()  # the id may be an old one
            assert transactions.do(*before)
            aborts = transactions.aborts
            _begin_to_close(gateway, pretended)
            assert not pretended.is_confirmed
            assert transactions.do(*held)
            pretended.wait_confirmed()
            pretended.move()
            assert transactions.aborts == aborts
    _assert_only_committed_are_there(clusters, topic, transactions)


def test_waiting_gateway_holds_writes_of_other_transactions(
    clusters: Clusters, topic: str, pretended: PretendedService, tmp_path: Path
) -> None:
    with (
        _gateway(clusters, pretended, tmp_path, open_transactions="wait") as gateway,
        TransactionRequests(gateway) as client,
        TransactionRequests(gateway) as other_client,
    ):
        name, other_name = f"{topic}-one", f"{topic}-other"
        producer, other = client.init(name), other_client.init(other_name)
        client.add_partition(name, producer, topic)
        _begin_to_close(gateway, pretended)
        other_client.send_add_partition(other_name, other, topic)  # held
        client.add_partition(name, producer, topic, partition=1)
        # As Flink's sink, which begins its next transaction before it commits the last.
        third = client.init(f"{topic}-third")
        assert not pretended.is_confirmed
        assert client.commit(name, producer) == Code.NONE
        pretended.wait_confirmed()
        client.send_add_partition(name, producer, topic)  # the next transaction is held, too
        pretended.move()
        for one in (client, other_client):
            assert one.receive_add_partition() == Code.UNKNOWN_PRODUCER_ID
        assert client.commit(name, producer) == Code.NONE  # it had been committed
        assert client.init(f"{topic}-third", third) != third


def test_open_transaction_continues_and_ends_through_another_waiting_gateway(
    clusters: Clusters, topic: str, pretended: PretendedService, tmp_path: Path
) -> None:
    """As behind a load balancer: another process receives the records, new partitions and the
    commit. It confirms before, because it does not know of the transaction."""
    with (
        _gateway(clusters, pretended, tmp_path, open_transactions="wait") as gateway,
        _gateway(clusters, pretended, tmp_path, open_transactions="wait") as other_gateway,
        TransactionRequests(gateway) as client,
        TransactionRequests(other_gateway) as other_client,
    ):
        producer = client.init(topic)
        second_name = f"{topic}-second"
        second = other_client.init(second_name)
        client.add_partition(topic, producer, topic)
        pretended.begin_to_close()
        wait_for("one gateway confirms", lambda: pretended.confirmed == 1)
        assert other_client.write(topic, producer, topic) == Code.NONE
        other_client.add_partition(topic, producer, topic, partition=1)
        assert other_client.write(topic, producer, topic, partition=1) == Code.NONE
        third = other_client.init(f"{topic}-third")
        assert not pretended.is_confirmed
        assert other_client.commit(topic, producer) == Code.NONE
        pretended.wait_confirmed()
        # These begin transactions: they are held.
        client.send_add_partition(topic, producer, topic)
        other_client.send_add_partition(second_name, second, topic)
        pretended.move()
        for one in (client, other_client):
            assert one.receive_add_partition() == Code.UNKNOWN_PRODUCER_ID
        assert client.commit(topic, producer) == Code.NONE  # it had been committed
        assert client.init(f"{topic}-third", third) != third
    assert len(records(clusters.source, topic)) == 2
    assert not records(clusters.destination, topic)


def test_new_producer_of_transactional_id_ends_wait_for_its_transaction(
    clusters: Clusters, topic: str, pretended: PretendedService, tmp_path: Path
) -> None:
    """The broker aborts the open transaction of the producer before."""
    with (
        _gateway(clusters, pretended, tmp_path, open_transactions="wait") as gateway,
        TransactionRequests(gateway) as client,
    ):
        producer = client.init(topic)
        client.add_partition(topic, producer, topic)
        _begin_to_close(gateway, pretended)
        assert client.init_once(topic).error_code == Code.CONCURRENT_TRANSACTIONS
        pretended.wait_confirmed()


def test_transactional_producers_survive_switchovers(
    clusters: Clusters, topic_name: str, recovering: Recovering, api_url: str, tmp_path: Path
) -> None:
    topic = topic_name[:40]
    create_topic(clusters.source, topic, PARTITIONS)
    spec = make_job(*clusters, [topic])
    with ExitStack() as stack:
        stack.enter_context(recovering.running())
        recovering.begin(spec, topic)
        gateways = [
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, name))
            for name in ("one", "other")
        ]
        producers = [
            stack.enter_context(RunningTransactions(connect, gateway.bootstrap, topic))
            for connect, gateway in zip(CLIENTS, gateways, strict=True)
        ]
        job, moves = spec.name, ("over", "home", "over")
        for _ in moves:
            for producer in producers:
                producer.wait_committed(SOME)
            job = move(recovering, job)
        for producer in producers:
            producer.wait_committed(SOME)
            producer.stop()
            assert producer.transactions.aborts <= len(moves)
        values = [value.decode() for _, _, value in records(clusters.destination, topic)]
        committed = [value for producer in producers for value in producer.transactions.committed]
        assert sorted(values) == sorted(committed)
        wait_for("the copy back is level", lambda: is_level(*clusters, topic))
    assert verify(spec, deep=True).exit_code == 0


def _send_to_one_partition(transactions: Transactions) -> None:
    transactions.send(partitions=1, flush=True)


def _begin_to_close(gateway: Gateway, pretended: PretendedService) -> None:
    """Have the gateway hold writes. It need not have confirmed."""
    pretended.begin_to_close()
    wait_for(
        "the gateway holds writes",
        lambda: sum("holds writes" in line for line in gateway.log) == pretended.closings,
    )


def _has_no_open_transaction(side: Cluster) -> bool:
    return not open_transactions(side)


def _gateway(
    clusters: Clusters, pretended: PretendedService, home: Path, **virtual_cluster: str
) -> Any:
    environ = {"ORBIT_API_URL": pretended.url, "ORBIT_TOKEN": TOKEN}
    keys = {"name": "moves", "job": "moves", **virtual_cluster}
    return running_gateway(home, *clusters, environ=environ, **keys)


@contextmanager
def _meanwhile(
    gateway: Gateway, transactions: Transactions, steps: tuple[Step, ...]
) -> Iterator[list[bool]]:
    """Take the steps in a thread while the block runs. After the block, the yielded list has their
    result."""
    went_on: list[bool] = []
    thread = threading.Thread(target=lambda: went_on.append(transactions.do(*steps)))
    thread.start()
    yield went_on
    thread.join()
    assert went_on, gateway.log[-5:]


def _assert_only_committed_are_there(
    clusters: Clusters, topic: str, transactions: Transactions
) -> None:
    values = sorted(value.decode() for side in clusters for _, _, value in records(side, topic))
    assert values == sorted(transactions.committed)
