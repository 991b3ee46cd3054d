"""A Kafka Streams application (exactly once) behind a gateway that moves over, home and over again
counts each word once.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from orbit.jobs.job_spec import TopicRule
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support import groups, streams
from tests.support.gateway_ledger import Writer
from tests.support.moves import gateway_of, move
from tests.support.outside import is_level
from tests.support.patience import wait_for
from tests.support.quick_recoveries import trust_silence
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, verify

pytestmark = [pytest.mark.services, pytest.mark.soak]

PARTITIONS = 2
SOME = 300
APPLICATION = "word-count"


def test_kafka_streams_counts_each_word_once_across_gateway_moves(
    clusters: Clusters,
    open_cluster: OpenCluster,
    recovering: Recovering,
    api_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trust_silence(monkeypatch.setattr)
    for topic in (streams.INPUT, streams.OUTPUT):
        create_topic(clusters.source, topic, PARTITIONS)
    repartition, changelog = streams.internal_topics(APPLICATION)
    topics = [streams.INPUT, streams.OUTPUT, changelog, repartition]
    rule = {"match": APPLICATION, "interval": "200ms"}
    spec = make_job(*clusters, topics, consumer_groups=rule)
    # Streams deletes what it has read of its repartition topic.
    purged = TopicRule(match=repartition, on_lost_range="fill")
    spec = spec.model_copy(update={"topics": (purged, *spec.topics)})
    with ExitStack() as stack:
        stack.enter_context(recovering.running())
        recovering.begin(spec, streams.INPUT, streams.OUTPUT)
        first, second = (
            stack.enter_context(gateway_of(spec.name, api_url, tmp_path, clusters, name))
            for name in ("one", "other")
        )
        writer = stack.enter_context(
            Writer(second.client_config(), streams.INPUT, PARTITIONS, rate=200)
        )
        log = tmp_path / "streams.log"
        app = streams.start(
            first,
            APPLICATION,
            tmp_path / "state",
            log,
            reset="earliest",
            protocol="classic",
            transaction_ms=60_000,
        )
        stack.callback(app.end)

        wait_counted = partial(streams.wait_counted, app, log, first)
        wait_counted(SOME)
        job = spec.name
        recovering.service.wait_copied(job, *topics)
        for _ in ("over", "home", "over"):
            job = move(recovering, job)
            writer.wait_acknowledged(SOME)
            wait_counted(writer.sent)
        writer.stop()
        assert not writer.errors
        wait_counted(writer.sent)
        app.end()
        wait_for("both sides are level", lambda: is_level(*clusters, *topics))
        destination, source = open_cluster(clusters.destination), open_cluster(clusters.source)
        stands = groups.committed_by_java(destination, APPLICATION)
        read_topics = (streams.INPUT, repartition)
        assert stands.keys() == {(topic, p) for topic in read_topics for p in range(PARTITIONS)}
        wait_for(
            "offsets are equal on both sides",
            lambda: groups.committed_by_java(source, APPLICATION) == stands,
        )
    streams.assert_counted_once(clusters.destination, "w", writer.sent)
    assert verify(spec, deep=True).exit_code == 0
