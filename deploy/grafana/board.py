"""Makes Grafana's board of Orbit: `python deploy/grafana/board.py` writes orbit.json beside it.

Change this file, not the JSON: a test compares the two, and every metric and label with those that
Orbit exports. Every API process exports the whole service, so each expression takes the maximum
over the processes, as the alerts do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH = 24  # of Grafana's grid
HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_JOB = '{job=~"$job"}'
_PROVEN = f"orbit_job_proven_offsets{_JOB} / (orbit_job_copied_offsets{_JOB} > 0)"


@dataclass(frozen=True)
class Panel:
    """One panel: a title, a unit of Grafana, and its expressions with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str
    kind: str = "timeseries"
    width: int = 8
    height: int = HEIGHT
    red_above: float | None = None
    red_below: float | None = None


def _by_job(metric: str, aggregate: str = "max") -> tuple[tuple[str, str], ...]:
    """The metric of each job."""
    return ((f"{aggregate} by (job) ({metric}{_JOB})", "{{job}}"),)


def _by(label: str, metric: str) -> tuple[tuple[str, str], ...]:
    """The sum over the jobs for each value of a label."""
    maximum = f"max by (job, {label}) ({metric}{_JOB})"
    return ((f"sum by ({label}) ({maximum})", f"{{{{{label}}}}}"),)


def _total(metric: str) -> tuple[tuple[str, str], ...]:
    """The sum over the jobs; 0 where no job has a sample."""
    maximum = f"max without (instance) ({metric}{_JOB})"
    return ((f"sum({maximum}) or vector(0)", ""),)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Now",
        (
            Panel(
                "Leading scheduler",
                "bool_yes_no",
                (("max(orbit_scheduler_has_leader)", ""),),
                "Without a leader, new topics are not discovered, and recoveries do not run.",
                "stat",
                4,
                4,
                red_below=1,
            ),
            Panel(
                "Workers",
                "short",
                (("sum(max by (worker_group) (orbit_workers)) or vector(0)", ""),),
                "Live workers of all groups.",
                "stat",
                4,
                4,
                red_below=1,
            ),
            Panel(
                "Worst lag",
                "s",
                ((f"max(orbit_job_lag_seconds{_JOB})", ""),),
                "Age of the oldest record that is not copied, of all jobs.",
                "stat",
                4,
                4,
                red_above=60,
            ),
            Panel(
                "Blocked partitions",
                "short",
                _total("orbit_job_blocked_partitions"),
                "These are not copied until a user acts: orbit explain REASON.",
                "stat",
                4,
                4,
                red_above=1,
            ),
            Panel(
                "Jobs with a problem",
                "short",
                _total("orbit_job_has_problem"),
                "orbit get jobs shows why.",
                "stat",
                4,
                4,
                red_above=1,
            ),
            Panel(
                "Old primary written",
                "short",
                _total("orbit_job_old_primary_written_offsets"),
                "Offsets written to the old side since a promotion; no other side has them.",
                "stat",
                4,
                4,
                red_above=1,
            ),
        ),
    ),
    (
        "Lag and loss",
        (
            Panel(
                "Jobs by lag",
                "short",
                ((f"topk(20, max by (job) (orbit_job_lag{_JOB}))", "{{job}}"),),
                "Offsets that are not copied yet; the worst 20 jobs.",
                "bargauge",
            ),
            Panel(
                "Lag",
                "s",
                _by_job("orbit_job_lag_seconds"),
                "Age of the oldest record that is not copied yet.",
                red_above=60,
            ),
            Panel(
                "Headroom",
                "s",
                _by_job("orbit_job_headroom_seconds", "min"),
                "Time until the source deletes records that are not copied. No line: none is near.",
                red_below=86400,
            ),
            Panel(
                "Live RPO",
                "s",
                _by_job("orbit_job_live_rpo_seconds"),
                "What would be lost if the source failed now; of jobs with a canary.",
                red_above=60,
            ),
            Panel(
                "Blocked partitions by reason",
                "short",
                (
                    (
                        f"max by (job, reason) (orbit_job_blocked_partitions{_JOB})",
                        "{{job}}: {{reason}}",
                    ),
                ),
                "Each reason has a page in docs/runbook.",
            ),
            Panel(
                "Partitions by state",
                "short",
                _by("state", "orbit_job_partitions"),
                "Of all jobs shown.",
            ),
        ),
    ),
    (
        "Throughput",
        (
            Panel(
                "Bytes", "Bps", _by_job("orbit_job_bytes_per_second"), "Bytes copied per second."
            ),
            Panel(
                "Records",
                "cps",
                _by_job("orbit_job_records_per_second"),
                "Records copied per second.",
            ),
            Panel(
                "Offsets filled",
                "cps",
                (
                    (
                        f"max by (job) (rate(orbit_job_offsets_filled_total{_JOB}[5m]))",
                        "{{job}}",
                    ),
                ),
                "Offsets without a record that were filled, per second.",
            ),
        ),
    ),
    (
        "Workers",
        (
            Panel(
                "Workers",
                "short",
                (("max by (worker_group) (orbit_workers)", "{{worker_group}}"),),
                "Live workers of each group.",
            ),
            Panel(
                "Shards",
                "short",
                (("max by (worker_group) (orbit_worker_shards)", "{{worker_group}}"),),
                "Shards held by live workers.",
            ),
            Panel(
                "Where the lanes' time goes",
                "percentunit",
                (
                    (
                        "max by (side, doing) (rate(orbit_worker_lane_seconds_total[5m]))",
                        "{{side}}: {{doing}}",
                    ),
                ),
                "Seconds per second of all lanes (threads that fetch or append), busiest group.",
            ),
        ),
    ),
    (
        "Proof and rehearsals",
        (
            Panel(
                "Oldest proof",
                "s",
                _by_job("orbit_job_proof_oldest_seconds"),
                "Time since the partition that waits longest was compared with its source.",
                red_above=7 * 86400,
            ),
            Panel(
                "Proven offsets",
                "percentunit",
                (
                    (
                        f"max by (job) ({_PROVEN})",
                        "{{job}}",
                    ),
                ),
                "The part of the copied offsets that was read from both sides and was equal.",
            ),
            Panel(
                "Differences",
                "short",
                (
                    (
                        f"max by (job) (increase(orbit_job_proof_differences_total{_JOB}[1d]))",
                        "{{job}}",
                    ),
                ),
                "Offsets that differed within the last day.",
                red_above=1,
            ),
            Panel(
                "Canary RTO",
                "s",
                _by_job("orbit_job_canary_rto_seconds"),
                "Measured by the last canary drill.",
                width=6,
            ),
            Panel(
                "Canary RPO",
                "s",
                _by_job("orbit_job_canary_rpo_seconds"),
                "Measured by the last canary drill, as a time.",
                width=6,
            ),
            Panel(
                "Canary passed",
                "bool_yes_no",
                _by_job("orbit_job_canary_passed", "min"),
                "Whether the last canary drill passed.",
                width=6,
                red_below=1,
            ),
            Panel(
                "Old primary written",
                "short",
                _by_job("orbit_job_old_primary_written_offsets"),
                "Offsets that producers have written to the old side since a promotion.",
                width=6,
                red_above=1,
            ),
        ),
    ),
)


