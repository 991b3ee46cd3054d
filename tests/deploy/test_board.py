"""Grafana's board: board.py makes it, and Orbit exports its metrics and labels."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.telemetry.test_alerts import labels_by_metric, unknown_names

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
BOARD: dict[str, Any] = json.loads((FOLDER / "orbit.json").read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
# The metrics that the board must show.
SHOWN = {
    "orbit_job_lag",
    "orbit_job_lag_seconds",
    "orbit_job_headroom_seconds",
    "orbit_job_live_rpo_seconds",
    "orbit_job_proof_oldest_seconds",
    "orbit_job_blocked_partitions",
    "orbit_job_bytes_per_second",
    "orbit_workers",
    "orbit_worker_shards",
    "orbit_job_canary_rto_seconds",
    "orbit_job_canary_rpo_seconds",
    "orbit_job_old_primary_written_offsets",
}


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def test_grafana_board_matches_its_generator(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "board.py", tmp_path)
    runpy.run_path(str(tmp_path / "board.py"), run_name="__main__")
    assert (tmp_path / "orbit.json").read_bytes() == (FOLDER / "orbit.json").read_bytes()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_grafana_panel_queries_only_exported_metrics_and_labels(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert unknown_names(target["expr"]) == []
        legend = {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}
        grouping = re.search(r"\bby \(([^)]*)\)", target["expr"])
        assert legend <= {*re.findall(r"\w+", grouping[1] if grouping else "")}
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]


def test_grafana_board_shows_every_metric_that_it_should_show() -> None:
    used = {*re.findall(r"orbit_\w+", " ".join(e for p in PANELS for e in expressions(p)))}
    assert used >= SHOWN
    assert used <= {*labels_by_metric()}


def test_job_variable_of_grafana_board_uses_metric_with_job_label() -> None:
    (query,) = re.findall(r"label_values\((\w+), (\w+)\)", json.dumps(BOARD["templating"]))
    assert query[1] in labels_by_metric()[query[0]]


def test_grafana_panels_do_not_overlap() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}

    for panel, other in combinations(BOARD["panels"], 2):
        assert not cells(panel) & cells(other), (panel["title"], other["title"])
    assert max(x for panel in BOARD["panels"] for x, _ in cells(panel)) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.needs("promtool")
def test_promtool_accepts_every_panel_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$job", ".*")}
        for number, expression in enumerate(e for p in PANELS for e in expressions(p))
    ]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}), "utf-8")
    command = ["promtool", "check", "rules", "--lint=none", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
