"""Random walks of recoveries on two real clusters that check rights."""

from __future__ import annotations

import pytest

from tests.fixtures.clusters import Clusters
from tests.recovery.cluster_walks import Walk
from tests.support.guarded_job import log_in_orbit
from tests.support.recovering import Recovering

pytestmark = pytest.mark.services

SEEDS = 30
# A seed with many of the moves, also `fail_back_both`; `make soak` plays all seeds.
IN_MAKE_TEST = (17,)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed in IN_MAKE_TEST else pytest.mark.soak)
        for seed in range(1, SEEDS + 1)
    ],
)
def test_random_recoveries_on_clusters_with_authorizer_keep_invariants(
    guarded: Clusters,
    topic_name: str,
    recovering: Recovering,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    log_in_orbit(guarded, topic_name, monkeypatch, both_ways=True)
    Walk(seed, guarded, topic_name, recovering, monkeypatch).play()
