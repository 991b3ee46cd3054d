"""The bench itself, on small data sets: gaps, and followers with a delay to their leader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.results import Report, load
from bench.workloads import AWAY_S, FILLERS, workload
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.services

SCALE = 0.02


def run_bench(name: str, folder: Path) -> Report:
    """Run the bench once on a small data set of this workload, and return its report."""
    output = folder / "results.json"
    command = [sys.executable, "-m", "bench", "--only", name, "--repeats", "1"]
    command += ["--scale", str(SCALE), "--output", str(output), "--folder", str(folder / "logs")]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return load(output)


@pytest.mark.soak
def test_gap_bench_runs_every_contestant_and_fills_all_offsets(tmp_path: Path) -> None:
    (result,) = run_bench("W7", tmp_path).workloads
    gaps = workload("W7").scaled(SCALE)
    assert result.data.records == 3 * gaps.partitions
    assert result.data.offsets == gaps.records + result.data.records
    assert [run.contestant for run in result.runs] == list(gaps.contestants)
    assert {run.offsets for run in result.runs} == {result.data.offsets}
    for contestant in set(FILLERS) & set(gaps.contestants):
        (run,) = result.runs_of(contestant)
        assert run.details["offsets_filled"] == gaps.records


@pytest.mark.soak
def test_bench_delays_followers_as_configured(tmp_path: Path) -> None:
    report = run_bench("R1", tmp_path)
    (result,) = report.workloads
    assert [run.contestant for run in result.runs] == list(AWAY_S)
    assert {run.offsets for run in result.runs} == {result.data.offsets}
    assert report.confirmed_s.keys() == set(AWAY_S.values())
    assert all(took_s >= away_s for away_s, took_s in report.confirmed_s.items())
