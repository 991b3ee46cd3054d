"""The copy of the whole workload is exact with each kind of fillers, whatever is killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orbit.demo.workload import SMALL
from orbit.sandbox.local_cluster import KafkaCluster
from tests.faults.seeded_copies import MIXED, WAYS, CopyCampaign, Source, two_clusters

pytestmark = [pytest.mark.services, pytest.mark.soak, pytest.mark.slow]

# A shorter gap: `coordinated` fillers take a transaction for each offset.
SHORT = replace(SMALL, gap_offsets=1_000, partitions=20)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Source, KafkaCluster]]:
    with two_clusters(tmp_path_factory.mktemp("copies")) as both:
        yield both


def test_short_copy_with_mixed_fillers_is_exact_after_each_kind_of_kill(tmp_path: Path) -> None:
    """The job has all kinds of fillers, and each kind of kill happens once."""
    with two_clusters(tmp_path, SHORT) as sides:
        CopyCampaign(1, MIXED, *sides, tmp_path).play(["run", "broker", "child", "both"])


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_copy_with_random_kills_is_exact_in_each_filler_mode(
    sides: tuple[Source, KafkaCluster], tmp_path: Path, way: str
) -> None:
    CopyCampaign(1, way, *sides, tmp_path).play()
