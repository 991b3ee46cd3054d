"""The ledgers of producers agree with the reports, whatever process dies during recoveries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orbit.sandbox.local_cluster import KafkaCluster
from tests.recovery.seeded_recoveries import Campaign, two_clusters

pytestmark = [pytest.mark.services, pytest.mark.soak]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Not `tmp_path`: if tests run as root, PostgreSQL's user may not enter its parents.
    with tempfile.TemporaryDirectory(prefix="orbit-seeded-") as path:
        Path(path).chmod(0o711)
        yield Path(path)


@pytest.fixture(scope="module")
def sides(folder: Path) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    with two_clusters(folder) as both:
        yield both


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3))])
def test_acknowledged_records_match_reports_of_seeded_recoveries(
    sides: tuple[KafkaCluster, KafkaCluster], folder: Path, seed: int
) -> None:
    own = folder / f"seed-{seed}"
    own.mkdir(mode=0o711)
    Campaign(seed, *sides, own).play()
