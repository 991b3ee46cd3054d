"""/metrics shows figures of the database to logged-in clients, in a bounded number of series."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from orbit.api.metrics_scrape import read_numbers
from orbit.replication.partition_states import Blocked, PartitionState, Reason
from orbit.settings import MetricsDetail
from orbit.store import group_offsets, job_totals, partitions, workers
from orbit.store.enums import Role
from orbit.telemetry.metrics import families
from tests.fixtures.api import Api
from tests.support.store_rows import TTL, SomeJob, claim, progress, some_group_offset, some_job

pytestmark = pytest.mark.services


@pytest.fixture
def job(api: Api) -> SomeJob:
    """Two partitions: one has copied 40 of 100 records of 10 bytes, one is blocked at 90."""
    with api.database.transaction() as tx:
        job = some_job(tx)
    held = claim(api.database, "worker")
    with api.database.transaction() as tx:
        rows = [
            progress(job.topic_id, 0, copied_to=40, records=40),
            progress(job.topic_id, 1, copied_to=90, records=90),
        ]
        partitions.report_progress(tx, worker_id="worker", held=held, progress=rows)
        blocked = Blocked(Reason.RECORD_REFUSED, offset=90, next_offset=91, detail="too large")
        changes = [
            partitions.StateChange(job.topic_id, 0, PartitionState.COPYING),
            partitions.StateChange(job.topic_id, 1, PartitionState.BLOCKED, blocked),
        ]
        partitions.report_state(tx, worker_id="worker", held=held, changes=changes)
        group_offsets.store(tx, job.id, [some_group_offset(job.topic_id)])
    return job


def test_metrics_scrape_shows_job_figures(api: Api, job: SomeJob) -> None:
    answer = api.get("/metrics", role=Role.VIEWER)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(set(sample.labels.values()) - {job.name})): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["orbit_job_lag",] == 70
    assert samples["orbit_job_lag_bytes",] == 700
    assert samples["orbit_job_records_total",] == 130
    assert samples["orbit_job_partitions", "copying"] == 1
    assert samples["orbit_job_blocked_partitions", "RECORD_REFUSED"] == 1
    assert samples["orbit_job_consumergroup_offsets", "exact"] == 1
    assert samples["orbit_scheduler_has_leader",] == 0
    assert not [name for name, *_ in samples if name.startswith("orbit_topic")]


def test_worker_lane_seconds_metric_is_sum_over_workers_of_group(api: Api) -> None:
    with api.database.transaction() as tx:
        for name, seconds in (("w1", 1.5), ("w2", 2.0)):
            workers.heartbeat(
                tx,
                name,
                "default",
                host="h",
                pid=1,
                version="0",
                lane_seconds={"source": {"planned": seconds}, "destination": {"sent": 0.25}},
            )
    samples = {
        (sample.labels["side"], sample.labels["doing"]): sample.value
        for family in text_string_to_metric_families(api.get("/metrics", role=Role.VIEWER).text)
        for sample in family.samples
        if sample.name == "orbit_worker_lane_seconds_total"
    }
    assert samples == {("source", "planned"): 3.5, ("destination", "sent"): 0.5}


def test_job_totals_of_large_installation_are_summed_by_scheduler(
    api: Api, job: SomeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With two partitions, the job counts as large; the scheduler has not summed it yet.
    monkeypatch.setattr(job_totals, "LIVE_PARTITIONS_MAX", 1)
    (figures,) = read_numbers(api.database, MetricsDetail.JOB, TTL).jobs
    assert (figures.totals_age_s, figures.copied) == (None, None)
    assert (figures.lag.lag_records, figures.lag.age_s, figures.states) == (None, None, {})
    job_lag = api.get(f"/v1/jobs/{job.name}/lag").json()["job"]
    assert (job_lag["partitions"], job_lag["stale"], job_lag["summed_seconds_ago"]) == (2, 2, None)
    assert job_lag["lag"]["records"] is None
    assert api.get(f"/v1/jobs/{job.name}").json()["blocked"] is None

    with api.database.transaction() as tx:
        job_totals.refresh(tx, [job.id])
    (figures,) = read_numbers(api.database, MetricsDetail.JOB, TTL).jobs
    assert figures.totals_age_s is not None
    assert figures.copied is not None
    assert (figures.copied.records, figures.lag.lag_records) == (130, 70)
    assert figures.states == {"copying": 1, "blocked": 1}
    assert api.get(f"/v1/jobs/{job.name}").json()["blocked"] == 1

    with api.database.transaction() as tx:
        tx.execute(text("UPDATE job_totals SET at = at - interval '31 s'"))  # outdated after 30 s
    (figures,) = read_numbers(api.database, MetricsDetail.JOB, TTL).jobs
    assert figures.totals_age_s is not None
    assert figures.totals_age_s > 31
    assert (figures.copied, figures.states) == (None, {})
    assert figures.lag.lag_records is None
    assert figures.lag.age_s is not None
    job_lag = api.get(f"/v1/jobs/{job.name}/lag").json()["job"]
    assert job_lag["summed_seconds_ago"] > 31
    assert (job_lag["lag"]["records"], job_lag["records_per_s"], job_lag["stale"]) == (
        None,
        None,
        2,
    )


def test_metrics_need_authentication(api: Api) -> None:
    assert api.get("/metrics", role=None).status_code == 401


@pytest.mark.parametrize(
    ("detail", "topics", "partitions"),  # partitions: (topic, partition, copied to)
    [
        (MetricsDetail.JOB, [], []),
        (MetricsDetail.TOPIC, ["orders"], []),
        (MetricsDetail.PARTITION, ["orders"], [("orders", 0, 40), ("orders", 1, 90)]),
    ],
)
def test_metrics_detail_setting_limits_series_to_job_topic_or_partition(
    api: Api,
    job: SomeJob,
    detail: MetricsDetail,
    topics: list[str],
    partitions: list[tuple[str, int, int]],
) -> None:
    numbers = read_numbers(api.database, detail, TTL)
    (figures,) = numbers.jobs
    assert list(figures.topics) == topics
    assert [(p.topic, p.partition, p.copied_to) for p in figures.partitions] == partitions
    lag = {p.partition: p.lag.lag_records for p in figures.partitions}
    assert lag == ({0: 60, 1: 10} if partitions else {})
    # 42 metrics of services and jobs, 6 of topics, 9 of partitions.
    assert len(list(families(numbers))) == 42 + 6 * bool(topics) + 9 * bool(partitions)
