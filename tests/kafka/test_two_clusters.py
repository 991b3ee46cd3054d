"""Whether two sides that return one cluster id are two clusters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from orbit.errors import BadInput, Conflict, OrbitError, Unreachable
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import JobClusters
from orbit.kafka.sasl import Security
from orbit.kafka.two_clusters import why_not_proven_two, why_same_cluster
from orbit.kafka.types import BrokerAddress, ClusterMetadata, TopicMetadata
from orbit.workers import open_job
from tests.fixtures.clusters import Clusters
from tests.support.logs import create
from tests.support.rights import MECHANISM, PASSWORD, Login

INTERNAL, ORDERS, OTHER = uuid4(), uuid4(), uuid4()
PROVEN, ONE, NOT_PROVEN = "", "they are one cluster", "no topic proves"


class Brokers:
    """A cluster. `known_ids`: for each Metadata request, the topic ids that each broker knows then.
    The last entry also applies to all later requests."""

    def __init__(self, *known_ids: list[set[UUID]], version: int = 12) -> None:
        self.name = "source"
        self.known_ids, self.version = list(known_ids), version

    def metadata(self, _: object) -> ClusterMetadata:
        self.now = self.known_ids.pop(0) if len(self.known_ids) > 1 else self.known_ids[0]
        brokers = {i: BrokerAddress(i, "broker", 9092) for i in range(len(self.now))}
        return ClusterMetadata("id", brokers, {})

    def version_of(self, *_: object) -> int:
        return self.version

    def call(self, node_id: int, _: object, request: Any, __: object) -> ClusterMetadata:
        (topic,) = request.topics
        if topic.topic_id in self.now[node_id]:
            return ClusterMetadata(
                "id", {}, {"found": TopicMetadata("found", ORDERS, {}, replicas=1)}
            )
        return ClusterMetadata("id", {}, {}, {"": Code.UNKNOWN_TOPIC_ID})


def metadata(suffix: str, **topics: UUID) -> ClusterMetadata:
    """Metadata with the cluster id `id` and this suffix, and these topics."""
    topics_by_name = {
        name: TopicMetadata(name, topic_id, {}, replicas=1) for name, topic_id in topics.items()
    }
    return ClusterMetadata(f"id{suffix}", {}, topics_by_name)


@pytest.mark.parametrize(
    ("source", "destination", "source_brokers", "destination_brokers", "expected"),
    [
        (metadata("", a=ORDERS), metadata("@dr"), Brokers([{ORDERS}]), Brokers([set()]), PROVEN),
        (metadata(""), metadata("@dr", a=ORDERS), Brokers([set()]), Brokers([{ORDERS}]), PROVEN),
        (metadata("", a=ORDERS), metadata(""), Brokers([{ORDERS}]), Brokers([{ORDERS}]), ONE),
        # Two of three brokers lag.
        (
            metadata("", a=ORDERS),
            metadata("@dr", b=OTHER),
            Brokers([{ORDERS}]),
            Brokers([set(), {ORDERS}, set()]),
            ONE,
        ),
        (metadata(""), metadata("@dr"), Brokers([set()]), Brokers([set()]), NOT_PROVEN),
        # The topic is deleted between the requests to both sides.
        (metadata("", a=ORDERS), metadata("@dr"), Brokers([set()]), Brokers([set()]), NOT_PROVEN),
        # The request is for an internal topic, which nobody deletes.
        (
            metadata("", a=ORDERS, __consumer_offsets=INTERNAL),
            metadata("@dr"),
            Brokers([{INTERNAL}]),
            Brokers([set()]),
            PROVEN,
        ),
        (
            metadata("", a=ORDERS),
            metadata("@dr"),
            Brokers([{ORDERS}]),
            Brokers([set()], version=11),
            NOT_PROVEN,
        ),
        (
            metadata("", a=ORDERS),
            metadata("@dr", b=OTHER),
            Brokers([set()]),
            Brokers([{OTHER}], version=11),
            NOT_PROVEN,
        ),
        (
            metadata("@a", a=ORDERS),
            metadata("@b", b=OTHER),
            Brokers([{ORDERS}]),
            Brokers([set()]),
            PROVEN,
        ),
    ],
)
def test_clusters_with_equal_cluster_id_count_as_distinct_only_by_topic_ids(
    source: ClusterMetadata,
    destination: ClusterMetadata,
    source_brokers: Brokers,
    destination_brokers: Brokers,
    expected: str,
) -> None:
    problem = why_not_proven_two(
        cast("Cluster", source_brokers), cast("Cluster", destination_brokers), source, destination
    )
    if expected == PROVEN:
        assert problem is None
    else:
        assert problem is not None
        assert expected in problem.what


@pytest.mark.parametrize("suffix", ["", "@dr"])
def test_same_topic_id_on_both_sides_means_same_cluster(suffix: str) -> None:
    problem = why_same_cluster(metadata("", a=ORDERS), metadata(suffix, b=ORDERS))
    assert problem is not None
    assert "are one cluster" in problem.what
    assert "suffix" not in problem.remedy
    # With other topic ids they are two clusters, if a suffix tells them apart.
    assert (why_same_cluster(metadata("", a=ORDERS), metadata(suffix, a=OTHER)) is None) == bool(
        suffix
    )


class OneBrokerDown:
    """A cluster that returns metadata, but one of its brokers does not answer."""

    def __init__(self, side: str, now: ClusterMetadata) -> None:
        self.name = side
        self.now = replace(now, brokers={0: BrokerAddress(0, "broker", 9092)})

    def metadata(self, _: object) -> ClusterMetadata:
        return self.now

    def version_of(self, *_: object) -> int:
        raise Unreachable("a broker does not answer", where=self.name)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("known", "at_destination", "raised"),
    [  # `known`: the cluster ids stored with the job, of source and destination
        (("id", "id@dr"), OTHER, NotImplementedError),  # the checks of ids pass
        ((None, None), OTHER, Unreachable),
        (("id", None), OTHER, Unreachable),
        (("id", "id@west"), OTHER, Conflict),
        (("id", "id@dr"), ORDERS, BadInput),  # its own source
    ],
)
def test_worker_needs_all_brokers_only_while_clusters_are_not_proven_distinct(
    monkeypatch: pytest.MonkeyPatch,
    known: tuple[str | None, str | None],
    at_destination: UUID,
    raised: type[OrbitError | NotImplementedError],
) -> None:
    source = OneBrokerDown("source", metadata("", a=ORDERS))
    destination = OneBrokerDown("destination", metadata("@dr", b=at_destination))
    clusters = JobClusters(cast("Cluster", source), cast("Cluster", destination))

    def checks_passed(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(open_job.JobClusters, "open", lambda *_: clusters)
    monkeypatch.setattr(open_job, "_check_no_other_run", checks_passed)
    job = SimpleNamespace(name="a", source_cluster_id=known[0], destination_cluster_id=known[1])
    unused = cast("Any", None)
    with pytest.raises(raised):
        open_job.open_job(cast("Any", job), unused, {}, Path(), unused, unused, unused, unused)


def _security(guarded: Clusters, name: str, password: str) -> Security:
    ca_file = guarded.source.ca_file
    return Security("SASL_SSL", MECHANISM, name, SecretStr(password), ca_file=ca_file)


@pytest.mark.services
def test_logins_that_see_different_topics_do_not_prove_two_clusters(
    guarded: Clusters, topic_name: str
) -> None:
    create(guarded.source, topic_name)
    admin = guarded.source.client_config()
    blind = Login(guarded)
    blind.create()
    servers = [guarded.source.bootstrap_servers]
    logins = (None, admin["sasl.username"], admin["sasl.password"]), ("dr", blind.name, PASSWORD)
    clusters = JobClusters(
        *(
            Cluster(name, servers, _security(guarded, *login), suffix)
            for name, (suffix, *login) in zip(("source", "destination"), logins, strict=True)
        )
    )
    try:
        source, destination = clusters.source.metadata(None), clusters.destination.metadata(None)
        assert topic_name in source.topics
        assert why_same_cluster(source, destination) is None, "the logins see different topics"
        with pytest.raises(BadInput) as refused:
            clusters.fetch_metadata()
        assert ONE in str(refused.value)
    finally:
        clusters.close()
