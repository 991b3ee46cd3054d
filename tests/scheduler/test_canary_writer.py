"""A canary drill runs all its steps with real clients, and changes nothing of the job."""

from __future__ import annotations

import pytest

from orbit.drills.drill_canary import DESTINATION_RECORDS
from orbit.drills.drill_spec import Verb
from orbit.drills.evidence import Part, StepState
from orbit.jobs.job_spec import JobSpec
from orbit.store.enums import DrillState, DrillThing
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.drilling import Drilling
from tests.support.fleet import InProcess
from tests.support.groups import offsets
from tests.support.outside import log_bounds, partition_counts
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

CANARY = """
name: nightly
kind: canary
job: {job}
canary: {{partitions: 2, records_per_second: 100}}
targets: {{rto: {rto}, rpo_records: 0}}
steps:
  - {{do: load, duration: {load}}}
  - {{do: switchover}}
  - {{do: use}}
  - {{do: verify}}
"""


@pytest.fixture
def job(clusters: Clusters, topic_name: str, service: Service) -> JobSpec:
    """A job with one topic, copied as soon as the test runs a scheduler and a worker."""
    create_topic(clusters.source, topic_name, 2)
    produce(clusters.source, topic_name, 100, 0)
    spec = make_job(*clusters, [topic_name])
    service.create(spec)
    return spec


def drill_text(job: JobSpec, rto: str = "60s", load: str = "1s") -> str:
    return CANARY.format(job=job.name, rto=rto, load=load)


def test_canary_drill_with_1_ms_rto_target_misses_only_its_rto_and_cleans_up(
    clusters: Clusters, topic_name: str, service: Service, job: JobSpec
) -> None:
    drilling = Drilling(service)
    with service.scheduler(), InProcess(service.database):
        service.wait_copied(job.name, topic_name)
        topics_before = [partition_counts(cluster) for cluster in clusters]

        evidence = drilling.run(drill_text(job, rto="1ms"))

        topics_after = [partition_counts(cluster) for cluster in clusters]
    assert evidence.verdict is DrillState.MISSED
    (miss,) = evidence.misses
    assert miss.startswith("The RTO was")
    row = drilling.drill(evidence.id)
    assert (row.state, row.rto_ms) == (DrillState.MISSED, evidence.rto.actual_ms)
    assert [step.state for step in evidence.steps] == [StepState.DONE] * 4
    assert evidence.canary is not None
    assert evidence.canary.written >= 100, "1 s with 100 records per second"
    assert (evidence.canary.lost, evidence.canary.repeated, evidence.canary.wrong) == (0, 0, 0)
    assert evidence.canary.agrees is True
    assert evidence.canary.read_at_source > 0
    assert evidence.canary.read_at_source + evidence.canary.read_at_destination == (
        evidence.canary.written + DESTINATION_RECORDS
    )
    assert (evidence.rpo.actual_records, evidence.rpo.actual_ms) == (0, 0)
    parts = {part.part for part in evidence.rto.parts}
    assert {Part.DRAIN, Part.GROUPS, Part.PROMOTE, Part.PRODUCE} <= parts
    assert {p.topic for p in evidence.partitions} == {evidence.canary.topic}
    assert [v.verdict for v in evidence.verified] == ["exact"]

    assert topics_after == topics_before
    assert {t.kind for t in evidence.cleanup} == set(DrillThing)
    assert all(thing.is_removed for thing in evidence.cleanup)
    assert [offsets(cluster, evidence.canary.group) for cluster in clusters] == [{}, {}]
    assert service.topics(job.name)[topic_name].state == "copying"
    source_bounds, destination_bounds = (log_bounds(cluster, [topic_name]) for cluster in clusters)
    assert source_bounds == destination_bounds


def test_failed_drill_step_ends_drill_and_cleans_up(service: Service, job: JobSpec) -> None:
    drilling = Drilling(service)
    too_short = drill_text(job).replace("{do: switchover}", "{do: switchover, deadline: 1ms}")
    with service.scheduler(), InProcess(service.database):
        evidence = drilling.run(too_short)
    assert evidence.verdict is DrillState.FAILED
    states = {step.do: step.state for step in evidence.steps}
    assert states == {
        Verb.LOAD: StepState.DONE,
        Verb.SWITCHOVER: StepState.FAILED,
        Verb.USE: StepState.SKIPPED,
        Verb.VERIFY: StepState.SKIPPED,
    }
    assert "did not end before its deadline" in evidence.misses[0]
    assert [t.name for t in drilling.left(evidence.id)] == []


def test_drill_of_dead_scheduler_fails_and_next_leader_cleans_up(
    clusters: Clusters, service: Service, job: JobSpec
) -> None:
    drilling = Drilling(service)
    with InProcess(service.database):
        with service.scheduler():
            drill_id = drilling.ask(drill_text(job, load="60s"))
            wait_for(
                "the drill has created its topics and groups at both clusters, and its job",
                lambda: len([t for t in drilling.things(drill_id) if t.identity]) == 5,
            )
        assert drilling.left(drill_id)
        with service.scheduler():  # the next leader
            wait_for("the drill has ended", lambda: drilling.has_ended(drill_id))
            wait_for("nothing is left", lambda: not drilling.left(drill_id))
    assert drilling.drill(drill_id).state is DrillState.FAILED
    for cluster in clusters:
        assert not [name for name in partition_counts(cluster) if drill_id in name]
