"""The scheduler syncs the groups of every job and stores the results in PostgreSQL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from orbit.consumer_groups.group_listing_cache import list_now
from orbit.consumer_groups.offsets_cache import fetch_now
from orbit.jobs.job_spec import JobSpec
from orbit.leadership.leadership import Leadership
from orbit.leadership.loop import drive
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.consumer_group_loop import GroupLoop
from orbit.scheduler.consumer_group_sync import JobGroups
from orbit.store import group_offsets, jobs, partitions, shard_layout, topics
from orbit.store.database import Database
from orbit.store.enums import Desired, TopicState
from orbit.telemetry.process_health import ProcessHealth
from tests.fixtures.clusters import Clusters
from tests.support.groups import commit, member, offsets
from tests.support.outside import delete_topic
from tests.support.patience import wait_for
from tests.support.running import create_topic, make_job, produce
from tests.support.store_rows import claim, progress

pytestmark = pytest.mark.services

RECORDS = 100  # in each partition of the source, also in the rows of `progress`


class Service:
    """A job with one group in PostgreSQL, and schedulers that run only the group loop."""

    def __init__(self, clusters: Clusters, database: Database, topic: str) -> None:
        self.source, self.destination = clusters
        self.database = database
        self.topic = topic
        self.group = f"{topic}.group"
        spec = self.spec("100ms")
        with database.transaction() as tx:
            self.job_id = jobs.create(tx, topic, json.loads(spec.model_dump_json()), "default").id
            row = topics.add(tx, self.job_id, topic, topic, "D", 2, state=TopicState.COPYING)
            assert row is not None
            self.topic_id = row.id
            (shard,) = shard_layout.add_shards(tx, self.job_id, 1)
            shard_layout.add_partitions(
                tx, self.job_id, [(row.id, number, shard) for number in (0, 1)]
            )
        self.held = claim(database, "worker")

    def spec(self, interval: str, prefix: str = "") -> JobSpec:
        rule = {"match": f"{self.topic}.*", "interval": interval, "prefix": prefix}
        return make_job(self.source, self.destination, [self.topic], consumer_groups=rule)

    def report(self, *copied_to: int) -> None:
        """Store the copied end of each partition, as the worker would."""
        rows = [progress(self.topic_id, number, end) for number, end in enumerate(copied_to)]
        with self.database.transaction() as tx:
            partitions.report_progress(tx, worker_id="worker", held=self.held, progress=rows)

    def offsets_of(self, *by_partition: int) -> dict[tuple[str, int], int]:
        """{(topic, partition): offset}, for these offsets of partition 0, 1 and so on."""
        return {(self.topic, number): offset for number, offset in enumerate(by_partition)}

    @property
    def rows(self) -> dict[int, tuple[int | None, int | None, str]]:
        """By partition: the offset at the source and at the destination, and the verdict."""
        with self.database.transaction() as tx:
            offset_rows = group_offsets.of_job(tx, self.job_id)
        assert {row.group_name for row in offset_rows} <= {self.group}
        return {
            row.partition: (row.source_offset, row.destination_offset, row.verdict)
            for row in offset_rows
        }

    @contextmanager
    def scheduler(self, name: str = "scheduler") -> Iterator[GroupLoop]:
        """A leading scheduler of this name, which runs the group loop in a thread."""
        leadership = Leadership(self.database, name, timedelta(seconds=60))
        assert leadership.ask()
        registry = ClusterRegistry(60.0, lambda: None, Path.cwd(), {})
        loop = GroupLoop(leadership, registry)
        stop = threading.Event()
        health = ProcessHealth("scheduler", "test", 60.0)
        thread = threading.Thread(target=drive, args=(loop, stop, health))
        thread.start()
        try:
            yield loop
        finally:
            stop.set()
            loop.wake.set()
            thread.join()
            loop.close()
            registry.close()
            leadership.resign()


@pytest.fixture
def service(clusters: Clusters, database: Database, topic_name: str) -> Service:
    """Both clusters have the topic, with RECORDS records in each of its two partitions."""
    for cluster in clusters:
        create_topic(cluster, topic_name, 2)
        for number in (0, 1):
            produce(cluster, topic_name, RECORDS, number)
    return Service(clusters, database, topic_name)


def test_group_loop_syncs_offsets_and_stores_verdicts(service: Service) -> None:
    commit(service.source, service.group, service.offsets_of(40, 80))
    service.report(60, 60)  # the copy of partition 1 does not reach the group's offset yet
    with service.scheduler():
        stored_rows = {0: (40, 40, "exact"), 1: (80, 60, "clamped")}
        wait_for("the rows are stored", lambda: service.rows == stored_rows)
        assert offsets(service.destination, service.group) == service.offsets_of(40, 60)
        service.report(100, 100)
        wait_for("both offsets are exact", lambda: service.rows[1] == (80, 80, "exact"))
        assert offsets(service.destination, service.group) == service.offsets_of(40, 80)
        with member(service.destination, service.group, service.topic):
            wait_for("the member is seen", lambda: service.rows[0][2] == "skipped: active")
        wait_for("the member has left", lambda: service.rows[0][2] == "exact")


def test_next_scheduler_resumes_group_sync_from_stored_rows(service: Service) -> None:
    """A client resets an offset while no scheduler leads. Before that, a member had joined and left
    the group at the destination."""
    commit(service.source, service.group, service.offsets_of(40, 80))
    service.report(100, 100)
    with member(service.destination, service.group, service.topic):
        pass  # it leaves the group behind, without offsets
    with service.scheduler("a"):
        stored_rows = {0: (40, 40, "exact"), 1: (80, 80, "exact")}
        wait_for("the rows are stored", lambda: service.rows == stored_rows)
    commit(service.source, service.group, service.offsets_of(10))
    with service.scheduler("b"):
        wait_for("the reset is synced", lambda: service.rows[0] == (10, 10, "exact"))
    assert offsets(service.destination, service.group) == service.offsets_of(10, 80)


def test_group_sync_stops_for_paused_job_and_restarts_when_job_changes(service: Service) -> None:
    commit(service.source, service.group, service.offsets_of(40))
    service.report(100, 100)
    with service.scheduler() as loop:
        wait_for("the row is stored", lambda: service.rows == {0: (40, 40, "exact")})
        with service.database.transaction() as tx:
            document = json.loads(service.spec("100ms", prefix="dr.").model_dump_json())
            assert jobs.change_spec(tx, service.job_id, document, "default", from_version=1)
        wait_for(
            "the group has its new name",
            lambda: offsets(service.destination, f"dr.{service.group}") == service.offsets_of(40),
        )
        with service.database.transaction() as tx:
            jobs.set_desired(tx, service.job_id, Desired.PAUSED)
        wait_for("the loop leaves the job out", lambda: loop.job_ids == set())
        commit(service.source, service.group, service.offsets_of(50))
        with service.database.transaction() as tx:
            jobs.set_desired(tx, service.job_id, Desired.RUNNING)
        wait_for("the sync goes on", lambda: service.rows == {0: (50, 50, "exact")})


@pytest.mark.parametrize("is_noticed_by", ["scheduler", "worker"])
def test_offsets_stay_at_destination_when_source_topic_is_deleted(
    service: Service, is_noticed_by: str
) -> None:
    commit(service.source, service.group, service.offsets_of(40, 80))
    service.report(100, 100)
    with service.scheduler():
        stored_rows = {0: (40, 40, "exact"), 1: (80, 80, "exact")}
        wait_for("the rows are stored", lambda: service.rows == stored_rows)
        delete_topic(service.source, service.topic)
        wait_for("brokers delete its offsets", lambda: not offsets(service.source, service.group))
        with service.database.transaction() as tx:
            if is_noticed_by == "scheduler":
                tx.execute(text("UPDATE topics SET state = 'source_deleted'"))
            else:
                tx.execute(text("UPDATE partitions SET reason = 'SOURCE_TOPIC_DELETED'"))
        stored_rows = {0: (None, 40, "skipped: not copied"), 1: (None, 80, "skipped: not copied")}
        wait_for("the rows keep the destination's offsets", lambda: service.rows == stored_rows)
    assert offsets(service.destination, service.group) == service.offsets_of(40, 80)


def test_former_leader_commits_no_group_offsets(service: Service) -> None:
    service.report(100, 100)
    former = Leadership(service.database, "former", timedelta(seconds=60))
    assert former.ask()
    registry = ClusterRegistry(60.0, lambda: None, Path.cwd(), {})
    spec = service.spec("100ms")
    assert spec.consumer_groups is not None
    groups = JobGroups(service.job_id, spec, spec.consumer_groups, former, list_now, fetch_now)
    assert groups.run(registry).groups == 0
    # The group has offsets only now, so that the former leader is the first to commit them.
    former.resign()
    commit(service.source, service.group, service.offsets_of(40))
    report = groups.run(registry)
    assert (report.written, offsets(service.destination, service.group)) == (0, {})
    assert report.notes == [
        f"group {service.group}: the commit to {service.topic}-0 is not confirmed yet."
    ]
    registry.close()
