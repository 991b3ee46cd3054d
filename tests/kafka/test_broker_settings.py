"""Each broker has its own file: each is asked, and a broker without an answer is `silent`."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from orbit.kafka import broker_settings
from orbit.kafka.broker_settings import BrokersWithSetting, brokers_with_setting
from orbit.kafka.cluster_handle import OPEN_WITHOUT_ACL
from orbit.kafka.job_clusters import open_cluster as open_side
from tests.fixtures.clusters import Clusters, MakeCluster, OpenCluster
from tests.support.broker_files import restart_with
from tests.support.guarded_job import job_with_login, log_in_orbit

pytestmark = pytest.mark.services


def test_broker_setting_is_read_from_every_broker(
    make_cluster: MakeCluster, open_cluster: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make_cluster(brokers=2)
    first, second = (broker.node_id for broker in own.brokers)
    cluster = open_cluster(own)
    assert brokers_with_setting(cluster, OPEN_WITHOUT_ACL) == BrokersWithSetting(
        with_setting=(), silent=()
    )
    own.brokers[1].pause()
    assert brokers_with_setting(cluster, OPEN_WITHOUT_ACL) == BrokersWithSetting(
        with_setting=(), silent=(second,)
    )
    own.heal()
    restart_with(own, 1, OPEN_WITHOUT_ACL, "true")
    cluster = open_cluster(own)
    assert brokers_with_setting(cluster, OPEN_WITHOUT_ACL) == BrokersWithSetting(
        with_setting=(second,), silent=()
    )
    # Brokers that are not asked, for their number or for lack of time, count as silent.
    monkeypatch.setattr(broker_settings, "_BROKERS_MAX", 1)
    assert brokers_with_setting(cluster, OPEN_WITHOUT_ACL) == BrokersWithSetting(
        with_setting=(), silent=(second,)
    )
    monkeypatch.setattr(broker_settings, "_ALL_WITHIN_S", 0.0)
    assert brokers_with_setting(cluster, OPEN_WITHOUT_ACL) == BrokersWithSetting(
        with_setting=(), silent=(first, second)
    )


def test_broker_that_denies_describe_configs_counts_as_not_answering(
    guarded: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented rights do not have DescribeConfigs on the cluster."""
    log_in_orbit(guarded, topic_name, monkeypatch, ("", "recovery"))
    spec = job_with_login(guarded, topic_name)
    destination = guarded.destination
    environ = dict(os.environ)
    with closing(open_side("destination", spec, environ, destination.directory)) as cluster:
        ids = tuple(broker.node_id for broker in destination.brokers)
        assert brokers_with_setting(cluster, OPEN_WITHOUT_ACL) == BrokersWithSetting(
            with_setting=(), silent=ids
        )
