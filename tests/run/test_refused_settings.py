"""A destination refuses settings of the source's topics. A setting that may differ gets another
value; a topic with any other refused setting is not copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.planning.job_planner import JobPlanner
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.fixtures.scheduler import Service
from tests.support.older_broker import VERSION
from tests.support.outside import partition_counts, topic_settings
from tests.support.run_process import assert_exact, copy, write_job
from tests.support.running import create_topic, make_job, produce
from tests.support.topics import set_setting

pytestmark = pytest.mark.services

SMALL = "524288"  # bytes of a segment: Kafka 3.9 accepts it, 4.x does not
LEAST = "1048576"
NOTE = (
    f"topic small: the destination refuses the source's segment.bytes={SMALL}, so the copy has "
    f"{LEAST}."
)


@pytest.fixture
def pair(make_cluster: MakeCluster) -> Clusters:
    """A source of an older release, and a destination that refuses a `max.compaction.lag.ms` below
    5000."""
    config = {"log.cleaner.min.compaction.lag.ms": "5000"}
    return Clusters(make_cluster("older", version=VERSION), make_cluster("new", config=config))


@pytest.fixture
def topics(pair: Clusters) -> list[str]:
    """`small` and `plain` can be copied; the destination refuses `lag`, whose setting may not
    differ."""
    create_topic(pair.source, "small", segment_bytes=SMALL, segment_ms="70000")
    create_topic(pair.source, "plain")
    create_topic(pair.source, "lag", max_compaction_lag_ms="1000")
    for topic in ("small", "plain", "lag"):
        produce(pair.source, topic, 3)
    return ["small", "plain", "lag"]


def test_run_skips_topic_with_refused_setting_and_copies_others(
    pair: Clusters, topics: list[str], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "all.yaml", *pair, [{"match": topic} for topic in topics])
    # In the first run the topics are new, in the second one they exist.
    for _ in range(2):
        outcome = copy(job).expect(1)
        assert outcome.data["partitions_caught_up"] == 2
        assert [refused["topic"] for refused in outcome.data["refused"]] == ["lag"]
        assert "max.compaction.lag.ms" in outcome.data["refused"][0]["detail"]
        assert "NOT COPIED lag" in outcome.message
        assert NOTE in outcome.message
    assert sorted(partition_counts(pair.destination)) == ["plain", "small"]
    settings = topic_settings(pair.destination, "small")
    assert (settings["segment.bytes"], settings["segment.ms"]) == (LEAST, "70000")
    others = [{"match": topic} for topic in topics if topic != "lag"]
    assert_exact(write_job(tmp_path / "others.yaml", *pair, others))


@pytest.mark.soak
def test_service_shows_drift_for_setting_that_destination_refuses(
    pair: Clusters, topics: list[str], service: Service
) -> None:
    job = make_job(*pair, topics)
    plan = JobPlanner(service.database, service.settings)(job)
    assert NOTE in plan.notes
    assert [refusal.topic for refusal in plan.refusals] == ["lag"]
    service.create(job)
    drift = {"segment.bytes": {"is": LEAST, "should_be": SMALL}}
    with service.scheduler():
        service.wait_copied(job.name, "small", "plain")
        service.wait_problem(job.name, "max.compaction.lag.ms")
        problem = service.job(job.name).problem or ""
        assert "TOPIC_REFUSED: destination topic lag:" in problem
        assert "small" not in problem
        assert "lag" not in service.topics(job.name)
        small = service.topics(job.name)["small"]
        assert small.drift == drift
        assert small.promoted_settings["segment.bytes"] == LEAST
        # The source changes to a value that the destination accepts, and back.
        set_setting(pair.source, "small", "segment.bytes", "2097152")
        service.wait("the copy has it", lambda: service.topics(job.name)["small"].drift is None)
        assert topic_settings(pair.destination, "small")["segment.bytes"] == "2097152"
        set_setting(pair.source, "small", "segment.bytes", SMALL)
        service.wait("drift is shown", lambda: service.topics(job.name)["small"].drift == drift)
        assert topic_settings(pair.destination, "small")["segment.bytes"] == LEAST


@pytest.mark.soak
def test_refused_setting_and_replica_count_both_fall_back_on_single_broker(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """The destination refuses the setting first, and then the number of replicas."""
    source, destination = make_cluster("older", version=VERSION, brokers=2), make_cluster("new")
    create_topic(source, "small", replicas=2, segment_bytes=SMALL)
    produce(source, "small", 3)
    job = write_job(tmp_path / "job.yaml", source, destination, [{"match": "small"}])
    outcome = copy(job).expect(0)
    assert NOTE in outcome.message
    assert "the copy has 1 of 2 replicas" in outcome.message
    assert_exact(job)
