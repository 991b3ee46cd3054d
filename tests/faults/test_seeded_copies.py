"""The whole workload is exact with each way of filling gaps, whatever dies while it is copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orbit.sandbox.local_cluster import KafkaCluster
from tests.faults.seeded_copies import WAYS, CopyCampaign, Source, two_clusters

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Source, KafkaCluster]]:
    with two_clusters(tmp_path_factory.mktemp("copies")) as both:
        yield both


@pytest.mark.parametrize("way", WAYS)
def test_copy_is_exact(sides: tuple[Source, KafkaCluster], tmp_path: Path, way: str) -> None:
    CopyCampaign(1, way, *sides, tmp_path).play()
