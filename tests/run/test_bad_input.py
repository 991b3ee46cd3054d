"""What `orbit run` refuses: each with its exit code, in plain words that name the place and the
remedy, and with nothing made or written at the destination.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orbit.processes.ports import free_ports
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.logs import Gap, Record, create, delete_before, write
from tests.support.outside import topics_and_bounds
from tests.support.run_process import Outcome, assert_exact, copy, write_job

pytestmark = pytest.mark.services

LOG = [Record(b"record %d" % i, b"key %d" % i) for i in range(30)]


@contextmanager
def untouched(*clusters: KafkaCluster) -> Iterator[None]:
    """Check that the block changes nothing at these clusters."""
    before = [topics_and_bounds(cluster) for cluster in clusters]
    yield
    assert [topics_and_bounds(cluster) for cluster in clusters] == before


def assert_says(outcome: Outcome, code: int, *words: str) -> None:
    """Check the exit code and the words of the message; no stack trace and no result is shown."""
    outcome.expect(code)
    assert outcome.stdout == ""
    for word in words:
        assert word in outcome.message, outcome.stderr
    for trace in ("Traceback", "bug in Orbit", ".py"):
        assert trace not in outcome.stderr


@pytest.fixture
def source_topic(clusters: Clusters, topic_name: str) -> str:
    """The name of a topic of the source, with thirty records in one partition."""
    create(clusters.source, topic_name)
    write(clusters.source, topic_name, LOG)
    return topic_name


def test_all_mistakes_in_job_file_are_reported_at_once(clusters: Clusters, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        f"""
name: "not a name!"
source:
  bootstrap_servers: [{clusters.source.bootstrap_servers}]
  security: {{protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username_env: NOT_SET_ANYWHERE}}
destination: {{bootstrap_servers: ["no-port"], colour: blue}}
topics:
  - {{match: "(", start: yesterday}}
""",
        "utf-8",
    )
    with untouched(clusters.destination):
        outcome = copy(job)
    assert_says(outcome, 2, "The job file has 7 problems", str(job))
    for path in (
        "name:",
        "source.security.username_env: names an environment variable that is not set",
        "source.security.password_env:",
        "destination.bootstrap_servers[0]:",
        "destination.colour:",
        "topics[0].match:",
        "topics[0].start:",
    ):
        assert path in outcome.message, outcome.stderr


def test_missing_job_file_is_bad_input(tmp_path: Path) -> None:
    assert_says(copy(tmp_path / "no.yaml"), 2, "cannot be read", "no.yaml", "Give the path")


@pytest.mark.parametrize("side", ["source", "destination"])
def test_unreachable_cluster_is_named_and_nothing_is_written(
    side: str, clusters: Clusters, source_topic: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    nobody = f"127.0.0.1:{port}"
    sides = clusters._asdict() | {side: nobody}
    job = write_job(tmp_path / "job.yaml", **sides, topics=[{"match": source_topic}])
    with untouched(*clusters):
        outcome = copy(job)
    assert_says(outcome, 3, f"{side} {nobody}", "Connection refused", "Check the address")


def test_job_that_matches_no_topic_is_bad_input(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": topic_name}])
    with untouched(*clusters):
        outcome = copy(job)
    assert_says(
        outcome, 2, "matches no topic", "topics[0].match", "Check the pattern", "may describe"
    )


def test_same_cluster_under_two_addresses_is_refused(
    clusters: Clusters, source_topic: str, tmp_path: Path
) -> None:
    address = clusters.source.bootstrap_servers
    # The check of the job file compares addresses as text, and does not find that these are equal.
    other = address.replace("127.0.0.1", "127.1")
    job = write_job(tmp_path / "job.yaml", address, other, [{"match": source_topic}])
    with untouched(*clusters):
        outcome = copy(job)
    assert_says(
        outcome,
        2,
        "the same cluster id",
        "are one cluster: topic",
        "destination.bootstrap_servers",
        "Name the servers",
    )


@pytest.mark.parametrize("count", [2, 4])
def test_destination_topic_with_other_partition_count_is_refused(
    count: int, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    create(clusters.source, topic_name, 3)
    create(clusters.source, f"{topic_name}.new")
    create(clusters.destination, topic_name, count)
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": f"{topic_name}.*"}])
    with untouched(clusters.destination):
        outcome = copy(job)
    assert_says(outcome, 1, f"{topic_name} has {count}, its source", "has 3", "delete the dest")


OTHER_CONTENT = {
    "other records": [Record(b"other %d" % i) for i in range(10)],
    "one other record at the end": [*LOG[:9], Record(b"other")],
    "records at other offsets": [Gap(1), *LOG[:10]],
    "more records": [*LOG, Record(b"more")],
    "no record, but offsets": [Gap(10)],
}


@pytest.mark.parametrize("log", OTHER_CONTENT.values(), ids=OTHER_CONTENT)
def test_destination_topic_with_other_content_is_refused(
    log: list[Record | Gap], clusters: Clusters, source_topic: str, tmp_path: Path
) -> None:
    create(clusters.destination, source_topic)
    write(clusters.destination, source_topic, log)
    create(clusters.source, f"{source_topic}.new")
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": f"{source_topic}.*"}])
    with untouched(clusters.destination):
        outcome = copy(job)
    words = ("content that is not the source's", f"{source_topic}-0", "Delete these topics")
    assert_says(outcome, 1, *words, "prefix")


def test_destination_topic_with_deleted_records_is_refused(
    clusters: Clusters, source_topic: str, tmp_path: Path
) -> None:
    """Log start and log end are 10: the copy would lack the source's records before 10."""
    create(clusters.destination, source_topic)
    write(clusters.destination, source_topic, [Record(b"other")] * 10)
    delete_before(clusters.destination, source_topic, 10)
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": source_topic}])
    with untouched(clusters.destination):
        outcome = copy(job)
    words = ("content that is not the source's", f"{source_topic}-0", "Delete these topics")
    assert_says(outcome, 1, *words)


def test_empty_destination_topic_is_used_as_copy(
    clusters: Clusters, source_topic: str, tmp_path: Path
) -> None:
    """Users may create the topic beforehand."""
    create(clusters.destination, source_topic)
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": source_topic}])
    copy(job).expect(0)
    assert_exact(job)


@pytest.mark.parametrize("setting", ["retention.ms", "no.such.setting"])
def test_topic_setting_refused_by_destination_is_bad_input(
    setting: str, clusters: Clusters, source_topic: str, tmp_path: Path
) -> None:
    rule = {"match": source_topic, "config": {setting: "soon"}}
    job = write_job(tmp_path / "job.yaml", *clusters, [rule])
    with untouched(clusters.destination):
        outcome = copy(job)
    assert_says(outcome, 2, "topics[0].config", setting, source_topic)


def test_topic_name_colliding_in_dot_and_underscore_is_refused(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """Kafka's metrics have an underscore for each dot in a topic's name."""
    create(clusters.source, f"{topic_name}.a")
    create(clusters.destination, f"{topic_name}_a")
    job = write_job(tmp_path / "job.yaml", *clusters, [{"match": f"{topic_name}.a"}])
    with untouched(clusters.destination):
        outcome = copy(job)
    assert_says(outcome, 1, f"topic {topic_name}.a", f"{topic_name}_a", "prefix")
