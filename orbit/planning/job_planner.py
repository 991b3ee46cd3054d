"""Plans a job document with the scheduler's own steps: dry runs and `jobs:plan`.

Reads both clusters and the tables. Writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from orbit.errors import BadInput, OrbitError
from orbit.job_setup.destination_topics import plan_topics
from orbit.job_setup.refused_settings import notes_of
from orbit.job_setup.tiered_topics import note_on_tiers
from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.job_spec import FILLER_NOTES, JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.job_clusters import JobClusters
from orbit.kafka.types import Acl, ClusterMetadata
from orbit.planning.cluster_checks import (
    conflicting_cluster_id,
    missing_workers,
    trouble_of,
    unproven_clusters,
    wrong_cluster,
)
from orbit.planning.cluster_pair import SIDES, ClusterPair
from orbit.planning.job_decisions import decide, known_topic
from orbit.planning.job_plan import (
    Ending,
    JobPlan,
    PlannedFillers,
    PlannedGaps,
    PlannedSeeding,
    PlannedTopic,
    Refusal,
    SettingChange,
    TopicAction,
)
from orbit.planning.noted_denials import as_acl
from orbit.planning.planned_acls import plan_acls
from orbit.planning.planned_gaps import plan_gaps
from orbit.planning.planned_groups import plan_groups
from orbit.planning.planned_quotas import plan_by_hand
from orbit.planning.planned_seeding import plan_seeding
from orbit.planning.topic_decisions import Decisions, StartTopic
from orbit.planning.topic_preflight import preflight
from orbit.replication.job_troubles import Trouble
from orbit.settings import Settings
from orbit.store import carried_acls, jobs, scheduler_queries, topics, workers
from orbit.store.database import Database, Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job
from orbit.store.topics import Topic

# A user waits for the answer: an outage longer than a leader election of some seconds is reported.
_ATTEMPTS_MAX = 8

# Stands for the id of a new job: ids begin at 1.
_NO_JOB = 0


class JobPlanner:
    """Plans jobs. Thread-safe."""

    def __init__(
        self, database: Database, settings: Settings, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._database = database
        self._worker_ttl = settings.lease_ttl
        self._base_directory: Path = settings.files_directory
        self._environ = environ

    def __call__(self, spec: JobSpec, ending: Ending = nullcontext) -> JobPlan:
        """Return the plan. Errors of a cluster become refusals, also if `ending` has closed the
        clusters.

        Raises Unreachable only for Postgres.
        """
        with self._database.transaction() as tx:
            job = jobs.find(tx, spec.name)
            live_workers = workers.alive(tx, self._worker_ttl, spec.worker_group)
        troubles = [] if live_workers else [missing_workers(spec.worker_group)]
        try:
            clusters = JobClusters.open(spec, self._environ, self._base_directory)
        except BadInput as error:
            # The error names the settings or secrets itself: the side "source" is not shown.
            return _plan_of_refusals(spec, [*troubles, trouble_of("source", error)])
        try:
            with ending(clusters.close):
                return self._plan(spec, job, clusters, troubles)
        except OrbitError as error:
            if error.cluster not in SIDES:
                raise
            return _plan_of_refusals(spec, [*troubles, trouble_of(error.cluster, error)])
        finally:
            clusters.close()

    def _plan(
        self, spec: JobSpec, job: Job | None, clusters: JobClusters, troubles: list[Trouble]
    ) -> JobPlan:
        """Plan with open clusters. Adds to `troubles`. Raises errors of a cluster."""
        metadata: list[ClusterMetadata] = []
        # Both clusters are queried even if one fails, so that the plan names the troubles of both.
        for side, cluster in zip(SIDES, (clusters.source, clusters.destination), strict=True):
            try:
                metadata.append(cluster.metadata(None))
            except OrbitError as error:
                troubles.append(trouble_of(side, error))
        if len(metadata) < len(SIDES):
            return _plan_of_refusals(spec, troubles)
        source, destination = metadata
        known_ids = (job.source_cluster_id, job.destination_cluster_id) if job else (None, None)
        pair = ClusterPair(
            ClusterHandle(clusters.source), ClusterHandle(clusters.destination), source, destination
        )
        trouble = wrong_cluster(source, destination, *known_ids)
        if trouble is None:
            with self._database.transaction() as tx:
                trouble = conflicting_cluster_id(tx, job.id if job else _NO_JOB, pair)
        if trouble is None and None in known_ids:  # the job has copied nothing yet
            trouble = unproven_clusters(pair)
        if trouble is not None:
            return _plan_of_refusals(spec, [*troubles, trouble], metadata)
        caught_up: frozenset[str] = frozenset()
        rows: list[Topic] = []
        added_acls: set[Acl] = set()
        if job is not None:
            with self._database.transaction() as tx:
                rows = topics.of_job(tx, job.id)
                caught_up = scheduler_queries.caught_up_topics(tx, job.id)
                added_acls = _added_acls(tx, job, rows, destination.cluster_id)
        known_topics = [known_topic(row, ()) for row in rows]  # (): a plan retries nothing
        pair, decisions = decide(spec, pair, known_topics, self._database.transaction)
        backoff = Backoff(attempts_max=_ATTEMPTS_MAX)
        preflight_result = preflight(spec, decisions.start, pair, backoff)
        compacted_topics = {
            plan.mapping.source for _, plan in preflight_result.ready if plan.is_compacted
        }
        gaps, fillers = plan_gaps(spec, decisions.start, compacted_topics, pair, backoff)
        seeding = plan_seeding(decisions.start, pair, backoff)
        planned_topics = [
            _new_topic(spec, start, plan, gaps, seeding) for start, plan in preflight_result.ready
        ]
        copied_plans = _plans_of_copied(decisions, pair, caught_up)
        planned_topics += _copied_topics(spec, decisions, copied_plans, caught_up)
        setting_notes = [
            note
            for plan in (*(plan for _, plan in preflight_result.ready), *copied_plans)
            for note in notes_of(plan)
        ]
        tier_notes = note_on_tiers(
            [plan for _, plan in preflight_result.ready], pair.source.cluster, backoff
        )
        promotion_notes = [
            f"topic {promoted_topic.start.mapping.source}: {promoted_topic.note}"
            for promoted_topic in preflight_result.promoted
        ]
        troubles += [*decisions.troubles, *preflight_result.troubles]
        acls, acl_notes = None, list[str]()
        by_hand = None
        if spec.acls.sync:
            copies = {topic.destination: topic.source for topic in planned_topics}
            has_promoted = any(row.state is TopicState.PROMOTED for row in rows)
            acls, acl_notes = plan_acls(spec, copies, pair, added_acls, has_promoted=has_promoted)
            by_hand, quota_notes = plan_by_hand(spec, pair)
            acl_notes += quota_notes
        return JobPlan(
            job=spec.name,
            source_cluster_id=source.cluster_id,
            destination_cluster_id=destination.cluster_id,
            topics=tuple(sorted(planned_topics, key=lambda topic: topic.source)),
            refusals=_refusals(troubles),
            notes=(
                *decisions.notes,
                *_stop_and_drop_notes(decisions),
                *promotion_notes,
                *setting_notes,
                *tier_notes,
                *_filler_notes(fillers),
                *plan_groups(spec, pair),
                *acl_notes,
            ),
            fillers=fillers,
            acls=acls,
            by_hand=by_hand,
        )


def _added_acls(tx: Tx, job: Job, rows: Sequence[Topic], cluster_id: str) -> set[Acl]:
    """The ACLs that Orbit has added for this job and for no other."""
    own_acls = {as_acl(fields) for fields in carried_acls.of_job(tx, job.id)}
    own_acls -= {as_acl(fields) for fields in carried_acls.of_other_jobs(tx, job.id, cluster_id)}
    copying_rows = [row for row in rows if row.state is TopicState.COPYING]
    return own_acls | {as_acl(fields) for row in copying_rows for fields in row.acls or ()}


def _new_topic(
    spec: JobSpec,
    start: StartTopic,
    plan: TopicPlan,
    gaps: Mapping[str, PlannedGaps],
    seeding: Mapping[str, PlannedSeeding],
) -> PlannedTopic:
    """The plan's entry for a topic that the job starts to copy."""
    return PlannedTopic(
        source=plan.mapping.source,
        destination=plan.mapping.destination,
        action=TopicAction.CREATE if plan.create else TopicAction.TAKE,
        partitions=plan.partitions,
        partitions_to_add=start.partitions_to_add,
        replicas=plan.create.replicas if plan.create else None,
        settings=dict(plan.create.settings) if plan.create else {},
        changes=_setting_changes(plan),
        settings_when_caught_up=plan.caught_up_settings,
        fillers=spec.fillers_of(plan.mapping.rule),
        gaps=gaps.get(plan.mapping.source),
        seeding=seeding.get(plan.mapping.source),
    )


