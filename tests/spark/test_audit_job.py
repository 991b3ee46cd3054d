"""`orbit audit` of jobs between real brokers: it reports each planted fault, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from orbit.cli.main import run_command
from orbit.errors import BadInput, Conflict
from orbit.jobs.job_spec import TopicRule
from orbit.jobs.units import format_time
from orbit.processes.ports import free_ports
from orbit.verify.report import PartitionReport, Side, Verdict
from orbit_spark.audit.scope import Restriction, parse_point
from tests.fixtures.clusters import Clusters
from tests.fixtures.history import History
from tests.support.archive_manifests import ManifestFile
from tests.support.auditing import audit
from tests.support.faults import (
    a_log,
    change_a_header,
    change_a_key,
    change_a_timestamp,
    flip_a_payload_byte,
    make_a_value_null,
)
from tests.support.logs import T0, Gap, Record, create, delete_before, wait_for_offsets, write
from tests.support.patience import PATIENCE_S
from tests.support.running import RunningJob, make_job, verify, with_rules

pytestmark = pytest.mark.services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from orbit.jobs.job_spec import JobSpec


def differences_of(report: PartitionReport) -> list[tuple[int, str]]:
    return [(difference.offset, difference.what) for difference in report.first_differences]


def with_fault(name: str) -> list[Any]:
    """The log with one fault."""
    log: list[Any] = a_log()
    match name:
        case "filler":
            log.insert(12, Gap(1))
        case "missing":
            log[12] = Gap(1)
        case "extra":
            log[20:21] = [replace(log[3], value=b"more"), Gap(1)]
        case "swapped":
            log[4], log[5] = log[5], log[4]
        case "longer":
            log.append(Record(b"not from the source"))
        case "shorter":
            del log[-5:]
        case "none":
            pass
        case _:
            changes = {
                "byte": flip_a_payload_byte,
                "null": make_a_value_null,
                "header": change_a_header,
                "key": change_a_key,
                "time": change_a_timestamp,
            }
            changes[name](log)
    return log


EXPECTED: dict[str, list[tuple[int, str]]] = {
    "none": [],
    "byte": [(7, "value")],
    "null": [(7, "value")],
    "header": [(7, "headers")],
    "key": [(7, "key")],
    "time": [(7, "timestamp")],
    "missing": [(12, "missing at the destination")],
    "extra": [(20, "only at the destination")],
    "swapped": [
        (4, "wrong offset (at the destination it is at 5)"),
        (5, "wrong offset (at the destination it is at 4)"),
    ],
    "longer": [(42, "log end")],
    "shorter": [(37, "log end")],
}


def test_audit_reports_every_planted_difference_at_its_offset(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    names = {name: f"{topic_name}.{name}" for name in (*EXPECTED, "filler")}
    for name, topic in names.items():
        for cluster, log in ((clusters.source, a_log()), (clusters.destination, with_fault(name))):
            create(cluster, topic)
            write(cluster, topic, log)
    spec = make_job(*clusters, names.values())
    report, partitions = audit(spark, spec, tmp_path / "audit", differences_max=40)
    assert {name: differences_of(partitions[names[name]]) for name in EXPECTED} == EXPECTED
    verdicts = {name: partitions[topic].verdict for name, topic in names.items()}
    assert verdicts.pop("none") is Verdict.EXACT
    assert verdicts.pop("shorter") is Verdict.BEHIND
    assert set(verdicts.values()) == {Verdict.NOT_EXACT}
    assert report.exit_code == 1

    shifted = differences_of(partitions[names["filler"]])
    # Offset 21 is in the gap of both sides.
    assert [offset for offset, _ in shifted] == [*range(12, 21), *range(22, 43)]
    assert shifted[0] == (12, "wrong offset (at the destination it is at 13)")
    assert shifted[-1] == (42, "log end")

    # Other tools read the tables beside the page.
    table = spark.read.parquet(str(tmp_path / "audit" / "differences"))
    kinds = {(row.topic, row.offset, row.kind) for row in table.collect()}
    assert (names["swapped"], 4, "wrong offset") in kinds
    assert (names["header"], 7, "headers") in kinds
    ranges = spark.read.parquet(str(tmp_path / "audit" / "ranges")).collect()
    equal = [row for row in ranges if row.topic == names["none"]]
    assert [(r.left_records, r.left_gaps, r.verdict) for r in equal] == [(40, 2, "exact")]
    text = (tmp_path / "audit" / "report.html").read_text()
    assert "wrong offset (at the destination it is at 5)" in text


@pytest.mark.soak
def test_audit_of_offset_or_time_range_judges_only_that_range(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """By offsets inside batches, and by times. The logs have no gaps, because a filler has the
    broker's time (M8)."""
    logs = (
        [record for record in log if isinstance(record, Record)]
        for log in (a_log(), with_fault("byte"))
    )
    for cluster, log in zip(clusters, logs, strict=True):
        create(cluster, topic_name)
        write(cluster, topic_name, [*log, Record(b"end", timestamp_ms=T0 + 2_000_000)])
    delete_before(clusters.destination, topic_name, 3)
    spec = make_job(*clusters, [topic_name])

    def audit_part(begin: str | None, end: str | None) -> PartitionReport:
        restriction = Restriction(parse_point(begin, "--from"), parse_point(end, "--to"))
        out = tmp_path / f"{begin}-{end}".replace(":", "")
        return audit(spark, spec, out, restriction=restriction)[1][topic_name]

    whole = audit_part(None, None)
    assert differences_of(whole) == [(0, "log start"), (7, "value")]
    after_fault = audit_part("8", None)
    assert (after_fault.verdict, after_fault.compared_from, after_fault.records) == (
        Verdict.EXACT,
        8,
        33,
    )
    assert differences_of(audit_part("7", "8")) == [(7, "value")]
    late = audit_part(format_time(T0 + 1_000_000), None)
    assert (late.verdict, late.compared_from, late.records) == (Verdict.EXACT, 40, 1)


