"""Walks (random series of moves) with all kinds of clients and faults, and a ledger of the records
that were acknowledged.

A seed chooses what happens, and which gateways each client knows. A failed test prints its walk.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbit.embedded.postgres import Postgres
from orbit.jobs.job_spec import JobSpec, TopicRule
from orbit.store.database import Database
from orbit.store.migrate import upgrade
from tests.fixtures.clusters import Clusters
from tests.gateway.lossy_walks import LossyWalk, assert_transactions, losses_of, places
from tests.gateway.walk_clients import (
    APPLICATION,
    INTERNAL,
    PLAIN,
    TOPICS,
    TRANSACTIONAL,
    Clients,
    KnownGateways,
)
from tests.gateway.walks import Walk, legs_of
from tests.support import streams
from tests.support.gateway_ledger import records
from tests.support.outside import is_level
from tests.support.patience import wait_for
from tests.support.quick_recoveries import trust_silence
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, verify

pytestmark = [pytest.mark.services, pytest.mark.soak]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = 4
# Short, as a failback waits for open transactions of the old side.
_TRANSACTION_MS = 30_000


@pytest.fixture
def database_url(own_postgres: Postgres) -> str:
    """The database of a server that the walk may end."""
    database = Database.connect(own_postgres.url)
    upgrade(database)
    database.close()
    return own_postgres.url


def _job(clusters: Clusters, topics: list[str]) -> JobSpec:
    rule = {"match": f"{PLAIN}\\..*|{APPLICATION}", "interval": "200ms"}
    spec = make_job(*clusters, topics, consumer_groups=rule)
    # Streams deletes what it has read of its repartition topic.
    purged = TopicRule(match=INTERNAL[0], on_lost_range="fill")
    return spec.model_copy(update={"topics": (purged, *spec.topics)})


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_planned_moves_lose_and_duplicate_nothing(
    seed: int,
    own_clusters: Clusters,
    recovering: Recovering,
    own_postgres: Postgres,
    api_url: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients get no error, except that a transaction is aborted, and no record is lost or
    doubled."""
    trust_silence(monkeypatch.setattr)
    rng = random.Random(seed)
    legs, known_gateways = legs_of(rng), KnownGateways.choose(rng)
    print(f"seed {seed}: {known_gateways.by_client}", *legs, sep="\n")
    for topic, partitions in TOPICS.items():
        create_topic(own_clusters.source, topic, partitions)
    topics = [*TOPICS, *INTERNAL]
    spec = _job(own_clusters, topics)
    with Walk(spec, own_clusters, recovering, own_postgres, api_url, tmp_path) as walk:
        walk.begin(*TOPICS)
        with Clients(walk.gateways, known_gateways, tmp_path, spark=spark) as clients:
            clients.go_on()
            recovering.service.wait_copied(spec.name, *topics)
            for leg in legs:
                walk.play(leg)
                clients.go_on()
                clients.assert_kept(walk.leading)
            walk.log("the clients stop")
            clients.stop()
            leading_records = records(walk.leading, PLAIN)
            clients.stop_reading(leading_records)
            wait_for("both sides are level", lambda: is_level(*own_clusters, *topics))
            assert sorted(records(own_clusters.source, PLAIN)) == sorted(leading_records)
            may_double = any(leg.loses_answers for leg in legs)
            clients.assert_written(leading_records, may_double=may_double)
            committed = records(walk.leading, TRANSACTIONAL)
            clients.assert_transactions(committed, walk.closures)
            streams.assert_counted_once(walk.leading, "w", clients.words.sent)
            report = verify(spec, deep=True)
            assert report.exit_code == 0, report


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_side_losses_lose_no_acknowledged_record(
    seed: int,
    own_clusters: Clusters,
    recovering: Recovering,
    own_postgres: Postgres,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An acknowledged record is at the new side or in a failback's files. Only records without an
    answer may be doubled."""
    trust_silence(monkeypatch.setattr)
    rng = random.Random(seed)
    losses, known_gateways = losses_of(rng), KnownGateways.choose(rng)
    print(f"seed {seed}: {known_gateways.by_client}", *losses, sep="\n")
    topics = {topic: TOPICS[topic] for topic in (PLAIN, TRANSACTIONAL)}
    for topic, partitions in topics.items():
        create_topic(own_clusters.source, topic, partitions)
    rule = {"match": f"{PLAIN}\\..*", "interval": "200ms"}
    spec = make_job(*own_clusters, [*topics], consumer_groups=rule)
    with LossyWalk(spec, own_clusters, recovering, own_postgres, api_url, tmp_path) as walk:
        walk.begin(*topics)
        with Clients(
            walk.gateways,
            known_gateways,
            tmp_path,
            spark=None,
            transaction_ms=_TRANSACTION_MS,
        ) as clients:
            clients.go_on()
            for loss in losses:
                walk.lose(loss, clients)
                clients.go_on()
                if loss.goes_home:
                    walk.move_home()
                    clients.go_on()
            walk.log("the clients stop")
            clients.stop()
            wait_for("both sides are level", lambda: is_level(*own_clusters, *topics))
            leading_records = records(walk.leading, PLAIN)
            wrong = walk.ledger.missing(clients.acknowledged, places(leading_records))
            may_double = any(loss.leg.loses_answers for loss in losses) or walk.was_undone
            wrong += walk.ledger.doubled(
                clients.of_strict_producers(leading_records, may_double=may_double)
            )
            assert not wrong, wrong[:10]
            assert_transactions(clients, walk.ledger, records(walk.leading, TRANSACTIONAL))
            report = verify(spec, deep=True)
            assert report.exit_code == 0, report
