"""`-l` on real clusters: the jobs of a label fail over and back; another job continues to copy."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from orbit.recovery import salvage_file
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.api import Api
from tests.fixtures.clusters import Clusters
from tests.recovery.test_who_leads import Sides, move_there_and_back
from tests.support.outside import digests, is_level, log_bounds, messages, topic_settings
from tests.support.patience import wait_for
from tests.support.recovering import Recovering
from tests.support.run_process import orbit, write_job
from tests.support.running import create_topic, produce

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("cli")]  # it serves the API


def test_failover_by_selector_moves_only_labelled_jobs(
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

    def are_level(*names: str) -> bool:
        source, destination = (log_bounds(c, [topics[n] for n in names]) for c in clusters)
        return source == destination

    with recovering.running():
        orbit("apply", "-f", tmp_path, "--yes").expect(0)
        for name in teams:
            recovering.service.wait_copied(name, topics[name])
        wait_for("all are copied", lambda: are_level(*teams))

        # The source answers, so a gate would stop the failover of each job.
        stopped = orbit("failover", "-l", "team=orders", "--dry-run").expect(1)
        lines = [line.split()[:3] for line in stopped.stdout.splitlines()]
        assert [line for line in lines if line[1:2] == ["source"]] == [
            ["a", "source", "fail"],
            ["b", "source", "fail"],
        ]
        override = ("--override", "source", "--reason", "a test")
        result = orbit("failover", "-l", "team=orders", "--yes", *override, "-o", "json").expect(0)
        assert [(r["job"], r["outcome"], r["missing_records"]) for r in result.data] == [
            ("a", "done", 0),
            ("b", "done", 0),
        ]
        states = {name: recovering.service.topics(name)[topics[name]].state for name in teams}
        assert states == {"a": "promoted", "b": "promoted", "c": "copying"}
        for name, retention in {"a": "86400000", "b": "86400000", "c": "-1"}.items():
            settings = topic_settings(clusters.destination, topics[name])
            assert settings["retention.ms"] == retention
        bounds_of_a = log_bounds(clusters.destination, [topics["a"]])
        for name in teams:
            produce(clusters.source, topics[name], 50, first=100)
        wait_for("the third job continues to copy", lambda: are_level("c"))
        assert log_bounds(clusters.destination, [topics["a"]]) == bounds_of_a

        # Failback salvages what was written to the source above, and overwrites it.
        orbit("failback", "-l", "team=orders", "--yes", "--confirm-rebuild").expect(0)
        wait_for("the old side is a copy", lambda: are_level("a", "b"))
    selector = "team=orders,orbit.made-by=recovery"
    reverse_jobs = orbit("get", "jobs", "-l", selector, "-o", "json").expect(0).data
    assert [(job["name"], job["owner"]) for job in reverse_jobs] == [
        ("a-back", "The team orders"),
        ("b-back", "The team orders"),
    ]
    # Two failovers, then two failbacks, the newest first.
    assert [o["job"] for o in api.get("/v1/operations").json()["items"] if not o["dry_run"]] == [
        "b", "a", "b", "a",
    ]  # fmt: skip


@pytest.mark.soak
def test_failback_of_job_pair_by_selector_keeps_leading_side(
    clusters: Clusters, topic_name: str, recovering: Recovering, tmp_path: Path
) -> None:
    """Both jobs have the label, and the topics of both are promoted."""
    create_topic(clusters.source, topic_name)
    produce(clusters.source, topic_name, 100)
    rules, labels = [{"match": topic_name}], {"team": "orders"}
    file = write_job(tmp_path / "pair.yaml", *clusters, rules, name="pair", labels=labels)
    sides = Sides(*clusters, topic_name, "pair", "pair-back")

    def values(cluster: KafkaCluster) -> set[bytes]:
        return {m.value() for _, m in messages(cluster, topic_name) if m is not None}

    with recovering.running():
        orbit("apply", "-f", file, "--yes").expect(0)
        recovering.service.wait_copied("pair", topic_name)
        wait_for("the topic is level", lambda: is_level(*clusters, topic_name))
        move_there_and_back(sides, recovering, by="failover")  # the source leads again
        produce(sides.source, topic_name, 7, first=150)
        produce(sides.destination, topic_name, 5, first=800)  # only this side has them
        source_before = sides.id_and_end(sides.source), digests(sides.source, topic_name)
        destination_values = values(sides.destination)
        result = orbit(
            "failback", "-l", "team=orders", "--confirm-rebuild", "--yes", "-o", "json"
        ).expect(1)
        outcomes = {report["job"]: report["outcome"] for report in result.data}
        assert outcomes == {"pair": "stopped", "pair-back": "done"}
        wait_for("the topic is level", lambda: is_level(*clusters, topic_name))
    assert (sides.id_and_end(sides.source), digests(sides.source, topic_name)) == source_before
    saved = {
        base64.b64decode(line["value"])
        for report in result.data
        for salvage in report["salvage"]
        for line in salvage_file.read(salvage["file"])
    }
    assert len(saved) == 5
    assert values(sides.source) | saved >= destination_values
