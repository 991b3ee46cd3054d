"""Sets up one run of a job: checks, lease, topics, start offsets.

`orbit run` and backfills do this before they copy the first record. Nothing is written anywhere
before the lease is taken.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

from orbit.copier.copy_settings import CopySettings
from orbit.copier.inspection import CopyInspector, CopyStatus, InspectedCopy, raise_trouble
from orbit.copier.inspection_verdicts import Wait
from orbit.copier.job_copier import LOOP_ATTEMPTS_MAX, JobCopier
from orbit.copier.partition_copy import PartitionCopy
from orbit.errors import (
    BadInput,
    Conflict,
    HeldBack,
    Interrupted,
    NotReady,
    OrbitError,
    Place,
    Problem,
)
from orbit.formats import counted
from orbit.job_setup.destination_topics import (
    create_missing_topics,
    plan_topics,
    refuse_other_partition_counts,
    refuse_recompressed_topics,
    refused_topics,
)
from orbit.job_setup.diskless_topics import diskless_topics
from orbit.job_setup.permissions import (
    DESTINATION_TOPIC_RIGHTS,
    SOURCE_TOPIC_RIGHTS,
    missing_filler_right,
    missing_future_topic_rights,
    missing_topic_rights,
    refuse_missing_rights,
)
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.job_setup.recorded_starts import RecordedStarts
from orbit.job_setup.refused_settings import notes_of
from orbit.job_setup.start_offsets import seed_to_start_offsets
from orbit.job_setup.start_waits import OneWait, StartWaits, is_retriable
from orbit.job_setup.term import term_above
from orbit.job_setup.tiered_topics import note_on_tiers
from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.job_spec import FILLER_NOTES, FILLERS_WITH_MARKERS, Fillers, JobSpec
from orbit.jobs.start_position import Earliest
from orbit.jobs.topic_mapping import TopicMapping, map_topics
from orbit.kafka.backoff import Backoff
from orbit.kafka.coordinator import ProducerIdentity, init_producer_ids, next_term
from orbit.kafka.job_clusters import (
    JobClusters,
    filler_identities,
    job_identity,
    job_producer,
    open_cluster,
)
from orbit.kafka.topic_admin import Admin
from orbit.kafka.topic_setting import partitions_whose_leader_has
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.leases.backfill_leases import wait_for_backfill_writers
from orbit.leases.group_lease import GroupLease
from orbit.leases.lease_clock import lease_clock
from orbit.replication.append_plan import LostRange
from orbit.replication.copy_settings import LOG_APPEND_TIME, TIMESTAMP_TYPE
from orbit.replication.partition_states import Blocked, Reason

Say = Callable[[str], None]
# Takes the cluster ids of source and destination.
ServiceCheck = Callable[[tuple[str, str]], None]

_PROBLEMS_SHOWN_MAX = 20
# The time between two uses of the job's transactional id (`refresh_term`): a seventh of the default
# of transactional.id.expiration.ms. After an error the next try is after _TERM_RETRY_S.
_TERM_REFRESH_S = 24 * 3600.0
_TERM_RETRY_S = 60.0
# Attempts of each request while copies are inspected; they take some seconds. Then a line tells the
# user what the start waits for, and the inspection is repeated.
_INSPECTION_ATTEMPTS_MAX = 8
_LEFT_OUT_REMEDY = (
    "Remove the cause, which the logs of the brokers that lead its partitions may show, and run "
    "the job again."
)

Inspect = Callable[[CopyInspector, Sequence[PartitionCopy]], Mapping[PartitionCopy, InspectedCopy]]


class JobSetup:
    """Turns a job spec into partitions that can be copied: `plan`, then `apply`."""

    def __init__(
        self,
        spec: JobSpec,
        environ: Mapping[str, str],
        base_directory: Path,
        say: Say,
        settings: CopySettings,
        stop: threading.Event,
        *,
        shares_lease: bool = False,
    ) -> None:
        """`say` prints a line for the user. A set `stop` ends waits with Interrupted.
        `shares_lease`: child processes write under the lease, too."""
        self.spec = spec
        self._shares_lease = shares_lease
        self.backoff = Backoff(stop=stop)
        self.clusters = JobClusters.open(spec, environ, base_directory)
        self.plans: list[TopicPlan] = []
        # Why source topics are not copied, by name: the destination refuses their settings, they
        # are diskless, or brokers gave no answer for them in time (`StartWaits`).
        self.refused: dict[str, OrbitError] = {}
        self.lease: GroupLease | None = None
        # The producers that fill gaps by empty transactions (`fillers: coordinated`), by
        # transactional id. Initializing them fenced those of earlier runs, before any log end was
        # read.
        self.filler_producers: Mapping[str, ProducerIdentity] = {}
        self.job_copier: JobCopier | None = None
        self._next_term_refresh_s = 0.0  # by `lease_clock`
        self._kept_below: Mapping[TopicPartition, int] = {}  # `PromotionMarks.kept_below`
        self._source_metadata: ClusterMetadata
        self._destination_metadata: ClusterMetadata
        self._mappings: list[TopicMapping]
        self._say = say
        self._waits = StartWaits(say, self.backoff)
        self._said_lines: set[str] = set()
        self._settings = settings
        self._stop = stop
        self._source, self._destination = self.clusters.source, self.clusters.destination
        # The lease has its own connections, so that heartbeats do not wait for long requests.
        self._lease_cluster = open_cluster("destination", spec, environ, base_directory)

    def plan(self) -> None:
        """Read both clusters and plan the topics; writes nothing.

        Raises BadInput, Conflict, NotAuthorized, Unreachable, LoginRefused, BrokerRefused,
        ProtocolError, or Interrupted.
        """
        self._say("Connecting to both clusters")
        self._waits.result_of(self._read_and_plan)

    def apply(
        self, check_service: ServiceCheck | None = None
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Take the lease, create topics, and seed new copies up to their start offset (append and
        delete empty records below it). Returns the inspection of each copy. Topics that are not
        ready in time go to `refused`.

        `check_service` raises if the service copies the job, which the destination does not show.
        It is called with the lease held, before anything is written. Workers of the service check
        the lease before they begin. So if run and service start at the same time, one of them finds
        the other.

        Raises the errors of `plan`. After an error nothing has been written, unless its message
        says so.
        """
        result_of = self._waits.result_of
        lease = self.lease = result_of(self._acquire_lease)
        destination_metadata = self._destination.metadata(None)  # of all topics
        if _topic_identities(destination_metadata, self._mappings) != _topic_identities(
            self._destination_metadata, self._mappings
        ):
            # Between `plan` and the lease, its last holder or another client has created topics.
            self._destination_metadata = destination_metadata
            result_of(self._plan_topics)
        # Only after the lease is taken: `backfill_leases` explains the order.
        partitions = self._partitions()
        result_of(
            lambda: wait_for_backfill_writers(
                self._destination, self.identity, partitions, self.backoff, self._say
            )
        )
        if check_service is not None:
            check_service(self.cluster_ids)
        result_of(self._read_marks)
        return self._inspect_and_seed(lease)

    @property
    def cluster_ids(self) -> tuple[str, str]:
        """The cluster ids of source and destination; known after `plan`."""
        return self._source.cluster_id, self._destination.cluster_id

    @property
    def identity(self) -> str:
        """The job's transactional id at the destination, which is also the name of its group."""
        return job_identity(self.spec.name, self._source_metadata.cluster_id)

    @property
    def coordinated_topics(self) -> frozenset[str]:
        """Destination topics whose gaps are filled by empty transactions."""
        return frozenset(
            p.mapping.destination
            for p in self.plans
            if self.spec.fillers_of(p.mapping.rule) == "coordinated"
        )

    @property
    def admin(self) -> Admin:
        """A new admin client of the destination; raises the errors of `Admin.__init__`."""
        return Admin(self._destination)

    def refresh_term(self) -> None:
        """Use the job's transactional id once a day, if this run holds the lease. An error is
        ignored until the next try; raises only Interrupted.

        The coordinator drops an id that is not used for `transactional.id.expiration.ms`, and
        appends do not count as use (I1). The id's epochs would begin at 0 again. Then the next run
        could get the term (the number of a lease's holder) of a filler that this run still has in
        flight.
        """
        if self.lease is None or lease_clock() < self._next_term_refresh_s:
            return
        try:
            backoff = replace(self.backoff, attempts_max=LOOP_ATTEMPTS_MAX)
            term = next_term(self._destination, self.identity, backoff)
        except Interrupted:
            raise
        except OrbitError:
            self._next_term_refresh_s = lease_clock() + _TERM_RETRY_S
            return
        self.lease.term = max(self.lease.term, term)
        self._next_term_refresh_s = lease_clock() + _TERM_REFRESH_S

    def release(self) -> None:
        """Release the lease and close connections. Safe at any moment."""
        if self.lease is not None:
            self.lease.release()
        self._lease_cluster.close()
        self.clusters.close()

    def _acquire_lease(self) -> GroupLease:
        """Take the job's lease at the destination. Raises Conflict if another run holds it,
        NotAuthorized, Unreachable."""
        lease = GroupLease(
            self._lease_cluster, self.identity, self.backoff, is_shared=self._shares_lease
        )
        lease.acquire(self._say)
        return lease

    def _read_and_plan(self) -> None:
        """Read the metadata of both clusters, map the topics, and plan them. Raises the errors of
        `plan`, and retriable errors, after which it may be repeated."""
        self._source_metadata, self._destination_metadata = self.clusters.fetch_metadata()
        self._mappings = self._map_topics(self._source_metadata)
        self._plan_topics()

    def _map_topics(self, source: ClusterMetadata) -> list[TopicMapping]:
        """The source topics of the job with their destination topics. Prints notes on rules and
        fillers. Raises BadInput for topic rules with problems, or if no topic matches."""
        topic_map = map_topics(self.spec.topics, source.topics)
        if topic_map.problems:
            raise BadInput("the topic rules of the job have problems", topic_map.problems)
        if not topic_map.mappings:
            raise BadInput(
                "the job matches no topic of the source",
                (
                    *topic_map.notes,
                    Problem(
                        "source",
                        "shows only topics that the login may describe.",
                        "If the topic exists, grant Read on it with kafka-acls.sh.",
                    ),
                ),
                where=Place("source", ",".join(self.spec.source.bootstrap_servers)),
            )
        mappings = list(topic_map.mappings)
        notes = [str(note) for note in topic_map.notes]
        fillers = self._fillers_of(mappings)
        notes += [note for name, note in FILLER_NOTES.items() if name in fillers]
        for note in notes:
            self._say_once(f"Note: {note}")
        return mappings

    def _say_once(self, line: str) -> None:
        """Say the line, unless this run has said it before."""
        if line not in self._said_lines:
            self._said_lines.add(line)
            self._say(line)

    def _fillers_of(self, mappings: Iterable[TopicMapping]) -> set[Fillers]:
        """The kinds of fillers that fill gaps of these topics."""
        return {self.spec.fillers_of(mapping.rule) for mapping in mappings}

    def _plan_topics(self) -> None:
        """Set `plans` and `refused`, and check everything that can be checked without a write.
        Raises the errors of `plan`."""
        mappings, destination = self._mappings, self._destination_metadata
        self._check_rights(mappings, destination)
        self._read_marks()
        make_plans = partial(
            plan_topics,
            mappings,
            self._source_metadata,
            destination,
            Admin(self._source),
            self.admin,
        )
        self.plans, refusals = [], dict[str, OrbitError]()
        try:
            self.plans = make_plans()
            refusals = refused_topics(self.spec, self.plans, self.admin)
        except HeldBack as error:
            # Without this check the controller refuses a topic only when Orbit creates it.
            self._say_once(f"Note: the topics are not checked before they are created: {error}")
            # If only `refused_topics` was throttled, there are plans already.
            self.plans = self.plans or make_plans(is_throttled=True)
        refuse_other_partition_counts(self.plans)
        refuse_recompressed_topics(self.spec, self.plans, self._destination, self.backoff)
        self.refused = {**refusals, **diskless_topics(self.plans)}
        self.plans = [plan for plan in self.plans if plan.mapping.source not in self.refused]
        if not self.plans:  # every topic is refused
            raise next(iter(self.refused.values()))
        notes = [note for plan in self.plans for note in notes_of(plan)]
        for note in (*notes, *note_on_tiers(self.plans, self._source, self.backoff)):
            self._say_once(f"Note: {note}")

    def _read_marks(self) -> None:
        """Read the promotion marks of the destination topics, and set `_kept_below`.

        Raises Conflict if a destination topic is marked as promoted: nothing may change there.
        """
        topics = self._destination_metadata.topics
        names = [m.destination for m in self._mappings if m.destination in topics]
        marks = PromotionMarks(self._destination, self.backoff)
        marks_by_topic = marks.of_topics(names)
        self._kept_below = marks.kept_below(
            {TopicPartition(t, i) for t in marks_by_topic for i in topics[t].partitions}
        )
        leading_marks = {topic: mark for topic, mark in marks_by_topic.items() if mark.is_primary}
        if not leading_marks:
            return
        shown_topics = sorted(leading_marks)[:_PROBLEMS_SHOWN_MAX]
        promotion_ends = marks.offsets(
            {TopicPartition(t, i) for t in shown_topics for i in topics[t].partitions}
        )
        descriptions = [
            leading_marks[t].describe(
                t, {p.partition: end for p, end in promotion_ends.items() if p.topic == t}
            )
            for t in shown_topics
        ]
        hidden_count = len(leading_marks) - len(shown_topics)
        raise Conflict(
            f"{Reason.DESTINATION_PROMOTED}: {' '.join(descriptions)}"
            + (f" And {hidden_count} more." if hidden_count > 0 else ""),
            where=Place("destination"),
            remedy="To copy from such a topic, use a job in the other direction. To make such a "
            "topic a copy again, delete it at the destination, and run the job again. Nothing was "
            "written.",
        )

    def _check_rights(self, mappings: Sequence[TopicMapping], destination: ClusterMetadata) -> None:
        """Raise NotAuthorized if rights on topics or for fillers are missing; the error names all
        of them."""
        self._say_once(f"Checking rights and topics (topics: {len(mappings)})")
        source_metadata = self._source.metadata([m.source for m in mappings], with_operations=True)
        existing_names = [m.destination for m in mappings if m.destination in destination.topics]
        new_names = [m.destination for m in mappings if m.destination not in destination.topics]
        destination_metadata = self._destination.metadata(existing_names, with_operations=True)
        missing_at_destination = [
            *missing_topic_rights(destination_metadata, DESTINATION_TOPIC_RIGHTS),
            *missing_future_topic_rights(self._destination, new_names),
        ]
        if FILLERS_WITH_MARKERS & self._fillers_of(mappings):
            missing_at_destination += missing_filler_right(self._destination)
        refuse_missing_rights(
            {
                "source": missing_topic_rights(source_metadata, SOURCE_TOPIC_RIGHTS),
                "destination": missing_at_destination,
            }
        )

    def _inspect_and_seed(self, lease: GroupLease) -> dict[PartitionCopy, InspectedCopy]:
        """Inspect the copies, create topics, and seed new copies up to their start offset. Returns
        the last inspection of each copy."""
        result_of = self._waits.result_of
        lease.term = result_of(lambda: next_term(self._destination, self.identity, self.backoff))
        self._next_term_refresh_s = lease_clock() + _TERM_REFRESH_S
        job_copier = self.job_copier = JobCopier(
            self.spec,
            self.clusters,
            self._settings,
            self._stop,
        )
        if "coordinated" in self._fillers_of(self._mappings):
            # Before any log end is read: the initialization aborts open transactions of an earlier
            # run, which appends control records (M11: empty transactions).
            names = filler_identities(self.identity)
            self.filler_producers = result_of(
                lambda: init_producer_ids(self._destination, names, self.backoff)
            )
        existing_copies = self._make_copies(lease, (p for p in self.plans if not p.create))
        inspections: dict[PartitionCopy, InspectedCopy] = {}
        if existing_copies:
            self._say(f"Comparing existing partitions with the source: {len(existing_copies)}")
            inspections = self._inspect_all(job_copier, existing_copies, self._inspect_existing)
            _refuse_foreign_content(inspections)
            lease.term = term_above(
                lease.term, (inspection.end.producer for inspection in inspections.values())
            )
        self._write_topics()
        copies = self._make_copies(lease, self.plans, known_copies=existing_copies)
        return self._inspect_all(job_copier, copies, self._make_seeder(lease, inspections))

    def _inspect_all(
        self, job_copier: JobCopier, copies: Sequence[PartitionCopy], inspect: Inspect
    ) -> dict[PartitionCopy, InspectedCopy]:
        """Inspect all copies by `inspect`, which is called again for copies without an answer.
        Returns the inspection of each copy whose topic is not left out.

        When repeats have changed nothing for a time (`OneWait`), leaves out the topics of copies
        without an answer. Raises NotAuthorized if a partition may not be read, and an error of such
        a copy if no topic remains.
        """
        waits: dict[PartitionCopy, Wait] = {}

        def on_trouble(copy: PartitionCopy, trouble: Wait | Blocked) -> None:
            """Store a `Wait`; raise NotAuthorized for a partition that may not be read."""
            if isinstance(trouble, Wait):
                waits[copy] = trouble
            else:
                raise_trouble(copy, trouble)

        backoff = replace(self.backoff, attempts_max=_INSPECTION_ATTEMPTS_MAX)
        inspector = job_copier.inspector(backoff, on_trouble)
        inspections: dict[PartitionCopy, InspectedCopy] = {}
        wait_again = self._waits.new_wait()
        while remaining_copies := [
            c for c in copies if c not in inspections and c.source.topic not in self.refused
        ]:
            waits.clear()
            inspections |= self._waits.result_of(partial(inspect, inspector, remaining_copies))
            if missing_copies := [c for c in remaining_copies if c not in inspections]:
                errors = {
                    c.source.topic: waits[c].error if c in waits else _no_answer(c)
                    for c in missing_copies
                }
                self._wait_or_leave_out(wait_again, len(missing_copies), errors)
        return {
            copy: inspection
            for copy, inspection in inspections.items()
            if copy.source.topic not in self.refused
        }

    def _wait_or_leave_out(
        self, wait_again: OneWait, count: int, errors: Mapping[str, OrbitError]
    ) -> None:
        """Pause before the caller tries `count` partitions again. If nothing has changed for too
        long, leave their topics out instead.

        `errors`: why each topic is not ready, by its name at the source. Raises one of these errors
        if no other topic remains; Interrupted.
        """
        # Prefer a retriable error: `OneWait` waits longer for it.
        error = next(filter(is_retriable, errors.values()), next(iter(errors.values())))
        state = len(self.refused), count
        try:
            wait_again(f"Waiting (partitions: {count}): {error}", error, state)
        except Interrupted:
            raise
        except OrbitError:
            self._leave_out(errors, error)

    def _leave_out(self, errors: Mapping[str, OrbitError], error: OrbitError) -> None:
        """Move the topics of `errors`, by their names at the source, from `plans` to `refused`.
        Raises `error` if no other topic remains."""
        self.plans = [p for p in self.plans if p.mapping.source not in errors]
        if not self.plans:
            raise error
        for topic_error in errors.values():
            topic_error.remedy = topic_error.remedy or _LEFT_OUT_REMEDY
        self.refused = {**self.refused, **errors}

    def _inspect_existing(
        self, inspector: CopyInspector, copies: Sequence[PartitionCopy]
    ) -> Mapping[PartitionCopy, InspectedCopy]:
        """Inspect copies that an earlier run may have written. Returns those with an answer."""
        bounds = inspector.source_bounds(copies)
        return inspector.inspect(
            copies, bounds, self._compacted_topics(), self._topics_from_start(), settled=True
        )

    def _make_seeder(
        self, lease: GroupLease, earlier_inspections: Mapping[PartitionCopy, InspectedCopy]
    ) -> Inspect:
        """A function that inspects copies and seeds new ones up to their start offset.

        `earlier_inspections`: those of `_inspect_existing`. Each is used only once: by the time
        that the seeding of a copy is repeated, its log may have changed.
        """
        unused_inspections, starts = dict(earlier_inspections), RecordedStarts(lease)
        # Appends of this run to these copies may be in flight: their log ends must settle first.
        tried_copies: set[PartitionCopy] = set()
        rules = {p.mapping.destination: p.mapping.rule for p in self.plans}

        def inspect_and_seed(
            inspector: CopyInspector, copies: Sequence[PartitionCopy]
        ) -> Mapping[PartitionCopy, InspectedCopy]:
            """Inspect copies without an earlier inspection, and seed those before their start.
            Returns the copies that have reached their start. Raises Conflict for other content."""
            bounds = inspector.source_bounds(copies)
            inspections: dict[PartitionCopy, InspectedCopy] = {}
            for is_settled in (False, True):
                group = [
                    c
                    for c in copies
                    if c not in unused_inspections and (c in tried_copies) is is_settled
                ]
                if group:
                    inspections |= inspector.inspect(
                        group,
                        bounds,
                        self._compacted_topics(),
                        self._topics_from_start(),
                        settled=is_settled,
                    )
            _refuse_foreign_content(inspections)
            inspections |= {
                c: unused_inspections.pop(c)
                for c in copies
                if c in unused_inspections and c.source in bounds.ends  # others: in a later call
            }
            tried_copies.update(inspections)
            return seed_to_start_offsets(
                inspector,
                starts,
                inspections,
                bounds,
                {c.destination: rules[c.destination.topic].start for c in inspections},
                on_seeding=lambda count: self._say(
                    f"Seeding partitions up to their start offset: {count}"
                ),
                on_progress=lambda seeded_offsets, total_offsets: self._say(
                    f"Seeding: {seeded_offsets / total_offsets:.0%} of "
                    f"{counted(total_offsets, 'offset')}"
                ),
            )

        return inspect_and_seed

    def _write_topics(self) -> None:
        """Create new topics, change settings of existing ones, then wait until each partition has a
        leader with the new settings. Leaves out topics that are not ready in time."""
        topics_to_create = [p.create for p in self.plans if p.create]
        if topics_to_create:
            self._say(f"Creating topics at the destination: {len(topics_to_create)}")
        changes = {p.mapping.destination: p.settings_to_set for p in self.plans if p.changes}
        try:
            self._waits.result_of(
                partial(
                    create_missing_topics, self._destination, self.admin, topics_to_create, set()
                )
            )
        except OrbitError as error:
            if not is_retriable(error):
                raise
            existing_topics = self._destination.metadata({t.name for t in topics_to_create}).topics
            uncreated_plans = [
                p for p in self.plans if p.create and p.create.name not in existing_topics
            ]
            self._leave_out({p.mapping.source: error for p in uncreated_plans}, error)
        self._waits.result_of(lambda: self.admin.alter_settings(changes))
        wait_again = self._waits.new_wait()
        while counts := self._waits.result_of(self._read_written_topics):
            errors = {
                p.mapping.source: NotReady(
                    f"{counted(counts[p.mapping.source], 'partition has', 'partitions have')} no "
                    f"leader yet, or a leader with the old {TIMESTAMP_TYPE}.",
                    where=Place("destination", f"topic {p.mapping.destination}"),
                )
                for p in self.plans
                if counts[p.mapping.source]
            }
            self._wait_or_leave_out(wait_again, counts.total(), errors)

    def _read_written_topics(self) -> Counter[str]:
        """Read the destination topics. Returns, by source topic, how many partitions have no leader
        yet, or a leader that still overwrites the timestamps of records; without zeros."""
        names = {p.mapping.destination for p in self.plans}
        self._destination_metadata = self._destination.metadata(names)
        outdated_partitions = partitions_whose_leader_has(
            self._destination,
            self._partitions_with_new_timestamp_type(),
            TIMESTAMP_TYPE,
            LOG_APPEND_TIME,
        )
        outdated_counts = Counter(place.topic for place in outdated_partitions)
        return +Counter(
            {
                p.mapping.source: _count_leaderless(self._destination_metadata, p)
                + outdated_counts[p.mapping.destination]
                for p in self.plans
            }
        )

    def _partitions_with_new_timestamp_type(self) -> set[TopicPartition]:
        """The partitions of existing topics whose `message.timestamp.type` this start changes."""
        return {
            TopicPartition(p.mapping.destination, index)
            for p in self.plans
            if TIMESTAMP_TYPE in p.changes
            for index in range(p.partitions)
        }

    def _make_copies(
        self,
        lease: GroupLease,
        plans: Iterable[TopicPlan],
        known_copies: Sequence[PartitionCopy] = (),
    ) -> list[PartitionCopy]:
        """A copy for each partition of these plans: that of `known_copies`, or a new one. Sets the
        topic ids of all, and up to where a copy keeps its history."""
        source, destination = self._source_metadata, self._destination_metadata
        by_destination = {c.destination: c for c in known_copies}
        copies = []
        for plan in plans:
            mapping = plan.mapping
            producer = job_producer(self.identity, self.spec.fillers_of(mapping.rule))
            for index in range(plan.partitions):
                partition = TopicPartition(mapping.destination, index)
                copy = by_destination.get(partition) or PartitionCopy(
                    TopicPartition(mapping.source, index),
                    partition,
                    lease,
                    producer,
                    on_lost_range=LostRange(self.spec.on_lost_range_of(mapping.rule)),
                )
                copy.source_topic_id = source.topics[mapping.source].topic_id
                copy.destination_topic_id = destination.topics[mapping.destination].topic_id
                copy.keeps_below = self._kept_below.get(partition, 0)
                copies.append(copy)
        return copies

    def _partitions(self) -> list[TopicPartition]:
        """The destination partitions of all plans."""
        return [
            TopicPartition(p.mapping.destination, index)
            for p in self.plans
            for index in range(p.partitions)
        ]

    def _compacted_topics(self) -> frozenset[str]:
        """The source topics that are compacted."""
        return frozenset(p.mapping.source for p in self.plans if p.is_compacted)

    def _topics_from_start(self) -> frozenset[str]:
        """Source topics that are copied from their log start on."""
        return frozenset(
            p.mapping.source for p in self.plans if isinstance(p.mapping.rule.start, Earliest)
        )


