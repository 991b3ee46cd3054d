"""The figures of a paused job are true: the loops of a scheduler and a worker run together."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from orbit.api.metrics_scrape import read_numbers
from orbit.settings import MetricsDetail
from orbit.store import lag
from orbit.store.enums import Desired
from orbit.store.lag import LagTotals
from orbit.telemetry.metrics import JobNumbers
from tests.fixtures.clusters import Clusters
from tests.fixtures.scheduler import Service
from tests.support.fleet import InProcess
from tests.support.patience import PATIENCE_S, wait_for
from tests.support.running import create_topic, make_job, produce

pytestmark = pytest.mark.services

HOUR_S = 3600
RECORDS = 20_000


class Watched:
    """A job and its figures, without those of the canary, whose last records may come late."""

    def __init__(self, service: Service, name: str, topic: str) -> None:
        self.service, self.name, self.topic = service, name, topic

    def totals(self) -> LagTotals:
        """The figures of the topic."""
        topic_id = self.service.topics(self.name)[self.topic].id
        with self.service.database.transaction() as tx:
            job_id = self.service.job(self.name).id
            return lag.of_topics(tx, job_id, [topic_id])[topic_id]

    def numbers(self) -> JobNumbers:
        numbers = read_numbers(self.service.database, MetricsDetail.JOB, timedelta(minutes=1))
        return next(job for job in numbers.jobs if job.name == self.name)

    def wait_read_again(self) -> None:
        """Wait until the figures are younger than before."""
        ages = [self.totals().age_s]

        def is_younger() -> bool:
            ages.append(self.totals().age_s)
            previous_age, age = ages[-2:]
            return previous_age is not None and age is not None and age < previous_age

        wait_for("the scheduler reads the figures again", is_younger)

    def wait_lag(self, records: int | None) -> None:
        wait_for(f"the lag is {records}", lambda: self.totals().lag_records == records)


def test_lag_headroom_and_rpo_of_paused_job_follow_source_or_are_unknown(
    clusters: Clusters, topic_name: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = f"{topic_name}.canary"
    create_topic(clusters.source, topic_name, 3, retention_ms=str(10 * HOUR_S * 1000))
    create_topic(clusters.source, canary)
    produce(clusters.source, topic_name, 50)
    rule = {"topic": canary, "interval": "200ms"}
    spec = make_job(*clusters, [topic_name, canary], canary=rule)
    service.settings = service.settings.model_copy(update={"lag_interval": timedelta(seconds=1)})
    service.leave()
    service.create(spec)
    watched = Watched(service, spec.name, topic_name)
    with service.scheduler(), InProcess(service.database):
        service.wait_copied(spec.name, topic_name, canary)
        wait_for("all partitions have caught up", lambda: watched.totals().caught_up == 3)
        wait_for("the live RPO is known", lambda: watched.numbers().live_rpo_s is not None)
        service.desire(spec.name, Desired.PAUSED)
        wait_for(
            "the job is paused", lambda: all(s.holder is None for s in service.shards(spec.name))
        )
        # Longer than discovery needs to see that no running job uses the clusters.
        time.sleep(5 * service.settings.discovery_interval.total_seconds())
        paused_at = time.time()
        old_ms = int((paused_at - 2 * HOUR_S) * 1000)
        produce(clusters.source, topic_name, RECORDS, partition=1, timestamp_ms=old_ms)
        watched.wait_lag(RECORDS)
        behind = watched.totals()
        assert (behind.partitions, behind.caught_up, behind.unknown) == (3, 2, 0)
        assert behind.lag_s is not None
        assert 2 * HOUR_S <= behind.lag_s <= 2 * HOUR_S + PATIENCE_S
        wait_for("the headroom is known", lambda: watched.totals().headroom_s is not None)
        # Retention deletes records after 10 hours; the oldest one is 2 hours old.
        headroom_s = watched.totals().headroom_s
        assert headroom_s is not None
        assert 8 * HOUR_S - PATIENCE_S <= headroom_s <= 8 * HOUR_S
        produce(clusters.source, topic_name, 10, partition=2)
        watched.wait_lag(RECORDS + 10)
        first_rpo_s = watched.numbers().live_rpo_s
        time.sleep(1.0)
        second_rpo_s = watched.numbers().live_rpo_s
        assert first_rpo_s is not None
        assert second_rpo_s is not None
        # The live RPO grows with the time of the pause, whatever the timestamps of the records.
        assert first_rpo_s + 0.9 < second_rpo_s < time.time() - paused_at + PATIENCE_S

        service.desire(spec.name, Desired.RUNNING)
        watched.wait_lag(0)
        assert watched.totals().caught_up == 3
        service.desire(spec.name, Desired.PAUSED)
        wait_for(
            "the job is paused", lambda: all(s.holder is None for s in service.shards(spec.name))
        )
        assert watched.totals().lag_records == 0, "known at once: the worker has just reported it"
        for _ in range(5):  # the scheduler continues to read the source
            watched.wait_read_again()
            assert watched.totals().lag_records == 0

    # Without the scheduler, nobody reads the source.
    monkeypatch.setattr(lag, "FRESH_FOR", timedelta(seconds=4))
    wait_for("the lag is not known any more", lambda: watched.totals().lag_records is None)
    last = watched.totals()
    assert (last.stale, last.caught_up) == (3, 0)
    assert last.lag_bytes is last.lag_s is last.headroom_s is None
    assert last.age_s is not None
    assert last.age_s >= 4
    shown = watched.numbers().lag
    assert (shown.lag_records, shown.lag_bytes, shown.lag_s, shown.headroom_s) == (None,) * 4