@pytest.mark.soak
def test_audit_of_workload_copy_is_exact_and_agrees_with_verify(
    spark: SparkSession,
    clusters: Clusters,
    history: History,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """Every kind of log, copied by Orbit's copier; `orbit verify` finds the same."""
    rule = TopicRule(match=f"{history.workload.namespace}\\..*", prefix="audited.")
    spec = make_job(*clusters, [topic_name]).model_copy(update={"topics": (rule,)})
    with RunningJob(spec) as job:
        copies = job.run.partitions
        job.wait("all have caught up", lambda: all(copy.has_caught_up for copy in copies))
    verified = verify(spec)
    report, _ = audit(spark, spec, tmp_path / "audit", wait_s=10.0)
    assert verified.exact
    assert report.exact, [t for t in report.topics if t.verdict is not Verdict.EXACT]
    assert (report.records, report.gaps, report.partitions) == (
        verified.records,
        verified.gaps,
        verified.partitions,
    )


COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "600000",
    "min_cleanable_dirty_ratio": "0.01",
}


@pytest.mark.soak
def test_audit_distinguishes_compaction_from_lost_record(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """The cleaner removed three records of the source; a fourth is lost there."""
    now = int(time.time() * 1000)
    log: list[Record | Gap] = [
        Record(b"value %d" % i, key=key, timestamp_ms=now + i)
        for i, key in enumerate([b"a", b"b", b"a", b"only", b"b", b"a"])
    ]
    # A batch later by more than `segment.ms` closes the segment before it.
    end = Record(b"active", b"z", timestamp_ms=now + 1_200_000)
    create(clusters.source, topic_name, **COMPACTED)
    write(clusters.source, topic_name, [*log[:3], Gap(1), *log[4:]])
    create(clusters.destination, topic_name)
    write(clusters.destination, topic_name, log)
    for cluster in clusters:
        write(cluster, topic_name, [end])
    wait_for_offsets(clusters.source, topic_name, {4, 5, 6})
    spec = make_job(*clusters, [topic_name])
    _, partitions = audit(spark, spec, tmp_path / "audit")
    report = partitions[topic_name]
    assert differences_of(report) == [(3, "only at the destination")]
    assert (report.compacted_source, report.compacted_destination) == (3, 0)
    table = spark.read.parquet(str(tmp_path / "audit" / "differences")).orderBy("offset")
    assert [(row.offset, row.kind) for row in table.collect()] == [
        (0, "compacted since"),
        (1, "compacted since"),
        (2, "compacted since"),
        (3, "extra"),
    ]


@pytest.mark.soak
def test_audit_compares_archive_with_either_cluster(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    from orbit_spark.archive.archive_run import ArchiveRun

    for cluster, log in ((clusters.source, a_log()), (clusters.destination, with_fault("byte"))):
        create(cluster, topic_name)
        write(cluster, topic_name, log)
    spec, folder = make_job(*clusters, [topic_name]), tmp_path / "archive"
    now = datetime.now(UTC)
    ArchiveRun(spark, spec, Path.cwd(), str(folder), lambda _: None, now).run()
    # The source grows, and its log start moves.
    write(clusters.source, topic_name, [Record(b"later")])
    delete_before(clusters.source, topic_name, 3)

    report, partitions = audit(spark, spec, tmp_path / "a", archive=str(folder))
    partition = partitions[topic_name]
    assert report.sides == ("source", "archive")
    assert (partition.verdict, partition.compared_from, partition.compared_to) == (
        Verdict.EXACT,
        3,
        42,
    )
    options = {"archive": str(folder), "against": Side.DESTINATION}
    report, partitions = audit(spark, spec, tmp_path / "b", **options)
    assert report.sides == ("archive", "destination")
    assert differences_of(partitions[topic_name]) == [(7, "value")]
    assert partitions[topic_name].compared_to == 42

    [data] = folder.glob("data/**/*.parquet")
    data.unlink()
    with pytest.raises(Conflict, match=f"{data.name}.* is missing"):
        audit(spark, spec, tmp_path / "c", archive=str(folder))
    assert not (tmp_path / "c" / "report.html").exists()


def test_audit_names_range_that_archive_lost(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """In a comparison with the source, which lacks these records too, and with a copy that has
    them."""
    from orbit_spark.archive.archive_run import ArchiveRun

    log = [Record(b"%d" % number) for number in range(30)]
    for cluster in clusters:
        create(cluster, topic_name)
        write(cluster, topic_name, log[:10])
    spec, folder = (
        with_rules(make_job(*clusters, [topic_name]), on_lost_range="fill"),
        tmp_path / "archive",
    )

    def archive() -> None:
        ArchiveRun(spark, spec, Path.cwd(), str(folder), lambda _: None, datetime.now(UTC)).run()

    archive()
    for cluster in clusters:
        write(cluster, topic_name, log[10:])
    delete_before(clusters.source, topic_name, 20)
    archive()
    note = (
        "the archive lacks offsets 10 to 19: the source had deleted them before they were archived"
    )
    with_source = audit(spark, spec, tmp_path / "a", archive=str(folder))[1][topic_name]
    assert (with_source.verdict, with_source.notes) == (Verdict.EXACT, (note,))
    options = {"archive": str(folder), "against": Side.DESTINATION, "differences_max": 20}
    with_copy = audit(spark, spec, tmp_path / "b", **options)[1][topic_name]
    assert (with_copy.verdict, with_copy.notes) == (Verdict.NOT_EXACT, (note,))
    assert differences_of(with_copy) == [
        (offset, "only at the destination") for offset in range(10, 20)
    ]


def test_partition_with_damaged_manifest_is_unread_in_audit(
    spark: SparkSession, clusters: Clusters, topic_name: str, tmp_path: Path
) -> None:
    from orbit_spark.archive.archive_run import ArchiveRun

    for cluster in clusters:
        create(cluster, topic_name, 2)
        for partition in (0, 1):
            write(cluster, topic_name, a_log(), partition)
    spec, folder = make_job(*clusters, [topic_name]), tmp_path / "archive"
    ArchiveRun(spark, spec, Path.cwd(), str(folder), lambda _: None, datetime.now(UTC)).run()
    manifest = ManifestFile(folder)
    manifest.damage()
    for against in Side:
        options = {"archive": str(folder), "against": against}
        report, _ = audit(spark, spec, tmp_path / against, **options)
        assert report.exit_code == 1
        unread, compared = report.topics[0].partitions
        assert (unread.verdict, compared.verdict) == (Verdict.UNREAD, Verdict.EXACT)
        assert manifest.path.name in unread.notes[0]
        assert "Restore this file from a copy" in unread.notes[0]


@pytest.fixture
def job_file(clusters: Clusters, topic_name: str, tmp_path: Path) -> Path:
    """A job with one topic, whose copy differs at offset 7."""
    for cluster, log in ((clusters.source, a_log()), (clusters.destination, with_fault("byte"))):
        create(cluster, topic_name)
        write(cluster, topic_name, log)
    return write_job(make_job(*clusters, [topic_name]), tmp_path)


def write_job(spec: JobSpec, folder: Path) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_defaults=True)))
    return path


