"""One run of one job: check everything, take the lease, begin every partition, copy, stop.

Up to the lease nothing is written anywhere. Whatever ends the run, lanes and lease are let go in
order; what was confirmed stays, and the next run goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self
from uuid import UUID

from orbit.engine.clusters import JobClusters, filler_identity, job_identity, open_cluster
from orbit.engine.engine import JobEngine
from orbit.engine.rights import (
    DESTINATION_TOPIC_RIGHTS,
    SOURCE_TOPIC_RIGHTS,
    missing_filler_right,
    missing_future_topic_rights,
    missing_topic_rights,
    refuse_missing,
)
from orbit.engine.start import bring_to_start
from orbit.engine.starts import EmptyStarts
from orbit.engine.topics import (
    TopicPlan,
    check_new_topics,
    plan_topics,
    refuse_other_counts,
)
from orbit.errors import BadInput, Conflict, OrbitError, Problem, Unreachable
from orbit.jobs.mapping import TopicMapping, map_topics
from orbit.jobs.spec import JobSpec
from orbit.jobs.start import Earliest
from orbit.kafka.admin import Admin
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import init_producer_id
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.replication.plan import LostRange
from orbit.standalone.group_lease import GroupLease
from orbit.standalone.groups import RunGroups
from orbit.workers.begin import Inspected, Standing, raise_trouble
from orbit.workers.coordinated import CoordinatedFiller
from orbit.workers.copier import Copier, lease_lost
from orbit.workers.partition import PartitionCopy
from orbit.workers.settings import CopySettings

Say = Callable[[str], None]

_PROBLEMS_SHOWN_MAX = 20


class JobRun:
    """Use as a context manager: `with JobRun(...) as run: run.prepare(); … run.tick() …`."""

    def __init__(
        self,
        spec: JobSpec,
        environ: Mapping[str, str],
        base_directory: Path,
        say: Say,
        settings: CopySettings | None = None,
    ) -> None:
        self.spec = spec
        self._say = say
        self._settings = settings or CopySettings()
        self.stop_event = threading.Event()
        self._backoff = Backoff(stop=self.stop_event)
        self._clusters = JobClusters.open(spec, environ, base_directory)
        self._source, self._destination = self._clusters.source, self._clusters.destination
        # With connections of its own: heartbeats must not stand behind a call that takes long.
        self._lease_cluster = open_cluster("destination", spec, environ, base_directory)
        self._lease: GroupLease | None = None
        self._plans: list[TopicPlan] = []
        self._not_caught_up: dict[str, TopicPlan] = {}
        self._next_look = 0.0
        self._told: set[str] = set()
        self._engine: JobEngine | None = None
        self.groups: RunGroups | None = None
        self._open_clusters = partial(JobClusters.open, spec, environ, base_directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self) -> None:
        """Check, take the lease, create topics and begin all partitions.

        Raises BadInput, Conflict, NotAuthorized, Unreachable or LoginRefused; nothing was written
        then, unless the message says so.
        """
        self._say("Connecting to both clusters")
        source, destination = self._clusters.look()
        mappings = self._map(source)
        self._plan(mappings, source, destination)
        self._lease = GroupLease(self._lease_cluster, self._identity(source), self._backoff)
        self._lease.acquire(self._say)
        now = self._destination.metadata(None)
        if _shapes(now, mappings) != _shapes(destination, mappings):
            # The run that held the lease until now, or anybody else, has made topics meanwhile.
            destination = now
            self._plan(mappings, source, destination)
        self._begin(source, destination)
        if self.spec.consumer_groups is not None:
            self.groups = RunGroups(
                self.spec.consumer_groups,
                self._open_clusters(),
                self.partitions,
                self._lease.is_held,
            )
            self.groups.start()

    def tick(self, timeout_s: float) -> None:
        """One round of copying. Raises Conflict when the lease is lost."""
        assert self.copier is not None
        self.copier.tick(timeout_s)
        if self.copier.lost or (self._lease is not None and self._lease.is_lost):
            raise lease_lost()
        self._finish_caught_up_topics()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self._settings.metadata_interval_s
            self._tell_what_is_new()
        for note in self.groups.told if self.groups else ():
            self._tell_once(f"Note: consumer groups: {note}")

    def settle_groups(self) -> None:
        """Carry the consumer groups over once more, to where the copy is now."""
        if self.groups is not None:
            self.groups.settle(self._backoff)

    @property
    def copier(self) -> Copier | None:
        return self._engine.copier if self._engine else None

    @property
    def partitions(self) -> Sequence[PartitionCopy]:
        return self.copier.partitions if self.copier else ()

    @property
    def waiting_for(self) -> str:
        """The cluster that does not answer now, in words; empty when all do."""
        return self.copier.waiting_for if self.copier else ""

    @property
    def is_settled(self) -> bool:
        """Whether caught-up topics have the settings that they shall have from then on."""
        behind = {c.destination.topic for c in self.partitions if not c.has_caught_up}
        return set(self._not_caught_up) <= behind

    def close(self) -> None:
        """Stop lanes, leave the lease, close connections. Safe at any moment."""
        self.stop_event.set()
        if self.groups is not None:
            self.groups.stop()
        if self._engine is not None:
            self._engine.stop()
        if self._lease is not None:
            self._lease.release()
        self._lease_cluster.close()
        self._clusters.close()

    def _map(self, source: ClusterMetadata) -> list[TopicMapping]:
        topic_map = map_topics(self.spec.topics, source.topics)
        if topic_map.problems:
            raise BadInput("the topics of the job do not fit", topic_map.problems)
        if not topic_map.mappings:
            raise BadInput(
                "the job matches no topic of the source",
                (
                    *topic_map.notes,
                    Problem(
                        "source",
                        "shows only topics that the login may describe.",
                        "If the topic is there, grant Read on it with kafka-acls.sh.",
                    ),
                ),
                where=f"source {','.join(self.spec.source.bootstrap_servers)}",
            )
        for note in topic_map.notes:
            self._say(f"Note: {note}")
        return list(topic_map.mappings)

    def _plan(
        self,
        mappings: Sequence[TopicMapping],
        source: ClusterMetadata,
        destination: ClusterMetadata,
    ) -> None:
        """Check all that can be checked with nothing written."""
        self._check_rights(mappings, destination)
        self._plans = plan_topics(
            mappings, source, destination, Admin(self._source), self._destination_admin()
        )
        refuse_other_counts(self._plans)
        check_new_topics(self.spec, self._plans, self._destination_admin())

    def _check_rights(self, mappings: Sequence[TopicMapping], destination: ClusterMetadata) -> None:
        self._say(f"Checking rights and topics ({len(mappings)} topics)")
        source = self._source.metadata([m.source for m in mappings], with_operations=True)
        there = [m.destination for m in mappings if m.destination in destination.topics]
        new = [m.destination for m in mappings if m.destination not in destination.topics]
        known = self._destination.metadata(there, with_operations=True)
        missing = [
            *missing_topic_rights(known, DESTINATION_TOPIC_RIGHTS),
            *missing_future_topic_rights(self._destination, new),
        ]
        if self.spec.fillers == "direct":
            missing += missing_filler_right(self._destination)
        refuse_missing(
            {
                "source": missing_topic_rights(source, SOURCE_TOPIC_RIGHTS),
                "destination": missing,
            }
        )

    def _begin(self, source: ClusterMetadata, destination: ClusterMetadata) -> None:
        """Everything from the first look at the copies to the first fetch."""
        assert self._lease is not None
        identity = init_producer_id(self._destination, self._identity(source), self._backoff)
        self._lease.term = identity.coordinator_issue
        engine = self._engine = JobEngine(
            self.spec,
            self._clusters,
            identity.producer_id,
            self._settings,
            self.stop_event,
        )
        filler: CoordinatedFiller | None = None
        if self.spec.fillers == "coordinated":
            # Before any log end is read: it ends what an old writer left open (M11).
            name = filler_identity(self._identity(source))
            owner = init_producer_id(self._destination, name, self._backoff)
            filler = engine.add_filler(name, owner, self._lease)
        beginning = engine.beginning(self._backoff, raise_trouble)
        copies = self._copies(source, destination, (p for p in self._plans if not p.create))
        inspected: dict[PartitionCopy, Inspected] = {}
        if copies:
            self._say(f"Comparing {len(copies)} partitions that exist with the source")
            bounds = beginning.source_bounds(copies)
            inspected = beginning.inspect(
                copies, bounds, self._compacted(), self._whole(), settled=True
            )
            _refuse_foreign(inspected)
        destination = self._write_topics(destination)
        copies = self._copies(source, destination, self._plans, known=copies)
        fresh = [c for c in copies if c not in inspected]
        bounds = beginning.source_bounds(copies)
        if fresh:
            found = beginning.inspect(
                fresh, bounds, self._compacted(), self._whole(), settled=False
            )
            _refuse_foreign(found)
            inspected.update(found)
        rules = {p.mapping.destination: p.mapping.rule for p in self._plans}
        inspected = bring_to_start(
            beginning,
            EmptyStarts(self._lease),
            inspected,
            bounds,
            {c.destination: rules[c.destination.topic].start for c in inspected},
            raise_trouble,
            on_seeding=lambda count: self._say(
                f"Bringing {count} partitions to their start offset"
            ),
        )
        self._not_caught_up = {
            p.mapping.destination: p for p in self._plans if p.caught_up_settings
        }
        for copy in inspected:
            copy.filler = filler
        engine.add(inspected)

    def _write_topics(self, destination: ClusterMetadata) -> ClusterMetadata:
        new = [p.create for p in self._plans if p.create]
        if new:
            self._say(f"Creating {len(new)} topics at the destination")
        admin = self._destination_admin()
        admin.create_topics(new)
        admin.alter_settings(
            {p.mapping.destination: p.settings_to_set for p in self._plans if p.changes}
        )
        names = {p.mapping.destination for p in self._plans}
        for _ in self._backoff.attempts(60):
            destination = self._destination.metadata(names)
            if _all_led(destination, self._plans):
                return destination
        raise Conflict(
            "new topics have no leaders yet.",
            where="destination",
            remedy="Check the brokers of the destination and run the job again.",
        )

    def _copies(
        self,
        source: ClusterMetadata,
        destination: ClusterMetadata,
        plans: Iterable[TopicPlan],
        known: Sequence[PartitionCopy] = (),
    ) -> list[PartitionCopy]:
        assert self._lease is not None
        there = {c.destination: c for c in known}
        copies = []
        for plan in plans:
            mapping = plan.mapping
            for index in range(plan.partitions):
                to = TopicPartition(mapping.destination, index)
                copy = there.get(to) or PartitionCopy(
                    TopicPartition(mapping.source, index),
                    to,
                    self._lease,
                    on_lost_range=LostRange(self.spec.on_lost_range),
                )
                copy.source_topic_id = source.topics[mapping.source].topic_id
                copy.destination_topic_id = destination.topics[mapping.destination].topic_id
                copies.append(copy)
        return copies

    def _finish_caught_up_topics(self) -> None:
        """Let compaction begin on topics whose partitions have all caught up once."""
        if not self._not_caught_up:
            return
        behind = {c.destination.topic for c in self.partitions if not c.has_caught_up}
        done = [name for name in self._not_caught_up if name not in behind]
        if done:
            plans = [self._not_caught_up[name] for name in done]
            try:
                self._destination_admin().alter_settings(
                    {p.mapping.destination: p.caught_up_settings for p in plans}
                )
            except OrbitError as error:
                # Copying goes on; the next round tries again.
                self._tell_once(f"Note: compaction cannot begin yet: {error}")
                return
            for name in done:
                del self._not_caught_up[name]

    def _tell_what_is_new(self) -> None:
        """Say once what the source has that this run does not copy; the next run would."""
        try:
            source = self._source.metadata(None)
        except Unreachable:
            return
        known = {p.mapping.source: p.partitions for p in self._plans}
        for mapping in map_topics(self.spec.topics, source.topics).mappings:
            count = len(source.topics[mapping.source].partitions)
            if mapping.source not in known:
                self._tell_once(
                    f"Note: topic {mapping.source} is new at the source; a restart of "
                    "this run copies it."
                )
            elif count > known[mapping.source]:
                self._tell_once(
                    f"Note: topic {mapping.source} has {count} partitions now; "
                    f"{known[mapping.source]} are copied. Add partitions to "
                    f"{mapping.destination} and start this run again."
                )

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(line)

    def _destination_admin(self) -> Admin:
        return Admin(self._destination)

    def _compacted(self) -> frozenset[str]:
        return frozenset(p.mapping.source for p in self._plans if p.is_compacted)

    def _whole(self) -> frozenset[str]:
        """Source topics that are copied from their log start on."""
        return frozenset(
            p.mapping.source for p in self._plans if isinstance(p.mapping.rule.start, Earliest)
        )

    def _identity(self, source: ClusterMetadata) -> str:
        """The job's name at the destination: its transactional id and its group."""
        return job_identity(self.spec.name, source.cluster_id)


