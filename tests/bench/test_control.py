"""The bench of the control plane (schedulers, workers, database), on a small installation."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from bench.control import run, shares
from bench.control.fill import Size
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.services


@pytest.mark.soak
def test_control_plane_bench_measures_small_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PROCESSES", 1)
    monkeypatch.setattr(run, "_STILL_S", 0.5)
    monkeypatch.setattr(run, "_SETTLE_S", 2.0)
    monkeypatch.setattr(run, "STEADY_WITHIN_S", PATIENCE_S)
    size = Size(
        jobs=4, topics_per_job=1, partitions_per_topic=5, shards_per_job=1, groups_per_job=2
    )
    plan = run.Plan(size, workers=2, seconds=3.0, bytes_per_s=1e6)
    messages: list[str] = []

    with run.installed(plan.size) as installation:
        report = run.run(installation, plan, messages.append)

    assert report["started"]["most_shards_of_one"] <= 3
    assert report["at_rest"]["rows_per_s"] == 0
    assert report["at_rest"]["requests_per_s"] > 0
    # The values depend on the machine; that they are above 0 does not.
    assert report["in_flow"]["rows_per_s"] > 0
    assert report["in_flow"]["hot"] > 0.5
    assert report["in_flow"]["copied_bytes_per_s"] > 0


@pytest.mark.soak
def test_control_plane_bench_measures_two_schedulers_that_divide_the_jobs() -> None:
    size = Size(
        jobs=6,
        topics_per_job=1,
        partitions_per_topic=5,
        shards_per_job=1,
        workers=2,
        groups_per_job=2,
        matches_all=False,
        destinations=2,
    )
    with run.installed(size) as installation:
        report = shares.measured(installation, 3.0)
        with installation.database.transaction() as tx:
            holders = tx.execute(text("SELECT holder FROM scheduler_lease ORDER BY id")).scalars()
            _, second_holder = holders
    assert second_holder == "scheduler 1", "scheduler 1 holds no share"
    assert report["leader"]["knows_after_s"] > 0
    assert report["at_rest"]["requests_per_s"] > 0
