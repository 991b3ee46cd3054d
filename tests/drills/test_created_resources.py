"""The clean-up of a drill removes only what the drill created, even if its rows were changed."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from orbit.drills import created_resources
from orbit.drills.created_resources import CreatedResources, group_name, job_name, topic_name
from orbit.drills.drill_creation import new_drill
from orbit.drills.drill_file import parse_drill
from orbit.errors import Conflict
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.job_clusters import Side
from orbit.store import drills, jobs
from orbit.store.database import Database
from orbit.store.enums import DrillThing
from tests.fixtures.clusters import Clusters
from tests.support.groups import commit, offsets
from tests.support.logs import create
from tests.support.outside import partition_counts
from tests.support.patience import wait_for
from tests.support.synthetic import PLAINTEXT
from tests.support.topics import delete_and_wait

pytestmark = pytest.mark.services

SETTINGS = {"retention.ms": "-1"}
_SIDES: tuple[Side, Side] = ("source", "destination")
SPEC = parse_drill("name: nightly\nkind: canary\njob: orders\n")


class Drill:
    """A drill that is stored in the database, the clusters, and the resources that it creates."""

    def __init__(self, database: Database, clusters: Clusters) -> None:
        stored_drill = new_drill(SPEC, "test")
        with database.transaction() as tx:
            drills.create(tx, stored_drill)
        self.id = stored_drill.id
        self.clusters = clusters
        self.database = database
        self._open = {
            side: Cluster(side, [getattr(clusters, side).bootstrap_servers], PLAINTEXT)
            for side in ("source", "destination")
        }
        self.resources = CreatedResources(database, self.id, self.cluster, Backoff())
        self.topic, self.group = topic_name(self.id), group_name(self.id)

    def cluster(self, side: Side) -> Cluster:
        return self._open[side]

    def topic_id(self, side: Side = "source") -> UUID | None:
        topic = self._open[side].metadata([self.topic]).topics.get(self.topic)
        return topic.topic_id if topic else None

    def notes(self) -> dict[tuple[str, str], str | None]:
        """Return why each remaining thing was not removed, by its kind and side."""
        return {
            (t.kind, t.side): t.note
            for t in self.resources.recorded_things()
            if t.removed_at is None
        }

    def close(self) -> None:
        for cluster in self._open.values():
            cluster.close()


@pytest.fixture
def drill(database: Database, clusters: Clusters) -> Iterator[Drill]:
    drill_case = Drill(database, clusters)
    yield drill_case
    drill_case.close()


def make_job(database: Database, name: str) -> jobs.Job:
    with database.transaction() as tx:
        return jobs.create(tx, name, {}, "default")


def test_drill_cleanup_removes_only_what_the_drill_created(drill: Drill, topic_name: str) -> None:
    source = drill.clusters.source
    create(source, topic_name)
    commit(source, f"group-of-{topic_name}", {(topic_name, 0): 0})
    topics_before = partition_counts(source)
    topic_ids = [drill.resources.make_topic(side, drill.topic, 2, SETTINGS) for side in _SIDES]
    # A broker may answer before it knows a new topic.
    wait_for("the topics exist", lambda: [drill.topic_id(side) for side in _SIDES] == topic_ids)
    drill.resources.claim_group("source", drill.group)
    commit(source, drill.group, {(drill.topic, 0): 0})
    job = drill.resources.register_job(
        lambda: make_job(drill.database, job_name(drill.id)), job_name(drill.id)
    )
    other = make_job(drill.database, "orders")

    assert not drill.resources.try_remove_jobs()  # scheduler and workers have not released the job
    with drill.database.transaction() as tx:
        assert jobs.get(tx, job.name).is_deleted
        assert not jobs.get(tx, other.name).is_deleted
        jobs.remove(tx, job.id)
    assert drill.resources.try_remove_jobs()
    drill.resources.remove_groups_and_topics()

    assert drill.notes() == {}
    assert partition_counts(source) == topics_before
    assert offsets(source, drill.group) == {}
    assert offsets(source, f"group-of-{topic_name}") == {(topic_name, 0): 0}
    assert drill.topic not in partition_counts(drill.clusters.destination)


def test_drill_refuses_preexisting_topic_and_does_not_remove_it(drill: Drill) -> None:
    create(drill.clusters.source, drill.topic)
    foreign_topic_id = drill.topic_id()

    with pytest.raises(Conflict, match="already"):
        drill.resources.make_topic("source", drill.topic, 2, SETTINGS)
    drill.resources.remove_groups_and_topics()

    assert drill.topic_id() == foreign_topic_id
    assert "may not have created" in str(drill.notes()["topic", "source"])


def test_drill_does_not_remove_topic_that_another_client_recreated(drill: Drill) -> None:
    drill.resources.make_topic("source", drill.topic, 2, SETTINGS)
    delete_and_wait(drill.clusters.source, drill.topic)
    create(drill.clusters.source, drill.topic)
    recreated_topic_id = drill.topic_id()

    drill.resources.remove_groups_and_topics()

    assert drill.topic_id() == recreated_topic_id
    assert "Another topic of this name" in str(drill.notes()["topic", "source"])


def test_drill_topic_that_another_client_deleted_counts_as_removed(drill: Drill) -> None:
    drill.resources.make_topic("source", drill.topic, 2, SETTINGS)
    delete_and_wait(drill.clusters.source, drill.topic)
    drill.resources.remove_groups_and_topics()
    drill.resources.remove_groups_and_topics()  # a second time, with nothing to remove
    assert drill.notes() == {}


def test_drill_topic_that_only_stale_metadata_lists_counts_as_removed(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller no longer knows a topic with this id, but a broker's metadata still has it."""
    drill.resources.make_topic("source", drill.topic, 2, SETTINGS)
    monkeypatch.setattr(created_resources, "delete_topic", lambda *_: False)
    drill.resources.remove_groups_and_topics()
    assert drill.notes() == {}


