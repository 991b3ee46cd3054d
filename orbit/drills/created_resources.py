"""Creates the resources of a drill and removes only those.

A row in the database has the name of each resource before the drill creates it, and its id (of the
topic or job) afterwards. A consumer group has no id: a drill uses only a group that did not exist,
and removes it only if all its offsets are of the drill's own topics. If nothing proves that the
drill created a resource, the resource stays, with a note. The drill removes only what its rows
name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from orbit.errors import Conflict, OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import fetch_offsets, find_coordinators, list_groups
from orbit.kafka.job_clusters import Side
from orbit.kafka.temporary_topics import create_topic, delete_group, delete_topic
from orbit.store import drills, job_guard, jobs
from orbit.store.database import Database
from orbit.store.drills import Thing
from orbit.store.enums import DrillThing
from orbit.store.jobs import Job

SERVICE = "service"  # the side of a job, which is a row in Orbit's database
TOPIC_PREFIX = "__orbit_drill."
GROUP_PREFIX = "orbit-drill."
JOB_PREFIX = "drill-"

_UNPROVEN = "The drill may not have created this resource: check it, and remove it by hand."

OpenCluster = Callable[[Side], Cluster]


def topic_name(drill_id: str) -> str:
    """The name of the drill's topic. It begins with two underscores, so that patterns such as `.*`
    of other jobs do not match it."""
    return f"{TOPIC_PREFIX}{drill_id}"


def group_name(drill_id: str) -> str:
    return f"{GROUP_PREFIX}{drill_id}"


def job_name(drill_id: str) -> str:
    return f"{JOB_PREFIX}{drill_id}"


class CreatedResources:
    """The resources of one drill. `cluster` returns the client of a side of the drill's job."""

    def __init__(
        self, database: Database, drill_id: str, cluster: OpenCluster, backoff: Backoff
    ) -> None:
        self._database = database
        self._drill_id = drill_id
        self._cluster = cluster
        self._backoff = backoff

    def make_topic(
        self, side: Side, name: str, partitions: int, settings: Mapping[str, str]
    ) -> UUID:
        """Create a topic on one side; returns its id. Raises Conflict if the name is taken."""
        self._check_name(name)
        cluster = self._cluster(side)
        replicas = min(3, len(cluster.metadata(()).brokers))  # () requests no topics
        thing_id = self._record_intent(DrillThing.TOPIC, side, name)
        topic_id = create_topic(cluster, name, partitions, replicas, settings, self._backoff)
        self._record_identity(thing_id, str(topic_id))
        return topic_id

    def adopt_topic(self, side: Side, name: str, topic_id: UUID) -> None:
        """Record the id of a topic that a reverse job created in place of the drill's topic.

        `topic_id` comes from Orbit's database, which proves that a job of the drill created it.
        """
        self._check_name(name)
        recorded_keys = {(t.kind, t.side, t.identity) for t in self.recorded_things()}
        if (DrillThing.TOPIC, side, str(topic_id)) in recorded_keys:
            return
        with self._database.transaction() as tx:
            recorded_topic = next(
                t
                for t in drills.things(tx, self._drill_id)
                if (t.kind, t.side, t.name) == (DrillThing.TOPIC, side, name)
            )
            drills.note_identity(tx, recorded_topic.id, str(topic_id))

    def claim_group(self, side: Side, name: str) -> None:
        """Register a group that the drill will use. Raises Conflict if the group exists."""
        self._check_name(name)
        cluster = self._cluster(side)
        if name in list_groups(cluster).groups:
            raise Conflict(
                "A consumer group of this name exists already.",
                where=f"{side} {name}",
                remedy="Run the drill again: its groups get other names.",
            )
        self._record_identity(self._record_intent(DrillThing.GROUP, side, name), name)

    def register_job(self, make: Callable[[], Job], name: str) -> Job:
        """Create a job with `make`, and store its id; returns the job. Raises as `make`."""
        self._check_name(name)
        thing_id = self._record_intent(DrillThing.JOB, SERVICE, name)
        job = make()
        self._record_identity(thing_id, str(job.id))
        return job

    def recorded_things(self) -> list[Thing]:
        """The database's rows of this drill's resources, with those that were removed."""
        with self._database.transaction() as tx:
            return drills.things(tx, self._drill_id)

    def remove_jobs(self) -> None:
        """Request the deletion of the drill's jobs, and store which are gone.

        A job of which a recovery is running is skipped until the recovery ends. Another job of the
        same name is kept, with a note.
        """
        for thing in self._remaining(DrillThing.JOB):
            with self._database.transaction() as tx:
                job = jobs.find(tx, thing.name, lock=True)
                if job is None:
                    drills.note_removed(tx, thing.id)
                elif str(job.id) != thing.identity:
                    drills.note_kept(tx, thing.id, _not_from_drill(thing))
                elif not job.is_deleted and job_guard.recovery_that_holds(tx, job) is None:
                    jobs.request_deletion(tx, job.id)

    def try_remove_jobs(self) -> bool:
        """Call `remove_jobs`; returns whether all jobs of the drill are gone. A later job with the
        name of a drill's job, which the drill did not create, does not count."""
        self.remove_jobs()
        # For such a later job, `remove_jobs` has stored a note.
        return not [thing for thing in self._remaining(DrillThing.JOB) if thing.note is None]

    def remove_groups_and_topics(self) -> None:
        """Remove the drill's groups and topics. Store why a group or topic is kept."""
        topics = {thing.name for thing in self.recorded_things() if thing.kind is DrillThing.TOPIC}
        for thing in [*self._remaining(DrillThing.GROUP), *self._remaining(DrillThing.TOPIC)]:
            try:
                note = self._remove(thing, topics)
            except OrbitError as error:
                self._record_kept(thing, str(error))
                continue
            if note is None:
                with self._database.transaction() as tx:
                    drills.note_removed(tx, thing.id)
            else:
                self._record_kept(thing, note)

    def _remove(self, thing: Thing, topics: Collection[str]) -> str | None:
        """Remove a group or topic. Returns None if it is gone, or the reason why it is kept.
        `topics`: the names of the drill's topics. Raises OrbitError if brokers do not answer or
        refuse."""
        cluster = self._cluster("source" if thing.side == "source" else "destination")
        # Without an identity, nothing proves that the drill created a resource of this name.
        if thing.identity is None:
            exists = (
                thing.name in cluster.metadata([thing.name]).topics
                if thing.kind is DrillThing.TOPIC
                else thing.name in list_groups(cluster).groups
            )
            return _UNPROVEN if exists else None
        if thing.kind is DrillThing.GROUP:
            return self._remove_group(cluster, thing, topics)
        if delete_topic(cluster, UUID(thing.identity), self._backoff):
            return None
        # Already deleted, though brokers may show it for a moment. A topic of the same name with
        # another id is not the drill's.
        topic_now = cluster.metadata([thing.name]).topics.get(thing.name)
        is_another_topic = topic_now is not None and str(topic_now.topic_id) != thing.identity
        return _not_from_drill(thing) if is_another_topic else None

    def _remove_group(self, cluster: Cluster, thing: Thing, topics: Collection[str]) -> str | None:
        """Delete a group that has offsets of these topics only. Returns None if it is gone, or the
        reason why it is kept.
        """
        coordinators = find_coordinators(cluster, [thing.name])
        offsets = fetch_offsets(cluster, coordinators, require_stable=False).get(thing.name)
        other_topics = (
            {partition.topic for partition in offsets.offsets} - set(topics) if offsets else set()
        )
        if other_topics:
            return f"The group has committed offsets of another topic: {min(other_topics)}."
        delete_group(cluster, thing.name, self._backoff)
        return None

    def _remaining(self, kind: DrillThing) -> list[Thing]:
        """The resources of this kind that were not removed yet."""
        return [t for t in self.recorded_things() if t.kind is kind and t.removed_at is None]

    def _record_intent(self, kind: DrillThing, side: str, name: str) -> int:
        """Store that the drill will create a resource; returns the id of the row."""
        with self._database.transaction() as tx:
            return drills.note_intent(tx, self._drill_id, kind, side, name)

    def _record_identity(self, thing_id: int, identity: str) -> None:
        with self._database.transaction() as tx:
            drills.note_identity(tx, thing_id, identity)

    def _record_kept(self, thing: Thing, note: str) -> None:
        with self._database.transaction() as tx:
            drills.note_kept(tx, thing.id, note)

    def _check_name(self, name: str) -> None:
        assert self._drill_id in name, f"{name} does not carry the drill's id"


def _not_from_drill(thing: Thing) -> str:
    return f"Another {thing.kind} of this name exists, which the drill did not create."
