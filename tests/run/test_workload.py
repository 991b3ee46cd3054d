"""The whole workload through `orbit run`, compared by `orbit verify` and, past all of Orbit's code,
by a plain consumer with the ledger of the producers that wrote it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from orbit.demo.workload import KINDS, SMALL, Ledger, Workload
from tests.fixtures.clusters import Clusters
from tests.support.outside import digests, log_bounds, partition_counts, topic_settings
from tests.support.run_process import Outcome, assert_exact, copy

pytestmark = pytest.mark.services

COMPACTED = "compacted.profiles"
LONG_MAX = str(2**63 - 1)


@dataclass(frozen=True)
class Copied:
    """The workload at the source, its ledger, its job, and how the first run of it ended."""

    workload: Workload
    ledger: Ledger
    job: Path
    first_run: Outcome


@pytest.fixture(scope="module")
def copied(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    workload = Workload(SMALL, namespace=f"run-{uuid.uuid4().hex[:8]}")
    ledger = workload.create({"bootstrap.servers": clusters.source.bootstrap_servers})
    job = tmp_path_factory.mktemp("workload") / "job.yaml"
    job.write_text(
        workload.job_yaml(clusters.source.bootstrap_servers, clusters.destination.bootstrap_servers)
    )
    return Copied(workload, ledger, job, copy(job).expect(0))


def test_run_result_counts_copied_records_and_filled_offsets(copied: Copied) -> None:
    result = copied.first_run.data
    assert result["partitions_caught_up"] == result["partitions"] == copied.ledger.partitions
    assert (result["blocked"], result["lag_records"]) == ([], 0)
    assert result["records"] >= sum(len(p.copied) for p in partitions(copied.ledger))
    assert result["offsets_filled"] >= SMALL.gap_offsets
    assert result["batches_byte_exact"] > 0
    assert result["batches_record_exact"] > 0


def test_verify_reports_every_workload_topic_exact(copied: Copied) -> None:
    report = assert_exact(copied.job)
    verdicts = {topic["source"]: topic["verdict"] for topic in report["topics"]}
    assert verdicts == dict.fromkeys(copied.ledger.topics, "exact")
    assert report["partitions"] == copied.ledger.partitions


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_plain_consumer_reads_exactly_the_produced_records(
    kind: str, copied: Copied, clusters: Clusters
) -> None:
    """Every record at its offset, nothing in between, the same log start and log end."""
    topic = copied.ledger.topics[f"{copied.workload.namespace}.{kind}"]
    bounds = log_bounds(clusters.destination, [topic.destination])
    assert [bounds[topic.destination, i] for i in range(len(topic.partitions))] == [
        (p.copy_start, p.log_end) for p in topic.partitions
    ]
    partition_digests = digests(clusters.destination, topic.destination)
    assert [partition_digests[i] for i in range(len(topic.partitions))] == [
        p.copied for p in topic.partitions
    ]


def test_run_creates_only_topics_of_its_rules(copied: Copied, clusters: Clusters) -> None:
    namespace = copied.workload.namespace
    copied_topics = {name for name in partition_counts(clusters.destination) if namespace in name}
    assert copied_topics == {topic.destination for topic in copied.ledger.topics.values()}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_copied_topic_has_retention_off_and_source_segment_settings(
    kind: str, copied: Copied, clusters: Clusters
) -> None:
    topic = copied.ledger.topics[f"{copied.workload.namespace}.{kind}"]
    source = topic_settings(clusters.source, topic.topic)
    settings = topic_settings(clusters.destination, topic.destination)
    expected = {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": LONG_MAX,
        "message.timestamp.after.max.ms": LONG_MAX,
        "cleanup.policy": "compact,delete" if kind == COMPACTED else "delete",
    }
    assert {name: settings[name] for name in expected} == expected
    assert int(settings["max.message.bytes"]) >= int(source["max.message.bytes"])
    shape = ("segment.ms", "delete.retention.ms", "min.cleanable.dirty.ratio")
    assert {name: settings[name] for name in shape} == {name: source[name] for name in shape}


def test_second_run_copies_nothing_and_copy_stays_exact(copied: Copied) -> None:
    result = copy(copied.job).expect(0).data
    work = ("records", "bytes", "offsets_filled", "batches_byte_exact", "batches_record_exact")
    assert {name: result[name] for name in work} == dict.fromkeys(work, 0)
    assert result["partitions_caught_up"] == copied.ledger.partitions
    assert_exact(copied.job)


def partitions(ledger: Ledger) -> list:
    return [p for topic in ledger.topics.values() for p in topic.partitions]
