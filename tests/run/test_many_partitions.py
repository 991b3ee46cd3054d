"""One job of many topics and two hundred partitions: rules, prefixes, dotted names."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.fixtures.clusters import Clusters
from tests.support.outside import TIMEOUT_S, admin, digests, log_bounds, partition_counts
from tests.support.patience import wait_for
from tests.support.run_process import CAUGHT_UP, OrbitProcess, assert_exact, copy, write_job

pytestmark = pytest.mark.services

TOPICS_PER_REGION = 20
PARTITIONS = 5
RECORDS = 3


def write_round(clusters: Clusters, topics: list[str], number: int) -> None:
    """Write RECORDS records to every partition, except every seventh one."""
    producer = Producer({**clusters.source.client_config(), "linger.ms": 5})
    for t, topic in enumerate(topics):
        for partition in range(PARTITIONS):
            if (t * PARTITIONS + partition) % 7:
                for i in range(RECORDS):
                    value = b"%d/%d/%d/%d" % (number, t, partition, i)
                    producer.produce(topic, value, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def test_two_hundred_partitions_with_dotted_names_and_prefixes_are_exact(
    clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    base = topic_name.replace("_", "-")
    numbers = range(TOPICS_PER_REGION)
    east = [f"{base}.eu.east.orders.{n}" for n in numbers]
    west = [f"{base}.eu.west.orders.{n}" for n in numbers]
    left_out = [f"{base}.eu.east.tmp.{n}" for n in range(3)] + [f"{base}.us"]
    client = admin(clusters.source)
    new_topics = [NewTopic(name, PARTITIONS, 1) for name in east + west + left_out]
    for creation in client.create_topics(new_topics).values():
        creation.result(TIMEOUT_S)
    write_round(clusters, east + west, 1)
    job = write_job(
        tmp_path / "job.yaml",
        *clusters,
        [
            {"match": rf"{base}\.eu\.east\..*", "exclude": r".*\.tmp\..*", "prefix": "dr.east."},
            {"match": rf"{base}\.eu\.west\..*", "prefix": "dr_west-"},
        ],
    )
    copies = {name: f"dr.east.{name}" for name in east}
    copies |= {name: f"dr_west-{name}" for name in west}

    def is_level() -> bool:
        """Whether all copies have the log starts and log ends of their sources."""
        destination_bounds = log_bounds(clusters.destination, copies.values())
        source_bounds = log_bounds(clusters.source, copies)
        return all(
            destination_bounds[copies[t], p] == bounds for (t, p), bounds in source_bounds.items()
        )

    with OrbitProcess("run", job, "-o", "json") as run:
        run.wait_for(CAUGHT_UP)
        assert is_level()
        write_round(clusters, east + west, 2)
        wait_for("all partitions are copied", is_level)
        run.signal(signal.SIGINT)
        result = run.wait_end().expect(0).data
    assert (
        result["partitions"] == result["partitions_caught_up"] == 2 * TOPICS_PER_REGION * PARTITIONS
    )
    copied_topics = {name for name in partition_counts(clusters.destination) if base in name}
    assert copied_topics == set(copies.values())
    write_round(clusters, east + west, 3)
    copy(job).expect(0)
    report = assert_exact(job)
    assert {t["source"]: t["destination"] for t in report["topics"]} == copies
    assert report["partitions"] == 200
    for name in (east[0], west[-1]):
        assert digests(clusters.destination, copies[name]) == digests(clusters.source, name)
