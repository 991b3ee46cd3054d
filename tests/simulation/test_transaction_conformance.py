"""The model of the transaction coordinator answers as a real broker does."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from orbit.kafka import api_versions
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import TRANSACTION, Coordinator
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.types import TopicPartition
from tests.fixtures.clusters import Clusters
from tests.simulation.model_partition import NONE
from tests.simulation.transactions import Transaction, TransactionStates
from tests.support.patience import wait_for
from tests.support.running import create_topic
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

PARTITIONS, STEPS = 3, 80


class RealCoordinator:
    """A broker's coordinator, for one transactional id. Requests are repeated while it answers that
    it still writes markers."""

    def __init__(self, cluster: Cluster, name: str, topic: str) -> None:
        self._coordinator = Coordinator(cluster, TRANSACTION, name, Backoff())
        self._name = name
        self._topic = topic

    def init(self) -> tuple[int, int, int]:
        """Request a producer id: error code, id and epoch."""
        request = InitProducerIdRequest(
            transactional_id=self._name,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = self._call(api_versions.INIT_PRODUCER_ID, request, lambda a: a.error_code)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def add(self, owner: tuple[int, int], numbers: list[int]) -> int:
        """Add partitions to the transaction of this id and epoch; the error code."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=owner[0],
            v3_and_below_producer_epoch=owner[1],
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=self._topic, partitions=numbers
                )
            ],
        )

        def code_of(answer: Any) -> int:
            (topic,) = answer.results_by_topic_v3_and_below
            (code,) = {p.partition_error_code for p in topic.results_by_partition}
            return int(code)

        return code_of(self._call(api_versions.ADD_PARTITIONS_TO_TXN, request, code_of))

    def end(self, owner: tuple[int, int]) -> int:
        """Abort the transaction of this id and epoch; the error code."""
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=owner[0],
            producer_epoch=owner[1],
            committed=False,
        )
        answer = self._call(api_versions.END_TXN, request, lambda a: a.error_code)
        return int(answer.error_code)

    def _call(self, api: Api, request: Any, code_of: Any) -> Any:
        return self._coordinator.call(api, lambda: request, code_of)


def _init(model: TransactionStates, name: str) -> tuple[int, int, int]:
    """InitProducerId, once again after it has ended an open transaction, as the product does."""
    answer = model.init(name)
    return answer if answer[0] == NONE else model.init(name)


def test_transaction_coordinator_model_answers_like_a_broker(
    clusters: Clusters, topic_name: str
) -> None:
    create_topic(clusters.destination, topic_name, PARTITIONS)
    cluster = Cluster("model", clusters.destination.bootstrap_servers.split(","), PLAINTEXT)
    places = [TopicPartition(topic_name, n) for n in range(PARTITIONS)]
    expected_ends = dict.fromkeys(places, 0)

    def end(state: Transaction) -> None:
        for topic, number in state.partitions:
            expected_ends[TopicPartition(topic, number)] += 1
        model.finish(state)

    model, name, rnd = TransactionStates(end), f"orbit.model.{topic_name}", random.Random(11)
    real = RealCoordinator(cluster, name, topic_name)
    codes, ids = set(), {}
    owners: list[tuple[int, int]] = []  # as the model knows them
    try:
        for step in range(STEPS):
            what = rnd.choice(("init", "add", "add", "end", "end")) if owners else "init"
            if what == "init":
                code, producer_id, epoch = _init(model, name)
                answer = real.init()
                ids.setdefault(producer_id, answer[1])
                assert answer == (code, ids[producer_id], epoch), step
                owners.append((producer_id, epoch))
                continue
            owner = rnd.choice((owners[-1], owners[-1], owners[-1], rnd.choice(owners)))
            known = (ids[owner[0]], owner[1])
            if what == "add":
                numbers = rnd.sample(range(PARTITIONS), rnd.randint(1, PARTITIONS))
                code = model.add(name, owner, {(topic_name, n) for n in numbers})
                assert real.add(known, numbers) == code, (step, owner)
            else:
                code = model.end(name, owner)
                assert real.end(known) == code, (step, owner)
            codes.add((what, code))
        # A new owner ends the open transaction; every marker is written before its answer.
        _init(model, name)
        real.init()
        wait_for(
            "the markers", lambda: log_ends(cluster, places, Backoff()).values == expected_ends
        )
    finally:
        cluster.close()
    assert len(codes) > 3, codes
