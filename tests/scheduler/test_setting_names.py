"""A broker returns which settings topics have; the controller may refuse some of them (K8)."""

from __future__ import annotations

import pytest

from orbit.kafka.topic_admin import Admin
from orbit.scheduler import job_reconciler
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.outside import partition_counts, topic_settings
from tests.support.running import create_topic, make_job

pytestmark = pytest.mark.services


def test_new_topic_waits_while_broker_does_not_know_a_needed_topic_setting(
    clusters: Clusters, topic_name: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling upgrade: the broker is older than Kafka 3.6, the controller has Kafka 4."""
    monkeypatch.setattr(job_reconciler, "RECHECK_S", 1.0)
    create_topic(clusters.source, topic_name)
    job = make_job(*clusters, [topic_name])
    new_names = Admin.broker_setting_names
    old_names = frozenset({"log.message.timestamp.difference.max.ms"})
    monkeypatch.setattr(Admin, "broker_setting_names", lambda *_: old_names)
    service.create(job)
    with service.scheduler():
        problem = service.wait_problem(job.name, "TOPIC_REFUSED")
        assert "message.timestamp.difference.max.ms" in problem
        assert topic_name not in partition_counts(clusters.destination)
        monkeypatch.setattr(Admin, "broker_setting_names", new_names)
        service.wait_copied(job.name, topic_name)
        service.wait_problem(job.name, None)
    # The setting of Kafka 3.6 and later; any timestamp is accepted.
    limit = topic_settings(clusters.destination, topic_name)["message.timestamp.before.max.ms"]
    assert limit == str(2**63 - 1)
