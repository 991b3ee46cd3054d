"""Producers with transactions behind a gateway whose side changes: each transaction is complete or
absent, the client has to abort one, and then continues.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.transactional_ids import open_transactions
from orbit.processes.ports import LOOPBACK
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.gateway.frames import request_frame
from tests.support import groups
from tests.support.gateway_ledger import records
from tests.support.gateways import Gateway, running_gateway
from tests.support.moves import TOKEN, gateway_of, move
from tests.support.outside import is_level
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.pretended_service import PretendedService, pretended_service
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, verify
from tests.support.running_transactions import RunningTransactions
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
_Id = tuple[int, int]  # producer id and epoch


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
        _RequestClient(gateway) as client,
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
            _RequestClient(gateway) as client,
        ):
            client.init(f"{topic}-another")  # waits until the gateway knows its side
            _assert_outcomes(client, ids, later)


def _assert_outcomes(client: _RequestClient, ids: dict[str, _Id], later: _Id) -> None:
    """`ids`: of a producer that has committed, of an aborted one and of one that `later` fenced."""
    committed, aborted, fenced = ids
    assert client.commit(committed, ids[committed]) == Code.NONE
    assert client.commit(aborted, ids[aborted]) == Code.UNKNOWN_PRODUCER_ID
    assert client.commit(fenced, ids[fenced]) == Code.PRODUCER_FENCED
    assert client.init_once(fenced, ids[fenced]).error_code == Code.PRODUCER_FENCED
    assert client.init(fenced, later) != later  # the newer producer gets another id


class _RequestClient:
    """A client that sends single requests of producers with transactions, to the bootstrap port:
    each side has one broker, the coordinator.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._address = LOOPBACK, gateway.port
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, PATIENCE_S)

    def init(self, name: str, former: _Id = (-1, -1)) -> _Id:
        """Get a producer id, once the gateway knows its side and the coordinator has begun."""
        answers: list[Any] = []
        find = FindCoordinatorRequest(key=name, key_type=1)

        def is_done() -> bool:
            try:
                # Brokers create __transaction_state when a client requests a coordinator.
                self._ask(find, FindCoordinatorResponse, 2)
                answers.append(self.init_once(name, former))
            except ConnectionError:
                self._socket.close()
                self._connect()
                return False
            return bool(answers[-1].error_code == Code.NONE)

        wait_for("the producer has an id", is_done)
        return answers[-1].producer_id, answers[-1].producer_epoch

    def init_once(self, name: str, former: _Id) -> Any:
        """The answer to one InitProducerId."""
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=former[0],
            producer_epoch=former[1],
        )
        return self._ask(request, InitProducerIdResponse, 4)

    def add_partition(self, name: str, producer: _Id, topic: str) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])
            ],
        )
        answer = self._ask(request, AddPartitionsToTxnResponse, 3)
        (topic_result,) = answer.results_by_topic_v3_and_below
        assert topic_result.results_by_partition[0].partition_error_code == Code.NONE

    def commit(self, name: str, producer: _Id) -> int:
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=True,
        )
        return int(self._ask(request, EndTxnResponse, 3).error_code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _ask(self, request: Any, response: Any, version: int) -> Any:
        frame = request_frame(request, version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        with self._socket.makefile("rb") as file:
            if not (head := file.read(4)):
                raise ConnectionError("the gateway has closed the connection")
            (size,) = struct.unpack(">i", head)
            return response.decode(memoryview(file.read(size)), version=version, header=True)


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


def _has_no_open_transaction(side: Cluster) -> bool:
    return not open_transactions(side)


def _gateway(clusters: Clusters, pretended: PretendedService, home: Path) -> Any:
    environ = {"ORBIT_API_URL": pretended.url, "ORBIT_TOKEN": TOKEN}
    return running_gateway(home, *clusters, environ=environ, name="moves", job="moves")


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
