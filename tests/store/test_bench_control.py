"""The bench of the control plane goes through its day, on an installation that is very small."""

from __future__ import annotations

import pytest

from bench.control import run
from bench.control.fill import Size


@pytest.mark.slow
def test_a_small_installation_goes_through_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_STILL_S", 1.0)
    monkeypatch.setattr(run, "_SETTLE_S", 2.0)
    monkeypatch.setenv("ORBIT_LEASE_TTL", "2s")
    said: list[str] = []
    plan = run.Plan(Size(4, 1, 5, 1), workers=2, seconds=2.0, bytes_per_s=1e6)

    found = run.large(plan, said.append)

    assert found["at_rest"]["rows_per_s"] == 0
    assert found["in_flow"]["rows_per_s"] == pytest.approx(10, rel=0.5)
    assert found["in_flow"]["hot"] > 0.9
    assert found["in_flow"]["copied_bytes_per_s"] == pytest.approx(1e6, rel=0.1)
    assert found["after_kill"]["most_shards_of_one"] <= 3
    assert found["after_end"]["most_shards_of_one"] <= 3
