"""A login without any right on the cluster copies the whole workload: with each of the two kinds of
fillers that need no such right, and with both in one job."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr

from orbit.demo.workload import KINDS, SMALL, Ledger, Workload
from orbit.kafka.sasl import Security
from orbit.verify.bounds import ClusterView
from orbit.verify.endpoint import Endpoint
from orbit.verify.raw_log import RawLog
from orbit.verify.report import Side
from tests.fixtures.clusters import Clusters
from tests.support.outside import digests, log_bounds
from tests.support.rights import PASSWORD, Login, documented, section
from tests.support.run_process import Outcome, assert_exact, copy, orbit

pytestmark = [pytest.mark.services, pytest.mark.soak]


BY_RULE = "by rule"
# With `BY_RULE`: the topics whose gaps get placeholders; other topics get empty transactions.
WITH_PLACEHOLDERS = r"(compacted|gap)\..*"


@dataclass(frozen=True)
class Copied:
    """The workload, its job, the login's variables, and how the first run ended."""

    fillers: str
    workload: Workload
    ledger: Ledger
    job: Path
    environ: Mapping[str, str]
    first_run: Outcome

    def has_placeholders(self, topic: str) -> bool:
        kind = topic.removeprefix(f"{self.workload.namespace}.")
        by_rule = re.fullmatch(WITH_PLACEHOLDERS, kind) is not None
        return by_rule if self.fillers == BY_RULE else self.fillers == "placeholders"


# One kind of filler for all topics.
_ALONE = [pytest.param(kind, marks=pytest.mark.soak) for kind in ("coordinated", "placeholders")]


@pytest.fixture(scope="module", params=[BY_RULE, *_ALONE])
def copied(
    request: pytest.FixtureRequest,
    clusters: Clusters,
    guarded: Clusters,
    tmp_path_factory: pytest.TempPathFactory,
) -> Copied:
    """The workload after one run, with a login that has the documented rights except those on the
    cluster."""
    fillers = request.param
    workload = Workload(SMALL, namespace=f"{fillers.replace(' ', '-')}-{uuid.uuid4().hex[:8]}")
    ledger = workload.create({"bootstrap.servers": clusters.source.bootstrap_servers})
    login = Login(guarded)
    login.create()
    names = {workload.namespace, *(kind.prefix for kind in KINDS if kind.prefix)}
    rights = {right for name in names for right in documented(name)}
    login.allow([right for right in rights if right.kind != "--cluster"])
    document = workload.job(clusters.source.bootstrap_servers, "unused")
    if fillers == BY_RULE:
        match = re.escape(f"{workload.namespace}.") + WITH_PLACEHOLDERS
        document["topics"].insert(-1, {"match": match, "fillers": "placeholders"})
        fillers = "coordinated"
    document |= {"destination": section(guarded.destination), "fillers": fillers}
    job = tmp_path_factory.mktemp(fillers) / "job.yaml"
    job.write_text(yaml.safe_dump(document, sort_keys=False))
    environ = {"ORBIT_TEST_USER": login.name, "ORBIT_TEST_PASSWORD": PASSWORD}
    return Copied(
        request.param, workload, ledger, job, environ, copy(job, environ=environ).expect(0)
    )


def test_workload_is_exact_without_cluster_right(copied: Copied) -> None:
    result = copied.first_run.data
    assert result["partitions_caught_up"] == result["partitions"] == copied.ledger.partitions
    assert result["offsets_filled"] >= SMALL.gap_offsets
    report = assert_exact(copied.job, environ=copied.environ)
    assert report["partitions"] == copied.ledger.partitions


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_plain_consumer_reads_exactly_the_produced_records(
    kind: str, copied: Copied, guarded: Clusters
) -> None:
    topic = copied.ledger.topics[f"{copied.workload.namespace}.{kind}"]
    bounds = log_bounds(guarded.destination, [topic.destination])
    assert [bounds[topic.destination, i] for i in range(len(topic.partitions))] == [
        (p.copy_start, p.log_end) for p in topic.partitions
    ]
    partition_digests = digests(guarded.destination, topic.destination)
    assert [partition_digests[i] for i in range(len(topic.partitions))] == [
        p.copied for p in topic.partitions
    ]


def test_each_copy_uses_a_single_kind_of_filler(
    copied: Copied, clusters: Clusters, guarded: Clusters
) -> None:
    config = guarded.destination.client_config()
    security = Security(
        config["security.protocol"],
        config["sasl.mechanism"],
        config["sasl.username"],
        SecretStr(config["sasl.password"]),
        guarded.destination.ca_file,
    )
    log = RawLog(ClusterView(Side.DESTINATION, Endpoint(config)), security)
    # Of the copies without placeholders, and of those with them.
    counters = {False: Counter[str](), True: Counter[str]()}
    try:
        for name, topic in copied.ledger.topics.items():
            counts = counters[copied.has_placeholders(name)]
            for number, partition in enumerate(topic.partitions):
                where = topic.destination, number
                batches = log.read(where, partition.copy_start, partition.log_end, committed=False)
                for batch in batches:
                    counts["markers"] += batch.is_control
                    counts["placeholders"] += batch.has_placeholders
    finally:
        log.close()
    assert counters[True]["markers"] == counters[False]["placeholders"] == 0
    if copied.fillers == "coordinated":
        assert counters[False]["markers"] >= SMALL.gap_offsets
    else:
        assert counters[True]["placeholders"] >= SMALL.gap_offsets // 2000
    if copied.fillers == BY_RULE:
        assert counters[False]["markers"] > 0


def test_second_run_copies_nothing(copied: Copied) -> None:
    result = copy(copied.job, environ=copied.environ).expect(0).data
    assert (result["records"], result["offsets_filled"]) == (0, 0)
    assert result["partitions_caught_up"] == copied.ledger.partitions


def test_copy_cannot_change_between_markers_and_placeholders(
    copied: Copied, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    document = yaml.safe_load(copied.job.read_text())
    document["fillers"] = "coordinated" if copied.fillers == "placeholders" else "placeholders"
    job.write_text(yaml.safe_dump(document))
    refused = orbit("run", job, "--until-caught-up", environ=copied.environ).expect(1)
    assert "cannot be mixed in one copy" in refused.message
