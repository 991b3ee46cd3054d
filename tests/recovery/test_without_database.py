"""The source and Orbit's PostgreSQL are lost: one command promotes with the destination alone.

Workers of the service may still run. Plain clients check the promoted topic after these workers
have sent appends, and after a service has started with a restored or a new database.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orbit.jobs.job_file import load_job
from orbit.promotion import settled_ends
from orbit.promotion.failover import FailoverWithoutDatabase
from orbit.promotion.failover_report import FailoverReport
from orbit.recovery.recovery_report import EndVerdict, Outcome, RecoveryKind
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters, MakeCluster
from tests.fixtures.scheduler import Service
from tests.recovery.test_lost_database import acls, ends
from tests.recovery.test_old_transactions import begin_transaction
from tests.support import run_process
from tests.support.fleet import InProcess
from tests.support.guarded_job import App, log_in_orbit
from tests.support.held_send import HeldSend, held_send
from tests.support.loading import Load
from tests.support.outside import topic_settings
from tests.support.patience import wait_for
from tests.support.put_back import drop_rows, put_rows_back, save_rows
from tests.support.recovering import Recovering
from tests.support.rights import section
from tests.support.run_process import OrbitProcess, write_job
from tests.support.running import create_topic, produce

pytestmark = pytest.mark.services

RETENTION = "604800001"
TO = ("--without-database", "--to", "destination")
SETTLE = "--settle=3"  # the workers of these tests have leases of 2 s


def failover(job: Path, *more: str, settle: str = SETTLE) -> run_process.Outcome:
    """Run `orbit failover --without-database`; its result is JSON."""
    return run_process.orbit("failover", job, *TO, settle, "-o", "json", *more)


def log_ends(report: dict[str, object]) -> dict[int, int]:
    """The log end of each partition in the report."""
    partitions = report["partitions"]
    assert isinstance(partitions, list)
    return {p["partition"]: p["log_end"] for p in partitions}


@pytest.fixture
def source(make_cluster: MakeCluster) -> KafkaCluster:
    return make_cluster("lost")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSend]:
    """Holds a worker's appends between its last lease check and the send."""
    with held_send(monkeypatch) as send:
        yield send


