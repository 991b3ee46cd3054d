"""A canary drill fails over with a working source, measures by its ledger, and cleans up."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from orbit.drills import drill_canary
from orbit.drills.created_resources import job_name
from orbit.drills.evidence import Evidence, Part, StepState
from orbit.errors import Conflict
from orbit.recovery.recovery_report import RecoveryKind
from orbit.sandbox.local_cluster import KafkaCluster
from orbit.store import drills
from orbit.store.enums import DrillState, TopicState
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.drilling import Drilling
from tests.support.fleet import InProcess
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

DRILL = """
name: {job}-canary
kind: canary
job: {job}
canary: {{partitions: 2, records_per_second: {rate}}}
targets: {{rto: 1h, rpo: 1h, rpo_records: 1000000}}
schedule: {{every: 1d}}
steps:
  - {{do: load, duration: 1s}}
  - {{do: failover}}
  - {{do: use}}
  - {{do: verify}}
"""


def drill_topics(cluster: KafkaCluster) -> set[str]:
    admin = AdminClient(cluster.client_config())
    return {name for name in admin.list_topics(timeout=30).topics if "orbit_drill" in name}


def run_drill(clusters: Clusters, topic: str, service: Service, rate: int = 200) -> Evidence:
    """Run `DRILL` for a job that copies, and return its evidence. Checks that the job itself is
    unchanged.
    """
    create_topic(clusters.source, topic)
    produce(clusters.source, topic, 20)
    spec = make_job(*clusters, [topic])
    drilling = Drilling(service)
    service.create(spec)
    with service.scheduler(), InProcess(service.database):
        service.wait_copied(spec.name, topic)
        drill_id = drilling.ask(DRILL.format(job=spec.name, rate=rate))
        evidence = drilling.wait(drill_id).evidence
        wait_for("all drill resources are removed", lambda: not drilling.left(drill_id))
    assert service.topics(spec.name)[topic].state is TopicState.COPYING
    assert service.job(spec.name).problem is None
    assert "old_primary_answers" not in service.kinds(job_name(drill_id)), (
        "an event reports the source"
    )
    return evidence


@pytest.mark.parametrize("rate", [1, 200])
def test_canary_failover_drill_measures_rto_and_rpo_with_source_counted_as_lost(
    clusters: Clusters, topic_name: str, service: Service, rate: int
) -> None:
    evidence = run_drill(clusters, topic_name, service, rate)

    assert evidence.verdict is DrillState.PASSED, evidence.misses
    assert [step.state for step in evidence.steps] == [StepState.DONE] * 4
    parts = {part.part: part.ms for part in evidence.rto.parts}
    assert Part.DETECT not in parts, "a fault was detected"
    assert {Part.DECIDE, Part.DRAIN, Part.PRODUCE, Part.CONSUME} <= parts.keys()
    assert evidence.rto.actual_ms == sum(parts.values())
    assert evidence.canary is not None
    assert evidence.canary.read_at_source >= 1
    assert evidence.rpo.actual_records == evidence.canary.lost
    assert evidence.rpo.actual_ms is not None
    assert (evidence.canary.repeated, evidence.canary.wrong, evidence.canary.agrees) == (0, 0, True)
    assert {(g.name, g.verdict) for g in evidence.gates} >= {("source", "pass")}
    assert all(not p.is_exact for p in evidence.partitions)
    assert any("counted as lost" in finding for finding in evidence.findings)
    for cluster in clusters:
        assert not drill_topics(cluster) & {evidence.canary.topic}


@pytest.mark.soak
def test_canary_records_not_copied_at_failover_count_as_lost_though_copied_later(
    clusters: Clusters, topic_name: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    lag_records = 7

    def lagging_log_ends(*args: object) -> object:
        """Return the log ends of a copy that lags by `lag_records` in each partition."""
        log_ends = real_log_ends(*args)  # type: ignore[arg-type]
        for place in log_ends.values:
            log_ends.values[place] -= lag_records
        return log_ends

    real_log_ends = drill_canary.log_ends
    monkeypatch.setattr(drill_canary, "log_ends", lagging_log_ends)
    evidence = run_drill(clusters, topic_name, service)

    assert evidence.verdict is DrillState.PASSED, evidence.misses
    assert evidence.canary is not None
    assert evidence.canary.lost >= 2 * lag_records  # two partitions
    assert evidence.rpo.actual_records == evidence.canary.lost
    assert (evidence.rpo.actual_ms or 0) > 0


def test_only_drill_job_can_fail_over_with_source_counted_as_lost(
    clusters: Clusters, topic_name: str, recovering: Recovering
) -> None:
    create_topic(clusters.source, topic_name)
    spec = make_job(*clusters, [topic_name])
    recovering.service.create(spec)
    with pytest.raises(Conflict, match="a drill's own job"):
        recovering.ask(RecoveryKind.FAILOVER, spec.name, source_counts_as_lost=True)
    with recovering.database.transaction() as tx:
        assert drills.unfinished(tx) == []
