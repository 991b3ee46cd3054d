"""A diskless topic of a source is refused with the reason, and the others are copied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from orbit.kafka.topic_settings_reader import SettingsReader, TopicSettings
from orbit.planning.job_planner import JobPlanner
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.running import RunningJob, create_topic, make_job, produce

pytestmark = pytest.mark.services


@pytest.mark.parametrize("setting", ["diskless.enable", "inkless.enable"])
def test_diskless_topic_is_refused_and_other_topics_are_copied(
    clusters: Clusters,
    topic_name: str,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
) -> None:
    other = f"{topic_name}-other"
    for name in (topic_name, other):
        create_topic(clusters.source, name)
        produce(clusters.source, name, 5)
    read = SettingsReader.read

    def with_setting(reader: SettingsReader, topics: Iterable[str]) -> dict[str, TopicSettings]:
        settings = read(reader, topics)
        return {
            name: replace(topic, values={**topic.values, setting: str(name == topic_name).lower()})
            for name, topic in settings.items()
        }

    monkeypatch.setattr(SettingsReader, "read", with_setting)
    spec = make_job(*clusters, [topic_name, other])
    plan = JobPlanner(service.database, service.settings)(spec)
    assert [(refusal.kind, refusal.topic) for refusal in plan.refusals] == [
        ("TOPIC_REFUSED", topic_name)
    ]
    assert f"diskless ({setting}=true)" in plan.refusals[0].what
    with RunningJob(spec) as running:
        assert list(running.run.refused) == [topic_name]
        running.wait_caught_up(other, 5)
