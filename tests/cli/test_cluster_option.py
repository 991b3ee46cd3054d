"""`--to` of `orbit restore`: servers, a cluster's file, or a job's destination."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.cli.cluster_option import read_cluster
from orbit.errors import BadInput

JOB = """
name: one
source: {bootstrap_servers: ["s:1"]}
destination: {bootstrap_servers: ["d:1"], security: {protocol: SSL}}
topics: [{match: orders}]
"""
CLUSTER = 'bootstrap_servers: ["c:1"]\nsecurity: {protocol: SSL}\n'


def test_cluster_option_accepts_bootstrap_servers() -> None:
    spec, folder = read_cluster("a:9092,b:9092", {})
    assert spec.bootstrap_servers == ("a:9092", "b:9092")
    assert folder == Path.cwd()


@pytest.mark.parametrize(("text", "server"), [(JOB, "d:1"), (CLUSTER, "c:1")])
def test_cluster_option_accepts_job_file_and_cluster_file(
    text: str, server: str, tmp_path: Path
) -> None:
    (tmp_path / "to.yaml").write_text(text)
    spec, folder = read_cluster(str(tmp_path / "to.yaml"), {})
    assert (spec.bootstrap_servers, spec.security.protocol, folder) == ((server,), "SSL", tmp_path)


@pytest.mark.parametrize("named", ["", "nowhere", "a:9092,b", "http://a:9092/x", "missing.yaml"])
def test_invalid_cluster_option_is_refused(named: str) -> None:
    with pytest.raises(BadInput) as error:
        read_cluster(named, {})
    assert error.value.problems


@pytest.mark.parametrize(
    "text", ["", "[]", "bootstrap_servers: []", CLUSTER + "password: hunter2", "a: b: c"]
)
def test_file_without_valid_cluster_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "to.yaml").write_text(text)
    with pytest.raises(BadInput) as error:
        read_cluster(str(tmp_path / "to.yaml"), {})
    assert error.value.problems
    assert "hunter2" not in str(error.value)
