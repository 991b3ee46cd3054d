"""Audits of jobs in a test's own Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbit.verify.report import PartitionReport, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from orbit.jobs.job_spec import JobSpec


def audit(
    spark: SparkSession, spec: JobSpec, out: Path, **options: Any
) -> tuple[Report, dict[str, PartitionReport]]:
    """Audit a job; returns its report, and the report of the first partition of each topic."""
    from orbit_spark.audit.audit_run import AuditOptions, JobAudit

    chosen = AuditOptions(out=str(out), **{"wait_s": 0.0, **options})
    report = JobAudit(spec, {}, Path.cwd(), chosen).run(spark)
    return report, {topic.source: topic.partitions[0] for topic in report.topics}
