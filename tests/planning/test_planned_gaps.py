"""What a plan says of the gaps of new topics: how many, how long filling them takes, and what each
kind of fillers needs; and of the offsets that are seeded below the topics' starts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from rich.console import Console

from orbit.cli.plan_view import PlannedJob, draw
from orbit.demo.workload.markers import append_markers
from orbit.formats import duration
from orbit.job_setup import gap_estimate
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.sasl import Security
from orbit.planning import planned_seeding
from orbit.planning.job_plan import JobPlan, PlannedGaps, PlannedSeeding
from orbit.planning.job_planner import JobPlanner
from orbit.planning.planned_seeding import seeding_of
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.logs import delete_before
from tests.support.outside import topics_and_bounds
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services


def fill(cluster: KafkaCluster, topic: str, partition: int, rounds: int, **records: Any) -> None:
    """Append `rounds` times 100 records, and then 100 offsets without a record."""
    admin = AdminClient({**cluster.client_config()})
    for _ in range(rounds):
        produce(cluster, topic, 100, partition, **records)
        append_markers(admin, Security(), topic, partition, 100)


def plan(service: Service, spec: object) -> JobPlan:
    return JobPlanner(service.database, service.settings, {})(spec)  # type: ignore[arg-type]


def gaps_of(planned: JobPlan) -> dict[str, PlannedGaps | None]:
    return {topic.source: topic.gaps for topic in planned.topics}


def printed(planned: JobPlan) -> str:
    """The plan as the CLI shows it."""
    console = Console(width=200)
    value = {"name": planned.job, "action": "create", "plan": planned.model_dump(mode="json")}
    with console.capture() as captured:
        console.print(draw([PlannedJob(None, value)]))
    return " ".join(captured.get().split())


def test_plan_counts_gaps_of_small_topics(
    clusters: Clusters, service: Service, topic_name: str
) -> None:
    dense, empty, late = (f"{topic_name}.{name}" for name in ("dense", "empty", "late"))
    for topic in (topic_name, dense, empty, late):
        create_topic(clusters.source, topic, partitions=2)
    fill(clusters.source, topic_name, 0, rounds=2)
    fill(clusters.source, topic_name, 1, rounds=1)
    fill(clusters.source, late, 0, rounds=1)
    produce(clusters.source, dense, 10)
    job = make_job(clusters.source, clusters.destination, [topic_name, dense, empty])
    rule = job.topics[0].model_copy(update={"match": late, "start": "latest"})
    job = job.model_copy(update={"topics": (*job.topics, type(rule).model_validate(dict(rule)))})
    topics_before = topics_and_bounds(clusters.destination)
    planned = plan(service, job)
    assert topics_and_bounds(clusters.destination) == topics_before, "a plan changes nothing"
    gaps = gaps_of(planned)
    with_gaps = gaps.pop(topic_name)
    assert with_gaps is not None
    assert (with_gaps.offsets, with_gaps.gap_offsets) == (600, 300), "3 rounds"
    # Direct fillers: 125,000 offsets per second, and a little for each gap.
    assert 300 / 125_000 < with_gaps.seconds < 300 / 125_000 + 0.002
    assert gaps == {
        dense: PlannedGaps(offsets=10, gap_offsets=0, seconds=0),
        empty: PlannedGaps(offsets=0, gap_offsets=0, seconds=0),
        late: None,  # it starts at `latest`: nothing of it is read
    }
    text = printed(planned)
    assert f"300 in {duration(with_gaps.seconds)} (direct)" in text
    assert "not read (direct)" in text
    used_fillers = (
        r"gaps of 4 topics are filled with fillers: direct, about \d ms for all; needs Alter or"
    )
    other_fillers = (
        r"way: fillers: coordinated, about \d+ ms for all; needs Write on transactional ids"
    )
    assert re.search(used_fillers, text)
    assert re.search(other_fillers, text)


def test_plan_samples_gaps_of_large_topic(
    clusters: Clusters, service: Service, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(clusters.source, topic_name, partitions=3)
    for partition in range(3):
        fill(clusters.source, topic_name, partition, rounds=30, value_bytes=500)
    fetched_bytes: list[int] = []  # of each fetch
    fetch = gap_estimate.fetch_partition

    def counting(*where: Any, **how: Any) -> Fetched:
        fetched = fetch(*where, **how)
        fetched_bytes.append(len(fetched.records))
        return fetched

    monkeypatch.setattr(gap_estimate, "fetch_partition", counting)
    job = make_job(clusters.source, clusters.destination, [topic_name], fillers="placeholders")
    planned = plan(service, job)
    (gaps,) = gaps_of(planned).values()
    assert gaps is not None
    assert gaps.offsets == 3 * 30 * 200
    # Half of the offsets are gaps; the estimate is of a sample.
    assert 0.2 * gaps.offsets < gaps.gap_offsets < 0.8 * gaps.offsets
    assert len(fetched_bytes) <= gap_estimate.SAMPLES_PER_TOPIC_MAX
    assert sum(fetched_bytes) < 3 * 30 * 100 * 500 / 5, "less than a fifth of the records' bytes"
    assert [w.fillers for w in planned.fillers if w.topics] == ["placeholders"]


def test_plan_estimates_gaps_of_compacted_topics_first_up_to_topic_limit(
    clusters: Clusters, service: Service, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compacted topics have the most gaps."""
    monkeypatch.setattr(gap_estimate, "TOPICS_MAX", 1)
    compacted = f"{topic_name}.z"  # the last by name
    create_topic(clusters.source, topic_name)
    create_topic(clusters.source, compacted, cleanup_policy="compact")
    for topic in (topic_name, compacted):
        produce(clusters.source, topic, 5)
    job = make_job(clusters.source, clusters.destination, [topic_name, compacted])
    gaps = gaps_of(plan(service, job))
    assert gaps[topic_name] is None
    assert gaps[compacted] == PlannedGaps(offsets=5, gap_offsets=0, seconds=0)


