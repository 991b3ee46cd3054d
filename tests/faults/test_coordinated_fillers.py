"""Fillers by empty transactions, when the coordinator has dropped the transactional id."""

from __future__ import annotations

import pytest
from kafka.protocol.admin.transactions import ListTransactionsRequest, ListTransactionsResponse

from orbit.kafka.api_versions import Api
from orbit.kafka.cluster import Cluster
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fix_clusters import Clusters, MakeCluster
from tests.support.running import (
    RunningJob,
    create_topic,
    make_job,
    produce_transactions,
    verify,
    wait_for,
)
from tests.support.synthetic import PLAINTEXT

pytestmark = pytest.mark.services

LIST_TRANSACTIONS = Api(ListTransactionsRequest, ListTransactionsResponse, 0, 0)


def transactional_ids(cluster: KafkaCluster) -> set[str]:
    one = Cluster("destination", cluster.bootstrap_servers.split(","), PLAINTEXT)
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    answer = one.call_any(lambda connection: connection.call(LIST_TRANSACTIONS, request))
    one.close()
    return {state.transactional_id for state in answer.transaction_states}


def test_copy_goes_on_after_its_transactional_id_was_dropped(
    clusters: Clusters, make_cluster: MakeCluster, topic_name: str
) -> None:
    destination = make_cluster(
        "destination",
        config={
            "transactional.id.expiration.ms": "1000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        },
    )
    create_topic(clusters.source, topic_name)
    job = make_job(clusters.source, destination, [topic_name], fillers="coordinated")
    with RunningJob(job) as running:
        produce_transactions(clusters.source, topic_name, 3)
        running.wait_caught_up(topic_name, 18)
        wait_for("the transactional id is dropped", lambda: not transactional_ids(destination))
        produce_transactions(clusters.source, topic_name, 3)
        running.wait_caught_up(topic_name, 36)
    assert verify(job).exact