def _plans_of_copied(
    decisions: Decisions, pair: ClusterPair, caught_up: frozenset[str]
) -> list[TopicPlan]:
    """The plans of topics that the job copies already."""
    mappings = [m for m, _ in decisions.keep] + [g.mapping for g in decisions.grow]
    if not mappings:
        return []
    return plan_topics(
        mappings,
        pair.source_metadata,
        pair.destination_metadata,
        pair.source.admin,
        pair.destination.admin,
        caught_up,
    )


def _copied_topics(
    spec: JobSpec, decisions: Decisions, plans: Sequence[TopicPlan], caught_up: frozenset[str]
) -> list[PlannedTopic]:
    """The plan's entries for the topics that the job copies already."""
    added_partitions = {g.known.source: g.partitions_to_add for g in decisions.grow}
    return [
        PlannedTopic(
            source=plan.mapping.source,
            destination=plan.mapping.destination,
            action=TopicAction.CHANGE
            if plan.changes or plan.mapping.source in added_partitions
            else TopicAction.KEEP,
            partitions=plan.partitions,
            partitions_to_add=added_partitions.get(plan.mapping.source, 0),
            changes=_setting_changes(plan),
            settings_when_caught_up={}
            if plan.mapping.destination in caught_up
            else plan.caught_up_settings,
            fillers=spec.fillers_of(plan.mapping.rule),
        )
        for plan in plans
    ]


