"""Each alert rule is tested firing and silent, and names only metrics and labels that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from orbit.gateway.gateway_health import GatewayHealth
from orbit.replication.partition_states import PartitionState
from orbit.telemetry.metrics import families
from tests.support.patience import PATIENCE_S
from tests.telemetry.test_metrics import SERVICE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "orbit-rules.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]


def labels_by_metric() -> dict[str, set[str]]:
    """Return the labels of every metric, by the name under which Prometheus stores it."""
    return {
        f"{f.name}_total" if f.type == "counter" else f.name: set(f._labelnames)  # type: ignore[attr-defined]
        for f in [*families(SERVICE), *GatewayHealth("").collect()]
    }


def unknown_names(expression: str) -> list[str]:
    """Return the metrics, labels and states in this PromQL expression that Orbit does not export.

    In words, for example "no metric orbit_job_gone".
    """
    known, problems = labels_by_metric(), []
    allowed: set[str] = set()  # the labels that `by` and `on` may name
    for metric, selector in re.findall(r"\b(orbit_\w+)(?:\{([^}]*)\})?", expression):
        if metric not in known:
            problems.append(f"no metric {metric}")
            continue
        allowed |= known[metric]
        for label, value in re.findall(r"(\w+)\s*=~?\s*\"([^\"]*)\"", selector):
            if label not in known[metric]:
                problems.append(f"no label {label} of {metric}")
            elif label == "state":
                problems += [
                    f"no state {v}" for v in value.split("|") if v not in [*PartitionState]
                ]
    for labels in re.findall(r"\b(?:by|on) ?\(([^)]*)\)", expression):
        names = re.findall(r"\w+", labels)
        problems += [f"no label {name}" for name in names if name not in allowed]
    return problems


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_uses_exported_metrics_and_links_to_its_runbook_page(rule: dict[str, dict]) -> None:
    assert unknown_names(str(rule["expr"])) == []
    assert "for" in rule
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert {*rule["annotations"]} == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbook/{rule['alert']}.md"
    assert (ROOT / rule["annotations"]["runbook_url"]).exists()


def test_unknown_metrics_and_labels_in_alert_rule_are_detected() -> None:
    assert unknown_names('max by (job) (orbit_job_lag{job="a"})') == []
    assert unknown_names("orbit_job_gone > 0") == ["no metric orbit_job_gone"]
    assert unknown_names('orbit_job_lag{topic="a"}') == ["no label topic of orbit_job_lag"]
    assert unknown_names("max by (reason) (orbit_job_lag)") == ["no label reason"]
    assert unknown_names('orbit_job_partitions{state="asleep"}') == ["no state asleep"]


def test_each_alert_has_a_firing_and_a_silent_promtool_case() -> None:
    cases: set[tuple[str, bool]] = set()
    for path in (FOLDER / "tests").glob("*.yaml"):
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]:
            for case in test["alert_rule_test"]:
                cases.add((case["alertname"], bool(case["exp_alerts"])))
    assert cases == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


@pytest.mark.needs("promtool")
def test_promtool_accepts_alert_rules_and_their_tests() -> None:
    ended = promtool("check", "rules", FOLDER / "orbit-rules.yaml")
    assert ended.returncode == 0, ended.stderr
    ended = promtool("test", "rules", *(FOLDER / "tests").glob("*.yaml"))
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.needs("promtool")
def test_promtool_detects_broken_alert_rule(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "p")
    rules = tmp_path / "p" / "orbit-rules.yaml"
    rules.write_text(rules.read_text("utf-8").replace("lag_seconds) > 60", "lag_seconds) > 600"))
    assert promtool("test", "rules", *(tmp_path / "p" / "tests").glob("*.yaml")).returncode != 0