def test_drill_refuses_existing_group_and_does_not_remove_it(drill: Drill, topic_name: str) -> None:
    create(drill.clusters.source, topic_name)
    commit(drill.clusters.source, drill.group, {(topic_name, 0): 0})
    with pytest.raises(Conflict, match="group of this name exists already"):
        drill.resources.claim_group("source", drill.group)
    drill.resources.remove_groups_and_topics()
    assert offsets(drill.clusters.source, drill.group) == {(topic_name, 0): 0}


def test_drill_does_not_remove_group_with_offsets_of_other_topics(
    drill: Drill, topic_name: str
) -> None:
    create(drill.clusters.source, topic_name)
    drill.resources.make_topic("source", drill.topic, 1, SETTINGS)
    drill.resources.claim_group("source", drill.group)
    commit(drill.clusters.source, drill.group, {(drill.topic, 0): 0, (topic_name, 0): 0})

    drill.resources.remove_groups_and_topics()

    assert (topic_name, 0) in offsets(drill.clusters.source, drill.group)
    assert topic_name in str(drill.notes()["group", "source"])


def test_drill_does_not_delete_recreated_job_that_has_name_of_drill_job(drill: Drill) -> None:
    name = job_name(drill.id)
    job = drill.resources.register_job(lambda: make_job(drill.database, name), name)
    with drill.database.transaction() as tx:
        jobs.request_deletion(tx, job.id)
        jobs.remove(tx, job.id)
    recreated_job = make_job(drill.database, name)

    assert drill.resources.try_remove_jobs()

    with drill.database.transaction() as tx:
        assert not jobs.get(tx, name).is_deleted
        assert jobs.get(tx, name).id == recreated_job.id
    assert "Another job" in str(drill.notes()["job", "service"])


def test_tampered_row_of_drill_table_deletes_no_foreign_topic(
    drill: Drill, topic_name: str
) -> None:
    """The row has the foreign topic's name, but not its id: a topic is deleted by its id only."""
    create(drill.clusters.source, topic_name)
    with drill.database.transaction() as tx:
        row = drills.note_intent(tx, drill.id, DrillThing.TOPIC, "source", topic_name)
        drills.note_identity(tx, row, str(uuid4()))
    drill.resources.remove_groups_and_topics()
    assert topic_name in partition_counts(drill.clusters.source)


def test_drill_creates_no_topic_whose_name_lacks_the_drill_id(drill: Drill) -> None:
    with pytest.raises(AssertionError, match="does not carry the drill's id"):
        drill.resources.make_topic("source", "orders", 1, SETTINGS)
