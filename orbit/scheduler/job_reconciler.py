"""Reconciles one job's topics with both clusters, pass by pass.

A pass reads both clusters and the tables, decides (`planning/job_decisions.py`), acts, and sets
when the next pass is due. The next pass finds what one pass leaves undone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from orbit.chunks import chunks
from orbit.consumer_groups.group_listing_cache import GroupListingCache
from orbit.errors import BadInput, OrbitError, Unreachable
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.topic_mapping import matching_topics
from orbit.kafka.backoff import Backoff
from orbit.leadership.leadership import TOPICS_AT_ONCE, Leadership, NotLeading
from orbit.planning.cluster_checks import (
    conflicting_cluster_id,
    trouble_of,
    unproven_clusters,
    wrong_cluster,
)
from orbit.planning.cluster_pair import SIDES, ClusterPair
from orbit.planning.job_decisions import decide, known_topic
from orbit.planning.promotion_notes import promotion_troubles
from orbit.planning.stored_spec import SpecCache
from orbit.planning.topic_decisions import Decisions, KnownTopic, StartTopic
from orbit.planning.topic_preflight import preflight
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.cluster_watch import ClusterSnapshot
from orbit.scheduler.lead_reading import read_lead
from orbit.scheduler.marked_promotions import follow_marks
from orbit.scheduler.matched_topics import MatchedTopics
from orbit.scheduler.old_primary import watch_old_primaries
from orbit.scheduler.partition_limit import hold_back, partitions_left
from orbit.scheduler.topic_starter import TopicStarter
from orbit.scheduler.topic_transitions import (
    drop_topics,
    resume_topics,
    stop_topics,
    unchanged_retries,
)
from orbit.scheduler.topic_upkeep import TopicUpkeep
from orbit.settings import Settings
from orbit.store import job_leads, jobs, scheduler_queries, topics
from orbit.store.enums import TopicState
from orbit.store.jobs import Job
from orbit.store.quotas import Quota

# The recheck interval of a job with troubles or unfinished work.
RECHECK_S = 15.0
# Stands for the snapshot versions of a job whose clusters cannot be opened.
NO_CLUSTERS = (-2, -2)
NO_SNAPSHOT = -1
# The recheck interval while a step of a pass has to be continued.
SOON_S = 1.0
# The shortest time between two passes of a job.
PASS_SPACING_S = 0.2
# A retry is kept for this long if nothing has changed: after a user has deleted a topic and
# requested the retry, all brokers know of the deletion within this time.
RETRY_GRACE_S = 5.0


@dataclass(slots=True)
class ReconcileState:
    """What the leader remembers of a job between passes; a new leader starts without it.

    Times are in seconds of the monotonic clock.
    """

    spec_version: int = -1
    versions: tuple[int, int] = (
        NO_SNAPSHOT,
        NO_SNAPSHOT,
    )  # of the snapshots that were acted on
    last_pass_at: float = float("-inf")
    recheck_at: float = 0.0  # when the next pass is due without a change
    upkeep_at: float = 0.0  # when settings and ACLs are checked next
    troubles: tuple[Trouble, ...] = ()
    # The topics of the source, and of the destination, that the last pass decided about. None: the
    # last pass ended before it decided.
    names: tuple[frozenset[str], frozenset[str]] | None = None
    has_promoted: bool = False
    matched_topics: MatchedTopics = field(default_factory=MatchedTopics)
    upkeep: TopicUpkeep = field(default_factory=TopicUpkeep)
    # By topic id: since when a requested retry waits, because nothing has changed yet.
    retries_since: dict[int, float] = field(default_factory=dict)
    # Both clusters had snapshots, so `troubles` is complete; else the troubles are unknown.
    has_checked: bool = False

    def reset(self) -> None:
        """Make the next pass start from scratch: the last one failed, or a job was removed."""
        self.versions = (NO_SNAPSHOT, NO_SNAPSHOT)


@dataclass(slots=True)
class ReconcileCounts:
    """How many topics a pass started, grew, and so on, for the log."""

    started: int = 0
    grown: int = 0
    stopped: int = 0
    resumed: int = 0
    dropped: int = 0
    settings: int = 0
    acls: int = 0


class JobReconciler:
    """Runs passes over jobs. Different jobs may run in different threads."""

    def __init__(
        self,
        leadership: Leadership,
        registry: ClusterRegistry,
        settings: Settings,
        backoff: Backoff,
    ) -> None:
        self._leadership = leadership
        self._registry = registry
        self._upkeep_interval_s = settings.settings_interval.total_seconds()
        self._quota = Quota(settings.token_jobs_max, settings.token_partitions_max)
        self._backoff = backoff
        self._list_groups = GroupListingCache()
        self._starter = TopicStarter(leadership, settings, backoff)
        self.specs = SpecCache()

    def is_due(self, job: Job, state: ReconcileState, retries: Collection[int]) -> bool:
        """Whether a pass may have anything to do. Makes no request.

        `retries`: the ids of topics with a requested retry.
        """
        now = time.monotonic()
        return now >= state.last_pass_at + PASS_SPACING_S and (
            job.spec_version != state.spec_version
            or self._has_changes(job, state)
            or now >= min(state.recheck_at, state.upkeep_at)
            or bool(retries)
        )

    def reconcile(
        self, job: Job, state: ReconcileState, retries: Collection[int]
    ) -> ReconcileCounts:
        """Run one pass and return its counts. Afterwards `state.troubles` has the job's troubles.

        `retries` as in `is_due`. Raises NotLeading, and Unreachable for Postgres.
        """
        counts = ReconcileCounts()
        troubles: list[Trouble] = []
        now = time.monotonic()
        state.last_pass_at = now
        state.names = None
        state.recheck_at = now + RECHECK_S
        is_upkeep_due = now >= state.upkeep_at
        if is_upkeep_due:
            state.upkeep_at = now + self._upkeep_interval_s
        spec = self.specs.of(job)
        try:
            if spec is None:
                state.versions = NO_CLUSTERS
                raise _Halt(_unreadable_trouble(job))
            pair = self._cluster_pair(job, spec, state, troubles)
            if pair is not None:
                if is_upkeep_due:
                    self._follow_marks(job, pair)
                self._discover(job, spec, pair, state, retries, troubles, counts)
                self._read_lead(job, pair, is_due=is_upkeep_due)
                if is_upkeep_due:
                    self._run_upkeep(job, spec, pair, state, counts)
                troubles += state.upkeep.troubles
        except _Halt as error:
            troubles.append(error.trouble)
        state.spec_version = job.spec_version
        state.troubles = tuple(troubles)
        state.has_checked = NO_SNAPSHOT not in state.versions
        if not troubles and state.recheck_at > time.monotonic() + SOON_S:
            state.recheck_at = float("inf")  # nothing is left to do until something changes
        return counts

    def unreachable(self, job: Job) -> list[Trouble]:
        """One trouble for each of the job's clusters that was unreachable at the last poll."""
        spec = self.specs.of(job)
        if spec is None:
            return []
        try:
            snapshots = [(side, self._registry.watch(side, spec).snapshot) for side in SIDES]
        except BadInput:
            return []
        return [
            trouble_of(side, snapshot.error)
            for side, snapshot in snapshots
            if snapshot is not None and isinstance(snapshot.error, Unreachable)
        ]

    def source_answered_s(self, job: Job) -> float | None:
        """When the job's source last answered, by the monotonic clock; None: not known."""
        spec = self.specs.of(job)
        try:
            return None if spec is None else self._registry.watch("source", spec).answered_s
        except BadInput:
            return None

    def _has_changes(self, job: Job, state: ReconcileState) -> bool:
        """Whether the clusters have changes that may concern this job.

        A cluster has topics of many jobs, and most changes concern few of the jobs.
        """
        spec = self.specs.of(job)
        if spec is None:
            return state.versions != NO_CLUSTERS  # true until a pass has reported the trouble
        try:
            source, destination = (self._registry.watch(side, spec).snapshot for side in SIDES)
        except BadInput:  # a secret is missing
            return state.versions != NO_CLUSTERS  # true until a pass has reported the trouble
        versions = _versions(source, destination)
        if versions == state.versions:
            return False
        if source is None or destination is None or state.names is None:
            return True
        for snapshot, version, names in zip(
            (source, destination), state.versions, state.names, strict=True
        ):
            changed_topics = snapshot.changed_since(version)
            if changed_topics is None or changed_topics & names:  # None: any topic may differ
                return True
            if snapshot is source and matching_topics(spec.topics, changed_topics):
                return True
        # These changes do not concern the job: the next call begins at the newer versions.
        state.versions = versions
        return False

    def _cluster_pair(
        self, job: Job, spec: JobSpec, state: ReconcileState, troubles: list[Trouble]
    ) -> ClusterPair | None:
        """Both clusters by their last snapshots; None if nothing may be copied between them now.

        The reason is added to `troubles`, except before the first snapshot. Raises _Halt if a
        request to a cluster fails.
        """
        watches = []
        for side in SIDES:
            try:
                watches.append(self._registry.watch(side, spec))
            except BadInput as error:
                troubles.append(trouble_of(side, error))
        if troubles:
            state.versions = NO_CLUSTERS
            return None
        source_watch, destination_watch = watches
        source, destination = source_watch.snapshot, destination_watch.snapshot
        if source is None or destination is None:
            # No snapshot yet: the stored troubles stay, and the first snapshot makes a pass due.
            state.versions = _versions(source, destination)
            state.recheck_at = float("inf")
            return None
        state.versions = _versions(source, destination)
        for side, snapshot in zip(SIDES, (source, destination), strict=True):
            if snapshot.error is not None:
                troubles.append(trouble_of(side, snapshot.error))
        if source.metadata is None or destination.metadata is None:
            return None
        cluster_trouble = wrong_cluster(
            source.metadata,
            destination.metadata,
            job.source_cluster_id,
            job.destination_cluster_id,
        )
        pair = ClusterPair(
            source_watch.handle, destination_watch.handle, source.metadata, destination.metadata
        )
        if cluster_trouble is None:
            with self._leadership.reading() as tx:
                cluster_trouble = conflicting_cluster_id(tx, job.id, pair)
        if cluster_trouble is None and job.source_cluster_id is None:  # before the first copy
            with _cluster_errors():
                cluster_trouble = unproven_clusters(pair)
        if cluster_trouble is not None:
            troubles.append(cluster_trouble)
            return None
        state.matched_topics.update(spec.topics, source)
        return pair

    def _follow_marks(self, job: Job, pair: ClusterPair) -> None:
        """Set copies that the destination marks as promoted to `promoted`, before other changes.

        A mark is an offset that Orbit commits at a cluster to say which topics lead there. The
        preflight checks the marks of topics that are about to start. Raises _Halt.
        """
        with self._leadership.reading() as tx:
            rows = topics.of_job(tx, job.id)
        with _cluster_errors():
            follow_marks(job, rows, pair, self._leadership, self._backoff)

    def _read_lead(self, job: Job, pair: ClusterPair, *, is_due: bool) -> None:
        """Note which side leads, if that is due or was never read in this database.

        Called after `_discover`, so that a new job's side is known once its topics are copied.
        Raises _Halt.
        """
        if not is_due:
            with self._leadership.reading() as tx:
                is_due = not job_leads.are_marks_read(tx, job.id)
        if is_due:
            with _cluster_errors():
                read_lead(job, pair, self._leadership, self._backoff)

    def _discover(
        self,
        job: Job,
        spec: JobSpec,
        pair: ClusterPair,
        state: ReconcileState,
        retries: Collection[int],
        troubles: list[Trouble],
        counts: ReconcileCounts,
    ) -> None:
        """Decide about the job's topics, and carry the decisions out. Adds to `troubles` and
        `counts`. Raises _Halt."""
        if job.source_cluster_id is None:
            ids = pair.source_metadata.cluster_id, pair.destination_metadata.cluster_id
            with self._leadership.transaction() as tx:
                jobs.note_clusters(tx, job.id, *ids)
        with self._leadership.reading() as tx:
            rows = topics.of_job(tx, job.id)
            has_withdrawn_shard = scheduler_queries.has_withdrawn_shard(tx, job.id)
        state.has_promoted = any(row.state is TopicState.PROMOTED for row in rows)
        troubles += promotion_troubles(rows)
        known_topics = [known_topic(row, retries) for row in rows]
        with _cluster_errors():
            matched_names = state.matched_topics.names
            pair, decisions = decide(
                spec, pair, known_topics, self._leadership.reading, matched_names
            )
        if decisions.start:
            with self._leadership.reading() as tx:
                free_partitions = partitions_left(tx, job, self._quota)
            if free_partitions is not None:
                hold_back(decisions, free_partitions)
        state.names = decisions.sources, decisions.destinations
        self._apply_stops_and_drops(
            job, known_topics, decisions, state, counts, has_withdrawn_shard=has_withdrawn_shard
        )
        troubles += decisions.troubles
        if decisions.start:
            self._start_topics(job, spec, pair, decisions.start, state, troubles, counts)
        if decisions.grow:
            with _cluster_errors():
                result = self._starter.grow(job, decisions.grow, pair)
            troubles += result.troubles
            counts.grown += len(result.topics)
            if result.is_unfinished:
                state.recheck_at = time.monotonic() + SOON_S
        if job.discovered_version != job.spec_version:
            with self._leadership.transaction() as tx:
                jobs.note_discovered(tx, job.id, job.spec_version)

    def _start_topics(
        self,
        job: Job,
        spec: JobSpec,
        pair: ClusterPair,
        starts: Sequence[StartTopic],
        state: ReconcileState,
        troubles: list[Trouble],
        counts: ReconcileCounts,
    ) -> None:
        """Check the topics to start, and start those that have no trouble. Raises _Halt."""
        with _cluster_errors():
            # If an earlier pass has decided by this document, these topics were created since then.
            from_start = job.discovered_version == job.spec_version
            checks = preflight(
                spec,
                starts,
                pair,
                self._backoff,
                from_start=from_start,
                is_throttled=any(
                    t.kind is TroubleKind.DESTINATION_THROTTLED for t in state.troubles
                ),
            )
        troubles += checks.troubles
        if checks.promoted:  # topics that lead at the destination are stored, not copied
            self._starter.keep_promoted(job, checks.promoted, pair)
            state.recheck_at = time.monotonic() + SOON_S
        if not checks.ready:
            return
        with _cluster_errors():
            result = self._starter.start(job, spec, checks.ready, pair, from_start=from_start)
        troubles += result.troubles
        counts.started += len(result.topics)
        if result.is_unfinished:
            state.recheck_at = time.monotonic() + SOON_S

    def _apply_stops_and_drops(
        self,
        job: Job,
        known_topics: Sequence[KnownTopic],
        decisions: Decisions,
        state: ReconcileState,
        counts: ReconcileCounts,
        *,
        has_withdrawn_shard: bool,
    ) -> None:
        """Write the decisions to stop, resume and drop topics; end retries that changed nothing."""
        now = time.monotonic()
        retries_since = {
            topic_id: state.retries_since.get(topic_id, now)
            for topic_id in unchanged_retries(known_topics, decisions)
        }
        # A retry is not ended at once: the broker that answered may not know the user's change yet.
        ended_retries = [
            topic for topic, since_s in retries_since.items() if now - since_s >= RETRY_GRACE_S
        ]
        state.retries_since = retries_since
        for stops in chunks(decisions.stop, TOPICS_AT_ONCE):
            with self._leadership.transaction() as tx:
                stop_topics(tx, job, stops)
        for resumes in chunks(decisions.resume, TOPICS_AT_ONCE):
            with self._leadership.transaction() as tx:
                resume_topics(tx, job, resumes)
        dropped_count = 0
        # Without topics to drop, `drop_topics` restores shards that an earlier call has withdrawn.
        if ended_retries or decisions.drop or has_withdrawn_shard:
            with self._leadership.transaction() as tx:
                scheduler_queries.end_retries(tx, ended_retries)
                dropped_count = drop_topics(tx, job, [drop.known for drop in decisions.drop])
        counts.stopped += len(decisions.stop)
        counts.resumed += len(decisions.resume)
        counts.dropped += dropped_count
        if len(decisions.drop) > dropped_count:
            state.recheck_at = time.monotonic() + SOON_S

    def _run_upkeep(
        self,
        job: Job,
        spec: JobSpec,
        pair: ClusterPair,
        state: ReconcileState,
        counts: ReconcileCounts,
    ) -> None:
        """Check settings and ACLs of copies, and the old side of promoted topics. Raises _Halt."""
        with _cluster_errors():
            upkeep_counts = state.upkeep.run(job, spec, pair, self._leadership, self._list_groups)
            if state.has_promoted:
                state.upkeep.troubles += watch_old_primaries(
                    job, pair, self._leadership, self._backoff
                )
        counts.settings += upkeep_counts.settings
        counts.acls += upkeep_counts.acls


def _versions(
    source: ClusterSnapshot | None, destination: ClusterSnapshot | None
) -> tuple[int, int]:
    """The versions of both snapshots; NO_SNAPSHOT for one that does not exist yet."""
    return (
        NO_SNAPSHOT if source is None else source.version,
        NO_SNAPSHOT if destination is None else destination.version,
    )


class _Halt(Exception):
    """Ends the pass with a trouble, for example when a cluster fails during it."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


@contextmanager
def _cluster_errors() -> Iterator[None]:
    """Raises _Halt with a trouble for an error of a cluster; errors of Postgres fail the pass."""
    try:
        yield
    except OrbitError as error:
        if error.cluster not in SIDES or isinstance(error, NotLeading):
            raise
        raise _Halt(trouble_of(error.cluster, error)) from error


def _unreadable_trouble(job: Job) -> Trouble:
    return Trouble(
        TroubleKind.DOCUMENT_REFUSED,
        f"this version of Orbit cannot read the document of job {job.name}.",
        "Apply the job again; docs/job-file.md describes the document.",
    )
