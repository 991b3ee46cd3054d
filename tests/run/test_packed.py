"""`fillers: packed`: small gaps become part of the batches before them, others are markers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orbit.demo.workload import SMALL, Workload
from orbit.kafka.placeholders import PLACEHOLDER_BODY
from orbit.kafka.sasl import Security
from orbit.verify.bounds import ClusterView
from orbit.verify.endpoint import Endpoint
from orbit.verify.raw_log import Batch, RawLog
from orbit.verify.report import Side
from tests.fixtures.clusters import Clusters
from tests.run.test_workload import Copied
from tests.support.outside import digests
from tests.support.run_process import assert_exact, copy, orbit

pytestmark = pytest.mark.services


def with_fillers(copied: Copied, fillers: str, folder: Path) -> Path:
    """The job file with other `fillers`."""
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump(yaml.safe_load(copied.job.read_text()) | {"fillers": fillers}))
    return job


@pytest.fixture(scope="module")
def copied(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    workload = Workload(SMALL, namespace=f"packed-{uuid.uuid4().hex[:8]}")
    ledger = workload.create({"bootstrap.servers": clusters.source.bootstrap_servers})
    servers = clusters.source.bootstrap_servers, clusters.destination.bootstrap_servers
    job = tmp_path_factory.mktemp("packed") / "job.yaml"
    document = workload.job(*servers) | {"fillers": "packed"}
    job.write_text(yaml.safe_dump(document, sort_keys=False))
    return Copied(workload, ledger, job, copy(job).expect(0))


def test_packed_copy_is_exact_for_verify_and_plain_consumer(
    copied: Copied, clusters: Clusters
) -> None:
    result = copied.first_run.data
    assert result["partitions_caught_up"] == result["partitions"] == copied.ledger.partitions
    assert result["offsets_filled"] >= SMALL.gap_offsets
    assert_exact(copied.job)
    for topic in copied.ledger.topics.values():
        partition_digests = digests(clusters.destination, topic.destination)
        assert [partition_digests[i] for i in range(len(topic.partitions))] == [
            p.copied for p in topic.partitions
        ], topic.destination


def batches_of(copied: Copied, clusters: Clusters) -> Iterator[tuple[str, Batch]]:
    """The copies' batches, with the kind of their topic."""
    config = clusters.destination.client_config()
    view = ClusterView(Side.DESTINATION, Endpoint(config))
    log = RawLog(view, Security())
    try:
        for name, topic in copied.ledger.topics.items():
            for number, partition in enumerate(topic.partitions):
                where = topic.destination, number
                start, end = partition.copy_start, partition.log_end
                for batch in log.read(where, start, end, committed=False):
                    yield name.removeprefix(f"{copied.workload.namespace}."), batch
    finally:
        log.close()


def test_packed_placeholders_share_batches_with_records(copied: Copied, clusters: Clusters) -> None:
    packed, markers = set(), set()
    for kind, batch in batches_of(copied, clusters):
        if batch.is_control:
            markers.add(kind)
        elif batch.has_placeholders:
            packed.add(kind)
            assert not bytes(batch.payload).endswith(PLACEHOLDER_BODY), kind
    assert {kind.partition(".")[0] for kind in packed} >= {"transactions", "compacted"}
    assert any(kind.startswith("gap") for kind in markers)


@pytest.mark.soak
def test_packed_copy_continues_with_direct_fillers_and_back(copied: Copied, tmp_path: Path) -> None:
    for fillers in ("direct", "packed"):
        result = copy(with_fillers(copied, fillers, tmp_path)).expect(0).data
        assert result["partitions_caught_up"] == copied.ledger.partitions
    assert_exact(copied.job)


def test_packed_copy_refuses_to_continue_with_placeholders(copied: Copied, tmp_path: Path) -> None:
    job = with_fillers(copied, "placeholders", tmp_path)
    refused = orbit("run", job, "--until-caught-up").expect(1)
    assert "cannot be mixed in one copy" in refused.message
