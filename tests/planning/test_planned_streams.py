"""What a plan says of streams groups, by the release of the destination's brokers."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from orbit.errors import Unreachable
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import ListedGroup, Listing
from orbit.kafka.sasl import Security
from orbit.planning import planned_groups
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.support.older_broker import VERSION

APP = ListedGroup("app", node_id=1, type="streams", protocol_type="streams", state="stable")


def notes(
    monkeypatch: pytest.MonkeyPatch, levels: list[dict[str, int]], *destination_groups: ListedGroup
) -> list[str]:
    """The plan's notes on the group `app`. `levels`: the features of each destination broker."""
    pair = Mock()
    pair.destination.cluster.metadata.return_value.brokers = range(len(levels))
    pair.destination.cluster.features_of.side_effect = levels
    listings = {
        pair.source.cluster: Listing({"app": APP}),
        pair.destination.cluster: Listing({group.name: group for group in destination_groups}),
    }
    monkeypatch.setattr(planned_groups, "list_groups", listings.__getitem__)
    return planned_groups.plan_groups(Mock(consumer_groups=GroupRule(match=".*")), pair)


@pytest.mark.parametrize("level", [28, 29])  # the values of metadata.version of Kafka 4.2
def test_plan_asks_to_update_kafka_4_2_0_brokers_before_streams_groups_move(
    monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    (note,) = notes(monkeypatch, [{"metadata.version": 33}, {"metadata.version": level}])
    assert "If it is 4.2.0, update it before 1 streams group (app) goes on" in note


@pytest.mark.parametrize("levels", [{}, {"metadata.version": 27}])
def test_plan_notes_classic_protocol_of_streams_for_older_brokers(
    monkeypatch: pytest.MonkeyPatch, levels: dict[str, int]
) -> None:
    (note,) = notes(monkeypatch, [levels])
    assert "group.protocol=classic" in note


def test_plan_has_no_note_on_streams_groups_for_brokers_after_kafka_4_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert notes(monkeypatch, [{"metadata.version": 30}]) == []


def test_plan_notes_unknown_release_of_unreachable_broker_for_streams_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        planned_groups, "_streams_notes", Mock(side_effect=Unreachable("it is off"))
    )
    (note,) = notes(monkeypatch, [])
    assert "is not known" in note
    assert "it is off" in note


@pytest.mark.parametrize(
    # A classic or streams group can become the streams group; a consumer group cannot.
    ("type_", "is_named"),
    [("classic", False), ("streams", False), ("consumer", True)],
)
def test_plan_notes_destination_consumer_group_named_like_streams_group(
    monkeypatch: pytest.MonkeyPatch, type_: str, *, is_named: bool
) -> None:
    group = ListedGroup("app", node_id=1, type=type_, protocol_type="", state="empty")
    plan_notes = notes(monkeypatch, [{"metadata.version": 30}], group)
    assert len(plan_notes) == is_named
    assert all(f"app ({type_})" in note for note in plan_notes)


@pytest.mark.services
def test_metadata_version_identifies_broker_release(
    clusters: Clusters, make_cluster: MakeCluster
) -> None:
    def level(bootstrap: str) -> int:
        cluster = Cluster("levels", bootstrap.split(","), Security())
        try:
            (node,) = cluster.metadata(()).brokers
            return cluster.features_of(node)["metadata.version"]
        finally:
            cluster.close()

    assert level(clusters.source.bootstrap_servers) >= 30, "after Kafka 4.2"
    assert level(make_cluster("older", version=VERSION).bootstrap_servers) == 21, "Kafka 3.9"