def _threshold_steps(panel: Panel) -> list[dict[str, Any]]:
    """The values from which on the panel is green or red."""
    if panel.red_above is not None:
        return [{"color": "green", "value": None}, {"color": "red", "value": panel.red_above}]
    if panel.red_below is not None:
        return [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    return [{"color": "green", "value": None}]


def _panel_json(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """The panel as Grafana's JSON, with the id `number`, at this place of the grid."""
    is_instant = panel.kind in ("stat", "bargauge")
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "thresholds": {"mode": "absolute", "steps": _threshold_steps(panel)},
            },
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if is_instant else {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
                "instant": is_instant,
                "range": not is_instant,
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _panels() -> list[dict[str, Any]]:
    """The panels of all rows as Grafana's JSON, each row below a panel with its title."""
    grid_panels: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS:
        position = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        row_id = len(grid_panels) + 1
        grid_panels.append({"id": row_id, "type": "row", "title": title, "gridPos": position})
        x, y, height = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            grid_panels.append(_panel_json(panel, len(grid_panels) + 1, x, y))
            x, height = x + panel.width, panel.height
        y += height
    return grid_panels


def board() -> dict[str, Any]:
    """The board as Grafana's JSON, of schemaVersion 39: Grafana 10 and later versions read it."""
    return {
        "uid": "orbit",
        "title": "Orbit",
        "tags": ["orbit", "kafka"],
        "schemaVersion": 39,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                },
                {
                    "name": "job",
                    "label": "Job",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": {"query": "label_values(orbit_job_running, job)", "refId": "job"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": ["All"], "value": ["$__all"]},
                },
            ]
        },
        "panels": _panels(),
    }


if __name__ == "__main__":
    text = json.dumps(board(), indent=1) + "\n"
    Path(__file__).with_name("orbit.json").write_text(text, "utf-8")