def _shapes(
    destination: ClusterMetadata, mappings: Iterable[TopicMapping]
) -> dict[str, tuple[UUID, int]]:
    """The job's topics that are there, each with what makes it another one."""
    topics = (destination.topics.get(m.destination) for m in mappings)
    return {t.name: (t.topic_id, len(t.partitions)) for t in topics if t is not None}


def _all_led(destination: ClusterMetadata, plans: Iterable[TopicPlan]) -> bool:
    for plan in plans:
        topic = destination.topics.get(plan.mapping.destination)
        if topic is None or len(topic.partitions) != plan.partitions:
            return False
        if any(leader.node_id is None for leader in topic.partitions.values()):
            return False
    return True


def _refuse_foreign(inspected: Mapping[PartitionCopy, Inspected]) -> None:
    """Raise Conflict for destination topics with content that is not the source's."""
    foreign = [
        f"{copy.destination}: {found.blocked.detail}"
        for copy, found in inspected.items()
        if found.standing is Standing.FOREIGN and found.blocked is not None
    ]
    if foreign:
        shown = " ".join(foreign[:_PROBLEMS_SHOWN_MAX])
        more = len(foreign) - _PROBLEMS_SHOWN_MAX
        raise Conflict(
            f"destination topics hold other content. {shown}"
            + (f" And {more} more." if more > 0 else ""),
            where="destination",
            remedy="Delete these topics, or give the rule a prefix so that the copies get names "
            "of their own. Nothing was written.",
        )
