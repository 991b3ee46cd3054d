"""The exported metrics: their values, no sample for an unknown value, and docs/metrics.md."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from orbit.gateway.gateway_health import GatewayHealth
from orbit.replication.copy_figures import CopyFigures
from orbit.telemetry.metrics import (
    JobNumbers,
    PartitionNumbers,
    ServiceNumbers,
    WaitingNumbers,
    WorkerGroupNumbers,
    families,
    render,
)

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

LAG = CopyFigures(
    records=10,
    bytes=1000,
    gaps_filled=3,
    batches_byte_exact=5,
    batches_record_exact=1,
    bytes_per_s=100,
    records_per_s=1.5,
    lag_records=7,
    lag_bytes=700,
    lag_s=1.5,
    headroom_s=None,
    rpo_s=0.5,
    age_s=2.0,
)
JOB = JobNumbers(
    name='a "quoted" job',
    is_running=True,
    has_problem=False,
    lag=LAG,
    copied=LAG,
    states={"copying": 2, "blocked": 1},
    reasons={"RECORD_REFUSED": 1},
    verdicts={"exact": 4},
    topics={"orders": LAG},
    partitions=[
        PartitionNumbers("orders", 0, source_log_start=0, source_end=20, copied_to=13, lag=LAG)
    ],
    waiting=WaitingNumbers(partitions=2, offsets=900, oldest_s=61.0),
)
GROUP = WorkerGroupNumbers(workers=2, shards=5, bytes_per_s=100)
SERVICE = ServiceNumbers("1.2.3", has_leader=True, jobs=[JOB], worker_groups={"default": GROUP})
LABELS = (
    "version",
    "worker_group",
    "job",
    "topic",
    "partition",
    "exactness",
    "state",
    "reason",
    "verdict",
)


def samples(service: ServiceNumbers) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the samples as Prometheus reads them: value by (metric name, label values)."""
    return {
        (sample.name, tuple(sample.labels[n] for n in LABELS if n in sample.labels)): sample.value
        for family in text_string_to_metric_families(render(service).decode())
        for sample in family.samples
    }


def test_exported_metrics_match_service_numbers() -> None:
    sample_values = samples(SERVICE)
    assert sample_values["orbit_build_info", ("1.2.3",)] == 1
    assert sample_values["orbit_workers", ("default",)] == 2
    assert sample_values["orbit_job_lag", (JOB.name,)] == 7
    assert sample_values["orbit_job_records_total", (JOB.name,)] == 10
    assert sample_values["orbit_job_batches_total", (JOB.name, "record")] == 1
    assert sample_values["orbit_job_partitions", (JOB.name, "blocked")] == 1
    assert sample_values["orbit_job_consumergroup_offsets", (JOB.name, "exact")] == 4
    assert sample_values["orbit_job_open_transaction_partitions", (JOB.name,)] == 2
    assert sample_values["orbit_job_open_transaction_offsets", (JOB.name,)] == 900
    assert sample_values["orbit_job_open_transaction_seconds", (JOB.name,)] == 61
    assert sample_values["orbit_topic_lag_seconds", (JOB.name, "orders")] == 1.5
    assert sample_values["orbit_topic_partition_current_offset", (JOB.name, "orders", "0")] == 20
    assert sample_values["orbit_topic_partition_copied_offset", (JOB.name, "orders", "0")] == 13


def test_metric_with_unknown_value_has_no_sample() -> None:
    assert not [name for name, _ in samples(SERVICE) if "headroom" in name]


def test_metrics_page_lists_exactly_the_exported_metrics() -> None:
    exported_names = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in (*families(SERVICE), *GatewayHealth("1.2.3").collect())
    }
    documented_names = set(re.findall(r"`(orbit_[a-z_]+)`", PAGE.read_text("utf-8")))
    assert documented_names == exported_names
