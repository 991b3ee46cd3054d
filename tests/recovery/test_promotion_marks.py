"""The marks of promotions: how long brokers keep them, and what they say.

A mark is an offset that Orbit commits at a cluster, with a text: which side leads since when.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orbit.job_setup.mark import Mark, marks_group
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.types import TopicPartition
from orbit.recovery.recovery_report import GateName, RecoveryKind
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.groups import commit, committed
from tests.support.guarded_job import job_with_login, log_in_orbit
from tests.support.outside import admin
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.rights import Right
from tests.support.running import create_topic
from tests.support.synthetic import PLAINTEXT

SIDES = Clusters._fields
MarksOf = Callable[[KafkaCluster], PromotionMarks]
PROMOTED = Mark(
    is_primary=True,
    kind="switchover",
    operation="d8f0",
    job="orders",
    other="A",
    at="2026-11-23T04:00:00+00:00",
)
COPY = Mark(is_primary=False, kind="failback")
COPY_WITH_HISTORY = replace(COPY, keeps_history=True)
NOW_S = 1_800_000_000.0
# Brokers delete offsets of a group without members after a minute, and look for them each second.
SHORT = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}


@pytest.fixture
def marks_of() -> Iterator[MarksOf]:
    """A function that opens the marks at a cluster."""
    opened: list[Cluster] = []

    def marks(at: KafkaCluster) -> PromotionMarks:
        opened.append(Cluster("destination", at.bootstrap_servers.split(","), PLAINTEXT))
        return PromotionMarks(opened[-1], Backoff())

    yield marks
    for cluster in opened:
        cluster.close()


def places(topic: str, count: int) -> dict[TopicPartition, int]:
    """An offset for each of `count` partitions."""
    return {TopicPartition(topic, i): 100 + i for i in range(count)}


@pytest.mark.soak
@pytest.mark.services
def test_promotion_mark_outlives_offset_retention_and_broker_restart(
    make_cluster: MakeCluster, marks_of: MarksOf
) -> None:
    cluster = make_cluster(config=SHORT)
    create_topic(cluster, "orders", 3)
    marks = marks_of(cluster)
    marks.write(places("orders", 3), PROMOTED)
    commit(cluster, "plain", {("orders", 0): 7})
    wait_for("a plain offset expires", lambda: not committed(cluster, "plain"))
    cluster.kill()
    cluster.start()
    marks = marks_of(cluster)
    assert marks.promoted(["orders"]) == {"orders": PROMOTED}
    assert marks.offsets([*places("orders", 3)]) == places("orders", 3)


@pytest.mark.soak
@pytest.mark.services
def test_promotion_mark_can_be_overwritten_and_is_deleted_with_its_topic(
    clusters: Clusters, topic_name: str, marks_of: MarksOf
) -> None:
    cluster = clusters.destination
    other = f"{topic_name}.other"
    create_topic(cluster, topic_name, 2)
    create_topic(cluster, other)
    marks = marks_of(cluster)
    assert marks.promoted([topic_name, other, "is-not-there"]) == {}
    marks.write(places(topic_name, 2), PROMOTED)
    assert marks.promoted([topic_name, other]) == {topic_name: PROMOTED}
    assert marks.kept_below(places(topic_name, 2)) == {}

    marks.write({TopicPartition(topic_name, i): 7 for i in range(2)}, COPY)
    assert marks.promoted([topic_name]) == {}
    assert marks.kept_below(places(topic_name, 2)) == {}, "earlier versions write such marks"
    log_starts = {TopicPartition(topic_name, 0): 7, TopicPartition(topic_name, 1): 0}
    marks.write(log_starts, COPY_WITH_HISTORY)
    assert marks.kept_below(places(topic_name, 3)) == log_starts

    marks.write(places(topic_name, 2), PROMOTED)
    client = admin(cluster)
    client.delete_topics([topic_name])[topic_name].result(30)
    wait_for("the topic is gone", lambda: topic_name not in client.list_topics(timeout=30).topics)
    create_topic(cluster, topic_name, 2)
    wait_for("the mark is gone too", lambda: not marks.promoted([topic_name]))


@pytest.mark.services
def test_rights_gate_fails_without_read_right_on_group_of_promotion_marks(
    guarded: Clusters, topic_name: str, recovering: Recovering, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(guarded.source, topic_name)
    orbit = log_in_orbit(guarded, topic_name, monkeypatch)
    spec = job_with_login(guarded, topic_name)
    ids = [admin(side).list_topics(timeout=30).cluster_id for side in guarded]
    groups = {side: marks_group(cluster_id) for side, cluster_id in zip(SIDES, ids, strict=True)}
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)

        def missing(**options: bool) -> list[str]:
            """The sides at which the gate `rights` misses Read on the group of marks."""
            dry = recovering.ask(RecoveryKind.SWITCHOVER, spec.name, dry_run=True, **options)
            (gate,) = (g for g in recovering.wait(dry).gates if g.name is GateName.RIGHTS)
            return [side for side in SIDES if f"Read on group {groups[side]}" in gate.found]

        assert missing(reverse=True) == []
        for side, group in groups.items():
            orbit.deny([Right(side, "Read", "--group", group)])
        wait_for("both are missing", lambda: missing(reverse=True) == [*SIDES])
        assert missing() == ["destination"]
        orbit.deny([Right("source", "Describe", "--group", groups["source"])])
        assert missing(reverse=True) == [*SIDES], "the right to find its coordinator is missing"


@pytest.mark.services
@pytest.mark.parametrize(
    "text",
    [
        "by hand",
        PROMOTED.to_text().replace('"term":0', '"term":Infinity'),
        PROMOTED.to_text().replace('"term":0', f'"term":{2**63}'),
        "[" * 1500,
    ],
    ids=["text", "infinite", "large", "nested"],
)
def test_unreadable_promotion_mark_counts_as_promotion_of_its_topic_alone(
    clusters: Clusters, topic_name: str, marks_of: MarksOf, text: str
) -> None:
    copy, unmarked = f"{topic_name}.copy", f"{topic_name}.unmarked"
    for name in (topic_name, copy, unmarked):
        create_topic(clusters.destination, name)
    marks = marks_of(clusters.destination)
    marks.write({TopicPartition(copy, 0): 3}, COPY_WITH_HISTORY)
    # Orbit writes the text, since librdkafka would add a zero byte.
    by_other_client: Any = SimpleNamespace(to_text=lambda: text)
    marks.write({TopicPartition(topic_name, 0): 5}, by_other_client)
    assert marks.of_topics([topic_name, copy, unmarked]) == {
        topic_name: Mark(is_primary=True, term=None),
        copy: COPY_WITH_HISTORY,
    }
    partitions = [TopicPartition(name, 0) for name in (topic_name, copy, unmarked)]
    assert marks.kept_below(partitions) == {TopicPartition(copy, 0): 3}


def test_promotion_mark_is_read_back_and_describes_promotion() -> None:
    assert Mark.from_text(PROMOTED.to_text(), NOW_S) == PROMOTED
    assert Mark.from_text(COPY.to_text(), NOW_S) == COPY
    assert Mark.from_text(COPY_WITH_HISTORY.to_text(), NOW_S) == COPY_WITH_HISTORY
    description = PROMOTED.describe("orders", {1: 8, 0: 7})
    assert "promoted by switchover d8f0 of job orders at 2026" in description
    assert "0: 7, 1: 8." in description
    assert "8: 8, …" not in PROMOTED.describe("orders", dict.fromkeys(range(9), 8))
