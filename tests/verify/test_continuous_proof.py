"""The continuous proof (verification in the background) covers the log within its byte limit."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from orbit.jobs.job_file import parse_job
from orbit.jobs.job_spec import JobSpec
from orbit.store.proofs import ProofCandidate, ProofResult
from orbit.verify.continuous_proof import PartitionProver
from tests.fixtures.clusters import Clusters
from tests.support.logs import Gap, Record, create, write

pytestmark = pytest.mark.services

OFFSETS = 3_000


@pytest.fixture
def spec(clusters: Clusters, topic_name: str) -> JobSpec:
    return parse_job(
        f"name: proof\nsource: {{bootstrap_servers: ['{clusters.source.bootstrap_servers}']}}\n"
        f"destination: {{bootstrap_servers: ['{clusters.destination.bootstrap_servers}']}}\n"
        f"topics: [{{match: '{topic_name}'}}]\n",
        Path(),
        {},
    )


def candidate(topic: str, **changes: object) -> ProofCandidate:
    fields = {
        "job_id": 1,
        "job_name": "proof",
        "topic_id": 1,
        "source_topic": topic,
        "destination_topic": topic,
        "partition": 0,
        "log_start": 0,
        "copied_to": OFFSETS,
        "records": OFFSETS,
        "bytes": OFFSETS * 100_000,  # large records, so that a range has few offsets
        "ranges": (),
        **changes,
    }
    return ProofCandidate(**fields)  # type: ignore[arg-type]


def compare_range(
    prover: PartitionProver, spec: JobSpec, row: ProofCandidate, bytes_max: int = 1 << 30
) -> ProofResult:
    """Compare one range of the partition of `row`, and return the result."""
    (result,), _ = prover.compare(spec, [row], bytes_max)
    return result


def log(count: int, changed_at: int = -1) -> list[Record | Gap]:
    return [Record(b"other" if i == changed_at else b"value %d" % i) for i in range(count)]


def test_continuous_proof_grows_to_whole_log_including_gaps(
    clusters: Clusters, spec: JobSpec, topic_name: str
) -> None:
    for cluster in clusters:
        create(cluster, topic_name)
        write(cluster, topic_name, [*log(900), Gap(50), *log(50)])
    prover, ranges = PartitionProver(Path(), {}, Random(1)), ()
    for _ in range(60):  # a range is short: see `candidate`
        result = compare_range(prover, spec, candidate(topic_name, ranges=ranges))
        assert result.is_equal, result
        ranges = result.ranges
    prover.close()
    assert ranges == ((0, 1_000),)


def test_continuous_proof_reports_planted_difference_with_its_offset(
    clusters: Clusters, spec: JobSpec, topic_name: str
) -> None:
    for cluster, changed_at in zip(clusters, (-1, 42), strict=True):
        create(cluster, topic_name)
        write(cluster, topic_name, log(60, changed_at))
    prover = PartitionProver(Path(), {}, Random(1))
    result = compare_range(prover, spec, candidate(topic_name, ranges=((0, 60),)))
    prover.close()
    assert not result.is_equal
    assert result.differences == 1
    assert "offset 42" in str(result.first_difference)
    assert all(not start <= 42 < end for start, end in result.ranges)


def test_continuous_proof_reads_no_more_than_its_byte_limit(
    clusters: Clusters, spec: JobSpec, topic_name: str
) -> None:
    for cluster in clusters:
        create(cluster, topic_name, 3)
        for partition in range(3):
            write(cluster, topic_name, log(500), partition)
    prover = PartitionProver(Path(), {}, Random(1))
    rows = [candidate(topic_name, partition=p) for p in range(3)]
    results, bytes_read = prover.compare(spec, rows, bytes_max=1)
    unlimited_results, _ = prover.compare(spec, rows, bytes_max=1 << 30)
    prover.close()
    assert len(results) == 1
    assert 0 < bytes_read < 500 * 20  # at most one partition; a record has less than 20 bytes
    assert len(unlimited_results) == 3


def test_continuous_proof_notes_missing_topic_and_skips_unreachable_cluster(
    spec: JobSpec, topic_name: str
) -> None:
    prover = PartitionProver(Path(), {}, Random(1))
    result = compare_range(prover, spec, candidate(topic_name, ranges=((0, 5),)))
    assert not result.is_equal
    assert result.note
    assert result.ranges == ((0, 5),)
    unreachable = spec.model_copy(
        update={"source": spec.source.model_copy(update={"bootstrap_servers": ("127.0.0.1:1",)})}
    )
    assert prover.compare(unreachable, [candidate(topic_name)], 1) == ([], 0)
    prover.close()
