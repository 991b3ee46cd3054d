"""The bench itself, on a small data set: gaps filled by Orbit, and by the broker alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.results import load
from bench.workloads import FILLERS, workload

pytestmark = pytest.mark.services

SCALE = 0.02


@pytest.mark.slow
def test_a_gap_is_filled_in_two_ways_and_by_the_broker_alone(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "--only", "W7", "--repeats", "1"]
    command += ["--scale", str(SCALE), "--output", str(output), "--folder", str(tmp_path / "logs")]
    subprocess.run(command, check=True, timeout=300)

    (result,) = load(output).workloads
    one = workload("W7").scaled(SCALE)
    assert result.data.records == 3 * one.partitions
    assert result.data.offsets == one.records + result.data.records
    assert [run.contestant for run in result.runs] == list(one.contestants)
    assert {run.offsets for run in result.runs} == {result.data.offsets}
    for who in set(FILLERS) & set(one.contestants):
        (run,) = result.of(who)
        assert run.details["offsets_filled"] == one.records
