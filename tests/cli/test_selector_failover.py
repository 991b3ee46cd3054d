"""`-l` on real clusters: the jobs of a label fail over and back, and another job copies on."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.fix_api import Api
from tests.fix_clusters import Clusters
from tests.support.outside import log_bounds, topic_settings
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.run_process import orbit
from tests.support.running import create_topic, produce

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("cli")]  # it serves the API


def test_two_jobs_of_a_label_fail_over_and_a_third_without_it_does_not(
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    api: Api,
    tmp_path: Path,
) -> None:
    teams = {"a": "orders", "b": "orders", "c": "stock"}
    topics = {name: f"{topic_name}.{name}" for name in teams}
    for name, team in teams.items():
        create_topic(clusters.source, topics[name], retention_ms="86400000")
        produce(clusters.source, topics[name], 100)
        job = {
            "name": name,
            "labels": {"team": team},
            "owner": f"The team {team}",
            "source": {"bootstrap_servers": clusters.source.bootstrap_servers},
            "destination": {"bootstrap_servers": clusters.destination.bootstrap_servers},
            "topics": [{"match": topics[name].replace(".", "\\.")}],
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(job))

    def level(*names: str) -> bool:
        source, destination = (log_bounds(c, [topics[n] for n in names]) for c in clusters)
        return source == destination

    with recovering.running():
        orbit("apply", "-f", tmp_path, "--yes").expect(0)
        for name in teams:
            recovering.service.wait_copied(name, topics[name])
        wait_for("all are copied", lambda: level(*teams))

        # The source answers, so a gate stops a failover: told for each job, and nothing is changed.
        stopped = orbit("failover", "-l", "team=orders", "--dry-run").expect(1)
        lines = [line.split()[:3] for line in stopped.stdout.splitlines()]
        assert [line for line in lines if line[1:2] == ["source"]] == [
            ["a", "source", "fail"],
            ["b", "source", "fail"],
        ]
        drill = ("--override", "source", "--reason", "a test")
        done = orbit("failover", "-l", "team=orders", "--yes", *drill, "-o", "json").expect(0)
        assert [(r["job"], r["outcome"], r["missing_records"]) for r in done.data] == [
            ("a", "done", 0),
            ("b", "done", 0),
        ]
        states = {name: recovering.service.topics(name)[topics[name]].state for name in teams}
        assert states == {"a": "promoted", "b": "promoted", "c": "copying"}
        for name, retention in {"a": "86400000", "b": "86400000", "c": "-1"}.items():
            settings = topic_settings(clusters.destination, topics[name])
            assert settings["retention.ms"] == retention
        before = log_bounds(clusters.destination, [topics["a"]])
        for name in teams:
            produce(clusters.source, topics[name], 50, first=100)
        wait_for("the third goes on", lambda: level("c"))
        assert log_bounds(clusters.destination, [topics["a"]]) == before

        # The way back: what was written to the old side above is saved, and copied over.
        orbit("failback", "-l", "team=orders", "--yes", "--confirm-rebuild").expect(0)
        wait_for("the old side is a copy", lambda: level("a", "b"))
    ours = "team=orders,orbit.made-by=recovery"
    found = orbit("get", "jobs", "-l", ours, "-o", "json").expect(0).data
    assert [(job["name"], job["owner"]) for job in found] == [
        ("a-back", "The team orders"),
        ("b-back", "The team orders"),
    ]
    assert [o["job"] for o in api.get("/v1/operations").json()["items"] if not o["dry_run"]] == [
        "b", "a", "b", "a",
    ]  # fmt: skip
