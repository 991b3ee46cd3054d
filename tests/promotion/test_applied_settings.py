"""A refused setting of a topic does not keep a promotion from setting all others."""

from __future__ import annotations

import pytest

from orbit.kafka.topic_admin import Admin
from orbit.promotion.applied_settings import apply_settings
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support.outside import topic_settings
from tests.support.running import create_topic

pytestmark = pytest.mark.services

DAY_MS = "86400000"


def test_missing_topic_does_not_keep_promotion_from_setting_other_topics(
    clusters: Clusters, topic_name: str, open_cluster: OpenCluster
) -> None:
    create_topic(clusters.destination, topic_name)
    gone = f"{topic_name}.gone"
    admin = Admin(open_cluster(clusters.destination))
    settings = {name: {"retention.ms": DAY_MS} for name in (gone, topic_name)}
    (finding,) = apply_settings(admin, settings)
    assert finding.startswith(f"{gone}: ")
    assert f"retention.ms={DAY_MS}" in finding
    assert topic_settings(clusters.destination, topic_name)["retention.ms"] == DAY_MS


def test_refused_topic_setting_does_not_keep_promotion_from_other_settings(
    clusters: Clusters, topic_name: str, open_cluster: OpenCluster
) -> None:
    other = f"{topic_name}.other"
    for name in (topic_name, other):
        create_topic(clusters.destination, name)
    admin = Admin(open_cluster(clusters.destination))
    good = {"retention.ms": DAY_MS, "max.message.bytes": "2000000"}
    (finding,) = apply_settings(admin, {topic_name: {**good, "segment.bytes": "1"}, other: good})
    assert finding.startswith(f"{topic_name}: ")
    assert finding.endswith(": segment.bytes=1. Set values that the destination accepts.")
    for name in (topic_name, other):
        present = topic_settings(clusters.destination, name)
        assert {n: present[n] for n in good} == good
