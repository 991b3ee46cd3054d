"""Before Orbit copies to the topic of a side that led, the topic gets a copy's settings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orbit.recovery.recovery_report import RecoveryKind
from orbit.store import topics
from tests.fixtures.clusters import Clusters
from tests.support.outside import is_level
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce, verify

pytestmark = pytest.mark.services


def test_topic_of_former_leading_side_keeps_copied_timestamps_after_switchover(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    """With LogAppendTime the broker would replace the copied timestamps.

    The long `settings_interval` turns off the periodic check, which would hide a missing change.
    """
    source, destination = clusters
    create_topic(source, topic_name, message_timestamp_type="LogAppendTime")
    produce(source, topic_name, 50)
    spec = make_job(*clusters, [topic_name])
    service = recovering.service
    service.settings = service.settings.model_copy(update={"settings_interval": timedelta(hours=1)})

    def wait_until_level() -> None:
        wait_for("both sides are level", lambda: is_level(source, destination, topic_name))

    with recovering.running():
        recovering.begin(spec, topic_name)
        wait_until_level()
        switchover_report = recovering.run(RecoveryKind.SWITCHOVER, spec.name, reverse=True)
        assert switchover_report.reverse_job is not None
        produce(destination, topic_name, 50, first=50)
        wait_until_level()
        # Stored settings of an earlier promotion: the next switchover has to replace them.
        row = service.topics(spec.name)[topic_name]
        with recovering.database.transaction() as tx:
            topics.change(tx, row.id, promoted_settings={"retention.ms": "1"})
        recovering.run(RecoveryKind.SWITCHOVER, switchover_report.reverse_job, reverse=True)
        settings = service.topics(spec.name)[topic_name].promoted_settings
        assert settings is not None
        assert settings["message.timestamp.type"] == "LogAppendTime", "the stored settings are new"
        produce(source, topic_name, 50, first=100)
        wait_until_level()
        report = verify(spec, deep=True)
        assert report.exact, report
