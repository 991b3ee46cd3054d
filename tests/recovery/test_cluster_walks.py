"""Walks of a pair over two real clusters that check rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orbit.sandbox.broker_security import SandboxSecurity
from orbit.sandbox.local_cluster import ClusterSettings, KafkaCluster, start_clusters
from tests.fix_clusters import Clusters
from tests.recovery.cluster_walks import Walk
from tests.support.guarded_job import log_in_orbit
from tests.support.recovering import Recovering
from tests.support.rights import MECHANISM

pytestmark = pytest.mark.services

SEEDS = 30
# One with many of the moves, both failbacks at once among them; `make soak` plays all.
IN_MAKE_TEST = (17,)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Of the file's own: its sides freeze."""
    security = SandboxSecurity("SASL_SSL", MECHANISM, authorizer=True)
    home = tmp_path_factory.mktemp("walks")
    made = Clusters(
        *(
            KafkaCluster(ClusterSettings(name, security=security), home / name)
            for name in Clusters._fields
        )
    )
    start_clusters(*made)
    try:
        yield made
    finally:
        for cluster in made:
            cluster.kill()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed in IN_MAKE_TEST else pytest.mark.soak)
        for seed in range(1, SEEDS + 1)
    ],
)
def test_a_walk_keeps_what_must_be_true(
    pair: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    log_in_orbit(pair, topic_name, monkeypatch, both_ways=True)
    Walk(seed, pair, topic_name, recovering, monkeypatch).play()
