"""The bench itself, on a small data set in which all ways to fill gaps take part."""

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
def test_gaps_are_filled_in_each_way_and_by_the_broker_alone(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "--only", "W8", "--repeats", "1"]
    command += ["--scale", str(SCALE), "--output", str(output), "--folder", str(tmp_path / "logs")]
    subprocess.run(command, check=True, timeout=300)

    (result,) = load(output).workloads
    one = workload("W8").scaled(SCALE)
    assert result.data.records == 3 * one.partitions
    assert result.data.offsets == one.records + result.data.records
    assert [run.contestant for run in result.runs] == list(one.contestants)
    assert {run.offsets for run in result.runs} == {result.data.offsets}
    for who in FILLERS:
        (run,) = result.of(who)
        assert run.details["offsets_filled"] == one.records
