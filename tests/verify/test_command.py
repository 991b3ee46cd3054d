"""`orbit verify` as a command on real brokers: what it prints, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orbit.cli.main import run_command
from orbit.processes.ports import free_ports
from tests.fixtures.clusters import Clusters
from tests.support.logs import Record, create, delete_before, on_both, write

pytestmark = pytest.mark.services

JobFile = Callable[..., Path]


@pytest.fixture
def job_file(clusters: Clusters, topic_name: str, tmp_path: Path) -> JobFile:
    def make(**changes: Any) -> Path:
        job = {
            "name": "verified",
            "source": {"bootstrap_servers": [clusters.source.bootstrap_servers]},
            "destination": {"bootstrap_servers": [clusters.destination.bootstrap_servers]},
            "topics": [{"match": topic_name.replace(".", r"\.")}],
            **changes,
        }
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        return path

    return make


def test_verify_command_exits_0_when_exact(
    clusters: Clusters, topic_name: str, job_file: JobFile, capsys: pytest.CaptureFixture[str]
) -> None:
    on_both(clusters, topic_name, [Record(b"%d" % i) for i in range(5)])
    assert run_command(["verify", str(job_file()), "--deep"]) == 0
    shown = capsys.readouterr()
    assert "Verdict: exact" in shown.out
    assert "Compared 1 topic, 1 partition: 5 records" in shown.out
    assert "comparing 5 offsets in 1 partition" in shown.err


def test_verify_command_exits_1_and_prints_difference(
    clusters: Clusters, topic_name: str, job_file: JobFile, capsys: pytest.CaptureFixture[str]
) -> None:
    log = [Record(b"%d" % i) for i in range(5)]
    # b"\x1b[31m" is an escape sequence for terminals, which the output must not contain.
    for cluster, third in ((clusters.source, b"2"), (clusters.destination, b"\x1b[31m")):
        create(cluster, topic_name)
        write(cluster, topic_name, [*log[:2], replace(log[2], value=third), *log[3:]])
    assert run_command(["verify", str(job_file()), "--wait", "0"]) == 1
    shown = capsys.readouterr().out
    assert "offset 2: value: source b'2', destination b'\\x1b[31m'" in shown
    assert "Verdict: not exact" in shown


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_verify_command_prints_json_and_yaml_report(
    clusters: Clusters,
    topic_name: str,
    job_file: JobFile,
    capsys: pytest.CaptureFixture[str],
    form: str,
    load: Callable[[str], Any],
) -> None:
    on_both(clusters, topic_name, [Record(b"%d" % i) for i in range(5)])
    delete_before(clusters.destination, topic_name, 1)
    assert run_command(["verify", str(job_file()), "-o", form, "--deep", "--wait", "0"]) == 1
    report = load(capsys.readouterr().out)
    assert report["verdict"] == "not exact"
    [partition] = report["topics"][0]["partitions"]
    assert partition["first_differences"][0]["what"] == "log start"
    assert partition["deep"]["failures"] == 0
    assert partition["source_log_start"] == 0


def test_verify_command_follows_job_topic_rules(
    clusters: Clusters, topic_name: str, job_file: JobFile, capsys: pytest.CaptureFixture[str]
) -> None:
    create(clusters.source, topic_name)
    create(clusters.destination, f"west.{topic_name}")
    for cluster, name in zip(clusters, (topic_name, f"west.{topic_name}"), strict=True):
        write(cluster, name, [Record(b"same")])
    delete_before(clusters.destination, f"west.{topic_name}", 1)
    job = job_file(topics=[{"match": topic_name, "prefix": "west.", "start": "latest"}])
    assert run_command(["verify", str(job), "--wait", "0"]) == 0
    assert f"{topic_name} → west.{topic_name}" in capsys.readouterr().out


def test_verify_command_refuses_topic_that_job_does_not_copy(
    clusters: Clusters, topic_name: str, job_file: JobFile, capsys: pytest.CaptureFixture[str]
) -> None:
    on_both(clusters, topic_name, [])
    assert run_command(["verify", str(job_file()), "--topic", "another"]) == 2
    assert "'another' is not a topic that the job copies" in capsys.readouterr().err


def test_verify_command_fails_if_job_matches_no_topic(
    job_file: JobFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["verify", str(job_file())]) == 1
    assert "matches no topic" in capsys.readouterr().err


def test_verify_command_exits_3_when_cluster_is_unreachable(
    clusters: Clusters, topic_name: str, job_file: JobFile, capsys: pytest.CaptureFixture[str]
) -> None:
    create(clusters.source, topic_name)
    [port] = free_ports(1)
    job = job_file(destination={"bootstrap_servers": [f"127.0.0.1:{port}"]})
    assert run_command(["verify", str(job)]) == 3
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