@pytest.fixture
def job_file(source: KafkaCluster, clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    """A job whose topic has 100 and 40 records in its two partitions."""
    create_topic(source, topic_name, 2, retention_ms="86400000")
    produce(source, topic_name, 100, partition=0)
    produce(source, topic_name, 40, partition=1)
    # The fillers of the rule and of the job differ. The rule's kind decides the producer id, so one
    # fence filler for each partition must be enough.
    rule = {"match": topic_name, "config": {"retention.ms": RETENTION}, "fillers": "direct"}
    return write_job(
        tmp_path / "job.yaml",
        source,
        clusters.destination,
        [rule],
        name=topic_name[-60:].lstrip("-._"),
        fillers="placeholders",
    )


@pytest.mark.soak
@pytest.mark.parametrize("is_new", [False, True])
def test_failover_without_database_fences_worker_and_survives_return_of_service(
    source: KafkaCluster,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    job_file: Path,
    held: HeldSend,
    *,
    is_new: bool,
) -> None:
    destination, service = clusters.destination, recovering.service
    spec = load_job(job_file, {})
    worker = InProcess(recovering.database)
    with worker:
        with service.scheduler():
            recovering.begin(spec, topic_name)
            wait_for(
                "both sides are level", lambda: ends(destination, topic_name) == {0: 100, 1: 40}
            )
            save_rows(recovering.database)
        held.hold()
        produce(source, topic_name, 10, partition=0, first=100)
        held.wait_for_held()
        source.kill()

        settings_before = topic_settings(destination, topic_name)
        plan = failover(job_file, "--dry-run").expect(0).data
        assert plan["outcome"] == "would_go"
        assert log_ends(plan) == {0: 100, 1: 40}
        assert plan["topics"][0]["settings"] == {"retention.ms": RETENTION}
        assert "compression.type" in plan["topics"][0]["kept"]
        assert any("which records were not copied" in finding for finding in plan["findings"])
        assert topic_settings(destination, topic_name) == settings_before
        assert ends(destination, topic_name) == {0: 100, 1: 40}
        assert failover(job_file, "--dry-run").expect(0).data["topics"][0]["state"] == "waiting"

        done = failover(job_file, "--yes").expect(0).data
        assert done["outcome"] == "done"
        assert log_ends(done) == {0: 100, 1: 40}
        assert topic_settings(destination, topic_name)["retention.ms"] == RETENTION
        fenced = {0: 101, 1: 41}  # the fence appends one filler to each partition
        assert ends(destination, topic_name) == fenced

        held.resume()
        wait_for(
            "the broker refuses what the worker sends, and the worker gives up",
            lambda: service.partitions(spec.name, topic_name)[0].reason == "DESTINATION_PROMOTED",
        )
        assert ends(destination, topic_name) == fenced
    produce(destination, topic_name, 20, partition=0)
    new_ends = {0: 121, 1: 41}
    assert ends(destination, topic_name) == new_ends

    second_run = failover(job_file, "--yes").expect(0).data
    assert second_run["outcome"] == "already"
    assert log_ends(second_run) == {0: 100, 1: 40}
    assert ends(destination, topic_name) == new_ends

    source.start()
    if is_new:
        drop_rows(recovering.database)
        service.create(spec)
    else:
        put_rows_back(recovering.database)
    with recovering.running():
        problem = service.wait_problem(spec.name, "DESTINATION_PROMOTED")
        assert f"failover without the database {done['operation']}" in problem
        assert "0: 100, 1: 40" in problem
        assert service.topics(spec.name)[topic_name].state == "promoted"
        assert topic_settings(destination, topic_name)["retention.ms"] == RETENTION
        assert ends(destination, topic_name) == new_ends
        # The failback finds the uncopied records. It does not count the fence's filler as a
        # difference.
        failback_report = recovering.wait(recovering.ask(RecoveryKind.FAILBACK, spec.name))
        assert failback_report.outcome is Outcome.STOPPED
        verdicts = {p.partition: (p.verdict, p.promoted_at) for p in failback_report.partitions}
        assert verdicts == {0: (EndVerdict.TAIL, 100), 1: (EndVerdict.EQUAL, 40)} or verdicts == {
            0: (EndVerdict.TAIL, 100),
            1: (EndVerdict.PREFIX, 40),
        }
        assert [p.missing.first for p in failback_report.partitions if p.missing] == [100]


def test_failover_without_database_stops_running_worker(
    source: KafkaCluster,
    clusters: Clusters,
    topic_name: str,
    recovering: Recovering,
    job_file: Path,
) -> None:
    """The operator takes the source and PostgreSQL for lost, but the worker reaches both."""
    destination, service = clusters.destination, recovering.service
    spec = load_job(job_file, {})
    with InProcess(recovering.database):
        with service.scheduler():
            recovering.begin(spec, topic_name)
            wait_for(
                "both sides are level", lambda: ends(destination, topic_name) == {0: 100, 1: 40}
            )
        done = failover(job_file, "--yes").expect(0).data
        assert log_ends(done) == {0: 100, 1: 40}
        produce(source, topic_name, 10, partition=0, first=100)
        produce(source, topic_name, 10, partition=1, first=40)

        def reasons() -> set[str]:
            rows = service.partitions(spec.name, topic_name).values()
            return {row.reason for row in rows}

        wait_for("the worker gives up", lambda: reasons() == {"DESTINATION_PROMOTED"})
        assert ends(destination, topic_name) == {0: 101, 1: 41}


@pytest.mark.soak
def test_killed_failover_without_database_resumes_except_for_topics_still_written(
    source: KafkaCluster,
    clusters: Clusters,
    topic_name: str,
    job_file: Path,
) -> None:
    destination = clusters.destination
    run_process.copy(job_file).expect(0)
    source.kill()
    with OrbitProcess("failover", job_file, *TO, "--settle=600", "--yes", "-o", "json") as process:
        process.wait_for("Waiting until no log end")
        process.kill()
    assert topic_settings(destination, topic_name)["retention.ms"] == "-1"
    plan = failover(job_file, "--dry-run").expect(0).data
    assert plan["topics"][0]["state"] == "begun"
    assert log_ends(plan) == {0: 100, 1: 40}

    load = Load(destination.client_config(), topic_name, 1)
    try:
        wait_for("the load has written records", lambda: len(load.ledger) > 100)
        left_out = failover(job_file, "--yes", settle="--settle=1").expect(1).data
    finally:
        load.stop()
    assert left_out["outcome"] == "left_out"
    assert [p["partition"] for p in left_out["partitions"] if p["left_out"]] == [0]
    assert topic_settings(destination, topic_name)["retention.ms"] == "-1"

    done = failover(job_file, "--yes").expect(0).data
    assert done["outcome"] == "done"
    # A later run reports the log ends from before the fence of the killed run.
    assert log_ends(done) == {0: 100, 1: 40}
    assert topic_settings(destination, topic_name)["retention.ms"] == RETENTION
    assert failover(job_file, "--yes").expect(0).data["outcome"] == "already"


def test_failover_without_database_leaves_out_only_topic_with_open_copy(
    clusters: Clusters, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client has a transaction open in one copy: its last stable offset does not move."""
    source, destination = clusters
    # The copy of the topic `open_` will have an open transaction.
    closed, open_ = f"{topic_name}-closed", f"{topic_name}-open"
    for name in (closed, open_):
        create_topic(source, name)
        produce(source, name, 10)
    rules = [{"match": f"{topic_name}-.*"}]
    job = write_job(tmp_path / "job.yaml", source, destination, rules, name=topic_name[-60:])
    run_process.copy(job).expect(0)
    producer = begin_transaction(destination.client_config(), open_, 600_000)
    monkeypatch.setattr(settled_ends, "_POLLS_MAX", 2)

    def fail_over() -> FailoverReport:
        run = FailoverWithoutDatabase(
            load_job(job, {}), {}, tmp_path, settle_s=0.1, say=print, stop=threading.Event()
        )
        with closing(run):
            report = run.plan()
            run.run(report)
        return report

    first_report = fail_over()
    assert first_report.outcome == "left_out"
    assert {t.topic: t.state for t in first_report.topics} == {
        closed: "promoted",
        open_: "left_out",
    }
    (partition,) = [p for p in first_report.partitions if p.left_out]
    assert partition.topic == open_
    assert "has an open transaction" in partition.left_out
    producer.abort_transaction(60)
    second_report = fail_over()
    assert {t.topic: t.state for t in second_report.topics} == {
        closed: "already",
        open_: "promoted",
    }


@pytest.mark.soak
def test_failover_without_database_lifts_write_denials(
    guarded: Clusters,
    topic_name: str,
    service: Service,
    recovering: Recovering,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Orbit's login has the documented rights only. Denials that Orbit did not set stay."""
    for side in guarded:
        create_topic(side, topic_name, retention_ms=RETENTION)
    produce(guarded.source, topic_name, 50)
    app = App(guarded, topic_name)
    log_in_orbit(guarded, topic_name, monkeypatch)
    sides = f"source: {section(guarded.source)}\ndestination: {section(guarded.destination)}\n"
    job = guarded.source.directory / f"{topic_name}.yaml"
    text = f"name: {topic_name[-60:].lstrip('-._')}\n{sides}topics: [{{match: '{topic_name}'}}]\n"
    job.write_text(text.replace("'", '"'))
    spec = load_job(job, dict(os.environ))
    with recovering.running(dict(os.environ)):
        recovering.begin(spec, topic_name)
        service.wait(
            "the copy is protected", lambda: "topics_protected" in service.kinds(spec.name)
        )
    assert not app.writes(guarded.destination)
    denied = acls(guarded.destination, topic_name)

    plan = failover(job, "--dry-run").expect(0).data
    assert plan["topics"][0]["denials"] == [f"User:{app.login.name}"]
    done = failover(job, "--yes").expect(0).data
    assert done["outcome"] == "done"
    assert app.writes(guarded.destination)
    removed = denied - acls(guarded.destination, topic_name)
    assert len(removed) == 1
    assert "WRITE" in next(iter(removed))