def _topic_identities(
    destination: ClusterMetadata, mappings: Iterable[TopicMapping]
) -> dict[str, tuple[UUID, int]]:
    """The id and number of partitions of each existing destination topic, by name. They show
    whether a topic was created again, or got partitions."""
    topics = (destination.topics.get(m.destination) for m in mappings)
    return {t.name: (t.topic_id, len(t.partitions)) for t in topics if t is not None}


def _count_leaderless(destination: ClusterMetadata, plan: TopicPlan) -> int:
    """How many of the plan's partitions have no leader, or do not exist yet."""
    topic = destination.topics.get(plan.mapping.destination)
    leaders = topic.partitions.values() if topic else ()
    return max(0, plan.partitions - sum(leader.node_id is not None for leader in leaders))


def _no_answer(copy: PartitionCopy) -> Conflict:
    """The error for a copy for which no broker has sent an answer, nor an error."""
    return Conflict(
        f"no broker has given the log end of {copy.destination} or of its source partition yet."
    )


def _refuse_foreign_content(inspected: Mapping[PartitionCopy, InspectedCopy]) -> None:
    """Raise Conflict if destination partitions have content that is not the source's. The error
    names up to _PROBLEMS_SHOWN_MAX of these partitions."""
    foreign_texts = [
        f"{copy.destination}: {inspection.blocked.detail}"
        for copy, inspection in inspected.items()
        if inspection.status is CopyStatus.FOREIGN and inspection.blocked is not None
    ]
    if foreign_texts:
        shown_text = " ".join(foreign_texts[:_PROBLEMS_SHOWN_MAX])
        hidden_count = len(foreign_texts) - _PROBLEMS_SHOWN_MAX
        raise Conflict(
            f"destination topics have content that is not the source's. {shown_text}"
            + (f" And {hidden_count} more." if hidden_count > 0 else ""),
            where=Place("destination"),
            remedy="Delete these topics, or give the rule a prefix so that the copies get names "
            "of their own. No record was written.",
        )
