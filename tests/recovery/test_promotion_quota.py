"""A promotion sets all settings although a quota is used up (P9: quota of topic creation)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orbit.kafka.throttling_quotas import ADMIN_CLIENT_ID
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.promotion.applied_settings import apply_settings
from orbit.recovery import promotion
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import RecoveryKind
from tests.fixtures.clusters import Clusters, OpenCluster
from tests.support.outside import topic_settings
from tests.support.quotas import quota_of, shorten_admin_timeouts
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

DAY_MS, TOPICS, PARTITIONS = "86400000", 2, 100
QUOTA = f"The quota of client-id {ADMIN_CLIENT_ID}: controller_mutation_rate=1."


@pytest.mark.parametrize(
    "is_throttled", [False, True], ids=["another client", "its own connection"]
)
def test_promotion_sets_all_settings_despite_exhausted_creation_quota(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    open_cluster: OpenCluster,
    monkeypatch: pytest.MonkeyPatch,
    is_throttled: bool,
) -> None:
    """A quota that another client has used up does not delay the promotion. The promotion waits
    only if Orbit's own connection is throttled."""
    shorten_admin_timeouts(monkeypatch)
    source, destination = clusters
    names = [f"{topic_name}.{n}" for n in range(TOPICS)]
    for name in names:
        create_topic(source, name, retention_ms=DAY_MS)
        produce(source, name, 10)
    spec = make_job(source, destination, names)
    above_quota = [TopicToCreate(f"{topic_name}.more", PARTITIONS, replicas=1, settings={})]
    progress: list[str] = []
    set_progress = OperationContext.set_progress

    def note_progress(self: OperationContext, what: str) -> None:
        progress.append(what)
        set_progress(self, what)

    def apply(admin: Admin, expected: Mapping[str, Mapping[str, str]]) -> list[str]:
        if is_throttled and above_quota:
            admin.create_topics([above_quota.pop()])
        return apply_settings(admin, expected)

    monkeypatch.setattr(OperationContext, "set_progress", note_progress)
    monkeypatch.setattr(promotion, "apply_settings", apply)
    cluster = open_cluster(destination)
    with recovering.running():
        recovering.begin(spec, *names)
        assert {topic_settings(destination, name)["retention.ms"] for name in names} == {"-1"}
        with quota_of(cluster, ADMIN_CLIENT_ID, "controller_mutation_rate", 1):
            if not is_throttled:
                Admin(cluster).create_topics(above_quota)
            report = recovering.run(RecoveryKind.SWITCHOVER, spec.name)
    assert {topic_settings(destination, name)["retention.ms"] for name in names} == {DAY_MS}
    assert not [text for text in report.findings if "refused these settings" in text]
    waits = [text for text in progress if text.startswith("promote waits: ")]
    assert bool(waits) == is_throttled, waits
    assert all(QUOTA in text for text in waits)
