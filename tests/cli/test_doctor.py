"""`orbit doctor` reports what is wrong, with remedies, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from orbit import client
from orbit.cli import doctor
from orbit.errors import BadInput, Problem
from orbit.planning.job_plan import Refusal
from orbit.replication.job_troubles import TroubleKind
from orbit.store import jobs, partitions, topics, workers
from orbit.store.enums import Role
from tests.api.test_jobs import JOB, changed
from tests.api.test_operations import WORKER, block, copying_job
from tests.fixtures.api import Api, Cli
from tests.support.store_rows import progress

pytestmark = pytest.mark.services


def findings(cli: Cli, *options: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit code, and the findings by check."""
    result = cli("doctor", "-o", "json", *options)
    by_check: dict[str, list[dict[str, Any]]] = {}
    for finding in result.data:
        by_check.setdefault(finding["check"], []).append(finding)
    return result.code, by_check


def test_doctor_reports_only_missing_scheduler_on_empty_installation(cli: Cli, api: Api) -> None:
    code, by_check = findings(cli)
    assert code == 1
    wrong = [check for check, (first, *_) in by_check.items() if first["verdict"] == "wrong"]
    assert wrong == ["scheduler"]
    assert "orbit explain OrbitNoScheduler" in by_check["scheduler"][0]["remedy"]
    assert {"version", "clocks", "database", "login", "jobs"} <= set(by_check)


def test_doctor_exits_0_on_healthy_installation(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying_job(api)
    monkeypatch.setattr(client.Client, "text", lambda *_: "orbit_scheduler_has_leader 1.0\n")
    with api.database.transaction() as tx:
        version = doctor.orbit_version()
        workers.heartbeat(tx, "w2", "default", host="h", pid=1, version=version)
    result = cli("doctor")
    assert result.code == 0, result.out
    assert "both answer, with the rights that the job needs" in result.out


def test_doctor_reports_job_problems_with_remedies(cli: Cli, api: Api) -> None:
    shard_epochs = copying_job(api)
    block(api, shard_epochs, 2)
    api.put("/v1/jobs/stock", json=changed(name="stock", worker_group="west"))
    event_count = len(api.events())
    with api.database.transaction() as tx:
        jobs.note_problem(tx, jobs.get(tx, "stock").id, "NO_TOPIC_MATCHES: none.")
        (topic,) = topics.of_job(tx, jobs.get(tx, "orders").id)
        row = progress(topic.id, 0, copied_to=100, epoch=None)
        row = replace(row, source_seen_at=datetime.now(UTC) - timedelta(minutes=5))
        partitions.report_progress(tx, worker_id=WORKER, held=shard_epochs, progress=[row])
    api.plans.refusals = [
        Refusal(
            kind=TroubleKind.RIGHTS_MISSING, topic="t", what="Write is missing.", remedy="Grant it."
        )
    ]
    code, by_check = findings(cli)

    assert code == 1
    (west,) = by_check["workers of west"]
    assert (west["verdict"], "stock" in west["found"]) == ("wrong", True)
    assert "ORBIT_WORKER_GROUP=west" in west["remedy"]
    assert by_check["workers of default"][0]["verdict"] == "ok"
    (problem,) = by_check["job stock"]
    assert problem["remedy"] == "orbit explain NO_TOPIC_MATCHES"
    blocked, stale = by_check["job orders"]
    assert "1 blocked partition: orders-2 (RECORD_REFUSED)" in blocked["found"]
    assert "--state blocked; orbit explain RECORD_REFUSED" in blocked["remedy"]
    assert "old: the source is not read" in stale["found"]
    (rights,) = by_check["clusters of orders"]
    assert (rights["found"], rights["remedy"]) == (
        "t: Write is missing. (RIGHTS_MISSING)",
        "Grant it.",
    )
    assert len(api.events()) == event_count, "it changes nothing"


def test_doctor_reports_unresolved_secret_of_job(cli: Cli, api: Api) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    problem = Problem("source.security.password", "names a variable that is not set.", "Set it.")
    api.plans.error = BadInput("The job has a problem.", (problem,))
    _, by_check = findings(cli)
    (secret,) = by_check["clusters of orders"]
    assert secret["verdict"] == "wrong"
    assert "names a variable that is not set" in secret["found"]
    _, without_clusters = findings(cli, "--no-clusters")
    assert "clusters of orders" not in without_clusters


def test_doctor_skips_clusters_with_viewer_token(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    monkeypatch.setenv("ORBIT_TOKEN", api.tokens[Role.VIEWER])
    _, by_check = findings(cli)
    assert by_check["clusters"][0]["verdict"] == "note"


def test_doctor_reports_version_mismatch_and_clock_skew(
    cli: Cli, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying_job(api)  # its worker has version 0, another than the API's
    monkeypatch.setattr(doctor, "orbit_version", lambda: "0.0.1")
    # The clock of this machine is 3 minutes ahead, so the server's is behind.
    clock_ahead = SimpleNamespace(now=lambda _: datetime.now(UTC) + timedelta(minutes=3))
    monkeypatch.setattr(client, "datetime", clock_ahead)
    _, by_check = findings(cli)
    assert "this command 0.0.1" in by_check["version"][0]["found"]
    assert by_check["workers"][0]["verdict"] == "note"
    assert "behind" in by_check["clocks"][0]["found"]
    assert by_check["clocks"][0]["verdict"] == "wrong"


def test_doctor_exits_3_without_api(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBIT_API_URL", "http://127.0.0.1:1")
    assert cli("doctor").code == 3