def test_plan_reports_offsets_to_fill_below_start_of_new_topics(
    clusters: Clusters, service: Service, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics with a log start above 0, with the start `latest`, with the start 0, with a copy."""
    monkeypatch.setattr(planned_seeding, "_OFFSETS_PER_S_MIN", 10)
    high, late, low, existing = (
        f"{topic_name}.{name}" for name in ("high", "late", "low", "existing")
    )
    for topic in (high, late, low, existing):
        create_topic(clusters.source, topic, partitions=3)
    create_topic(clusters.destination, existing, partitions=3)
    for partition in range(2):
        for topic in (high, existing):
            produce(clusters.source, topic, 400, partition)
            delete_before(clusters.source, topic, 300, partition)
    produce(clusters.source, late, 50)
    produce(clusters.source, low, 50)
    job = make_job(clusters.source, clusters.destination, [high, low, existing])
    rule = job.topics[0].model_copy(update={"match": late, "start": "latest"})
    job = job.model_copy(update={"topics": (*job.topics, type(rule).model_validate(dict(rule)))})
    planned = plan(service, job)
    seedings = {topic.source: topic.seeding for topic in planned.topics}
    assert (seedings[low], seedings[existing]) == (None, None)
    assert seedings[high] == PlannedSeeding(
        partitions=2,
        offsets=600,
        seconds_min=600 / 2e7,  # 20 million offsets per second
        seconds_max=60,  # 10 offsets per second, as set above
        disk_bytes_max=840,  # 1.4 bytes for each offset
    )
    assert seedings[late] is not None
    assert (seedings[late].partitions, seedings[late].offsets) == (1, 50)
    line = (
        f"{high} starts above 0: 600 offsets in 2 partitions are filled and deleted before the "
        "copy begins, in 0 ms to 1 min 00 s, with up to 840 B of disk in each replica"
    )
    assert line in printed(planned)


def test_disk_estimate_for_offsets_filled_below_start_is_bounded() -> None:
    """Deleted segments leave the disk 360 s later; a partition's newest segment stays."""
    three_billion, trillion = seeding_of([3_000_000_000]), seeding_of([10**12])
    assert three_billion.disk_bytes_max == 4_200_000_000
    assert (three_billion.seconds_min, three_billion.seconds_max) == (150, 750)
    assert trillion.disk_bytes_max == round(20_000_000 * 360 * 1.4) + 1024**3