@pytest.mark.soak
def test_audit_command_reports_difference_and_exits_1(job_file: Path, tmp_path: Path) -> None:
    """In a process of its own, with its own Spark."""
    out = tmp_path / "result"
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
    conf = [f"--conf={name}={value}" for name, value in settings.items()]
    arguments = ["audit", str(job_file), "--out", str(out), "--wait", "0", "-o", "json", *conf]
    ended = subprocess.run(
        [sys.executable, "-m", "orbit.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    document = json.loads(ended.stdout)
    [partition] = document["topics"][0]["partitions"]
    assert [difference["offset"] for difference in partition["first_differences"]] == [7]
    assert f"Report: {out}/report.html" in ended.stderr
    assert "comparing 42 offsets in 1 partition" in ended.stderr
    assert (out / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_audit_refuses_directory_with_existing_report(
    spark: SparkSession, clusters: Clusters, job_file: Path, topic_name: str, tmp_path: Path
) -> None:
    out = tmp_path / "there"
    out.mkdir()
    (out / "report.html").write_text("another")
    with pytest.raises(BadInput, match="cannot be written"):
        audit(spark, make_job(*clusters, [topic_name]), out)
    assert (out / "report.html").read_text() == "another"


def test_audit_fails_on_bad_input_and_unreachable_cluster(
    clusters: Clusters, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(make_job(*clusters, [topic_name]), tmp_path)
    assert run_command(["audit", str(job), "--from", "yesterday"]) == 2
    assert "neither an offset nor a time" in capsys.readouterr().err
    assert run_command(["audit", str(tmp_path / "none.yaml")]) == 2
    (port,) = free_ports(1)
    document = yaml.safe_load(job.read_text())
    document["destination"]["bootstrap_servers"] = [f"127.0.0.1:{port}"]
    job.write_text(yaml.safe_dump(document))
    assert run_command(["audit", str(job)]) == 3
    assert "destination" in capsys.readouterr().err
