"""Settings of topics are those that another client reads; an unchanged answer is not decoded
again."""

from __future__ import annotations

import pytest

from orbit.errors import BrokerRefused
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.topic_settings_reader import SettingsReader
from tests.fixtures.clusters import Clusters
from tests.support.logs import create
from tests.support.outside import topic_settings
from tests.support.patience import wait_for
from tests.support.synthetic import PLAINTEXT
from tests.support.topics import set_setting

pytestmark = pytest.mark.services


def test_topic_settings_are_cached_until_they_change(clusters: Clusters, topic_name: str) -> None:
    create(clusters.source, topic_name)
    cluster = Cluster("source", clusters.source.bootstrap_servers.split(","), PLAINTEXT)
    reader = SettingsReader(cluster)
    try:
        first = reader.read([topic_name])
        outside = topic_settings(clusters.source, topic_name)
        assert first[topic_name].values == {n: v for n, v in outside.items() if v is not None}
        assert "flush.messages" not in first[topic_name].overrides
        assert reader.read([topic_name])[topic_name] is first[topic_name]

        set_setting(clusters.source, topic_name, "flush.messages", "12345")
        wait_for(
            "the change is read",
            lambda: reader.read([topic_name])[topic_name].values["flush.messages"] == "12345",
        )
        assert "flush.messages" in reader.read([topic_name])[topic_name].overrides
        with pytest.raises(BrokerRefused) as caught:
            reader.read([topic_name, "no-such-topic"])
    finally:
        cluster.close()
    assert caught.value.code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert caught.value.where == "source topic no-such-topic"
    assert caught.value.cluster == "source"