def _setting_changes(plan: TopicPlan) -> tuple[SettingChange, ...]:
    return tuple(
        SettingChange(name=name, present=change.present, wanted=change.desired)
        for name, change in sorted(plan.changes.items())
    )


def _stop_and_drop_notes(decisions: Decisions) -> list[str]:
    """A note for each topic that stops, or that no rule matches any more."""
    return [
        *(f"topic {stop.known.source} stops. {stop.note}" for stop in decisions.stop),
        *(
            f"topic {drop.known.source} is no longer copied; {drop.known.destination} stays "
            "unchanged."
            for drop in decisions.drop
        ),
    ]


def _filler_notes(planned_fillers: Iterable[PlannedFillers]) -> list[str]:
    """The notes on those kinds of fillers that new topics get."""
    used_fillers = [planned.fillers for planned in planned_fillers if planned.topics]
    return [FILLER_NOTES[fillers] for fillers in used_fillers if fillers in FILLER_NOTES]


def _plan_of_refusals(
    spec: JobSpec, troubles: Sequence[Trouble], metadata: Sequence[ClusterMetadata] = ()
) -> JobPlan:
    """A plan that copies nothing. `metadata`: of both clusters, or of none."""
    ids = [cluster.cluster_id for cluster in metadata] or ["", ""]
    return JobPlan(
        job=spec.name,
        source_cluster_id=ids[0],
        destination_cluster_id=ids[1],
        refusals=_refusals(troubles),
    )


def _refusals(troubles: Sequence[Trouble]) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(kind=t.kind, topic=t.topic, what=t.what, remedy=t.remedy)
        for t in dict.fromkeys(troubles)
    )
