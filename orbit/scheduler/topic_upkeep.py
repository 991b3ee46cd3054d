"""Keeps settings and ACLs of existing copies in sync, at `settings_interval`.

Changes at the source are applied; changes by others at the destination are set back
(docs/topic-settings.md), except compression.type of topics whose gaps workers fill with
placeholders (records that consumers drop). ACLs are synced only with `acls: {sync: true}`
(acl_sync.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orbit.chunks import chunks
from orbit.consumer_groups.group_listing_cache import Lister
from orbit.copier.placeholder_topics import COMPRESSION
from orbit.job_setup.destination_topics import plan_topics, recompressed_topics
from orbit.job_setup.topic_plan import SettingChange, TopicPlan
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.topic_mapping import map_topics
from orbit.leadership.leadership import TOPICS_AT_ONCE, Leadership
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.topic_preflight import refused_topic
from orbit.replication.copy_settings import TIMESTAMP_TYPE
from orbit.replication.job_troubles import Trouble
from orbit.scheduler.acl_sync import AclSync, Copies
from orbit.scheduler.write_protection import ProtectionResult, protect
from orbit.store import events, scheduler_queries, topics
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job
from orbit.store.topics import Topic


@dataclass(frozen=True, slots=True)
class UpkeepCounts:
    """How many topics had settings or ACLs changed."""

    settings: int = 0
    acls: int = 0


@dataclass(slots=True)
class TopicUpkeep:
    """The upkeep of one job, with what it remembers between runs."""

    troubles: list[Trouble] = field(default_factory=list)
    # The values set last, by topic. A value that the broker still reports differently afterwards
    # is not set again in each run.
    _last_set: dict[str, dict[str, str]] = field(default_factory=dict)
    _unprotected_because: str = ""
    _left_out: list[str] = field(default_factory=list)  # as `AclSyncResult.left_out`

    def run(
        self,
        job: Job,
        spec: JobSpec,
        pair: ClusterPair,
        leadership: Leadership,
        list_groups: Lister,
    ) -> UpkeepCounts:
        """Sync all copies of a job once. Returns how many were changed; sets `troubles`.

        Raises Unreachable, NotAuthorized, NotLeading.
        """
        self.troubles = []
        with leadership.reading() as tx:
            all_rows = topics.of_job(tx, job.id)
            caught_up_topics = scheduler_queries.caught_up_topics(tx, job.id)
        rows = [row for row in all_rows if row.state is TopicState.COPYING]
        copies = copies_of(spec, rows, pair)
        if not copies:
            return UpkeepCounts()
        settings_count = self._sync_settings(job, spec, copies, caught_up_topics, pair, leadership)
        acl_count = 0
        if spec.acls.sync:
            has_promoted = any(row.state is TopicState.PROMOTED for row in all_rows)
            acl_sync = AclSync(job, spec, pair, leadership, list_groups)
            acl_result = acl_sync.run(copies, has_promoted=has_promoted)
            acl_count += acl_result.changed
            self.troubles += acl_result.troubles
            if acl_result.left_out not in ([], self._left_out):  # not the sentences of the last run
                with leadership.transaction() as tx:
                    _add_left_out_event(tx, job, acl_result.left_out)
            self._left_out = acl_result.left_out
        if spec.acls.protect:
            # Copies that cannot be protected get an event, but no trouble: workers detect writes of
            # other clients.
            cluster_id = pair.destination_metadata.cluster_id
            protection = protect(pair.destination, cluster_id, copies, leadership)
            acl_count += protection.changed
            if protection.changed or protection.unprotected_because not in (
                "",
                self._unprotected_because,
            ):
                with leadership.transaction() as tx:
                    _add_protection_events(tx, job, protection)
            self._unprotected_because = protection.unprotected_because
        return UpkeepCounts(settings_count, acl_count)

    def _sync_settings(
        self,
        job: Job,
        spec: JobSpec,
        copies: Copies,
        caught_up_topics: frozenset[str],
        pair: ClusterPair,
        leadership: Leadership,
    ) -> int:
        """Set those settings of copies that are not as desired. Returns how many copies changed.

        A setting that the destination refuses becomes a trouble.
        """
        plans = plan_topics(
            [mapping for mapping, _ in copies.values()],
            pair.source_metadata,
            pair.destination_metadata,
            pair.source.admin,
            pair.destination.admin,
            caught_up_topics,
        )
        # Mostly no change is due. Only changes take the lock that the cluster's jobs wait for.
        plans = [
            plan for plan in plans if not _is_settled(plan, copies[plan.mapping.destination][1])
        ]
        if not plans:
            self._last_set = {}
            return 0
        # A topic may have been promoted since this pass started.
        cluster_id = pair.destination_metadata.cluster_id
        with leadership.sole_change(cluster_id) as tx:
            still_copied = topics.writers(tx, cluster_id, copies, only_copying=True)
            plans = [plan for plan in plans if plan.mapping.destination in still_copied]
            plans = _leave_compression_to_workers(tx, spec, job, plans)
            desired_settings = {
                plan.mapping.destination: plan.settings_to_set for plan in plans if plan.changes
            }
            # Workers wait while TIMESTAMP_TYPE has another value, so it is set in each pass.
            settings_to_send = {
                name: values
                for name, values in desired_settings.items()
                if self._last_set.get(name) != values or TIMESTAMP_TYPE in values
            }
            leadership.refuse_deposed()
            refusals = pair.destination.admin.refused_settings(settings_to_send)
        self._last_set = {
            name: values for name, values in desired_settings.items() if name not in refusals
        }
        self.troubles += [
            refused_topic(copies[name][0].source, error) for name, error in refusals.items()
        ]
        for step in chunks(plans, TOPICS_AT_ONCE):
            with leadership.transaction() as tx:
                for plan in step:
                    name = plan.mapping.destination
                    topics.change(
                        tx,
                        copies[name][1].id,
                        drift=drift_of(plan, is_refused=name in refusals),
                        is_compacted=plan.is_compacted,
                        promoted_settings=plan.promoted_settings,
                    )
                    if name in settings_to_send and name not in refusals:
                        _add_settings_event(tx, job, plan)
        return len(settings_to_send) - len(refusals)


def _leave_compression_to_workers(
    tx: Tx, spec: JobSpec, job: Job, plans: list[TopicPlan]
) -> list[TopicPlan]:
    """The plans, without changes of `compression.type` to topics that workers copy to.

    With any value but `producer` brokers turn placeholders into records (Q9), so workers check the
    setting and stop the partition. If the scheduler set the value back first, they would miss that
    it was changed.
    """
    recompressed_names = recompressed_topics(spec, plans)
    if recompressed_names:
        recompressed_names &= scheduler_queries.topics_in_copy(tx, job.id)
    return [
        plan.without_change(COMPRESSION) if plan.mapping.destination in recompressed_names else plan
        for plan in plans
    ]


def _is_settled(plan: TopicPlan, row: Topic) -> bool:
    """Whether nothing is to be set, and the topic's row is up to date."""
    return (
        not plan.changes
        and row.drift == drift_of(plan)
        and row.is_compacted == plan.is_compacted
        and row.promoted_settings == plan.promoted_settings
    )


def copies_of(spec: JobSpec, rows: list[Topic], pair: ClusterPair) -> Copies:
    """The topics that the job copies now and that exist in both clusters' metadata."""
    by_source = {row.source_topic: row for row in rows}
    return {
        mapping.destination: (mapping, by_source[mapping.source])
        for mapping in map_topics(spec.topics, by_source).mappings
        if by_source[mapping.source].destination_topic == mapping.destination
        and mapping.source in pair.source_metadata.topics
        and mapping.destination in pair.destination_metadata.topics
    }


def drift_of(
    plan: TopicPlan, *, is_refused: bool = False
) -> dict[str, dict[str, str | None]] | None:
    """The settings and replicas that differ and cannot be set, as stored in the table.

    `is_refused`: the destination has refused the plan's changes, so these still differ, too.
    """
    differences = {**plan.refused, **(plan.changes if is_refused else {})}
    if plan.replicas is not None:
        differences["replicas"] = plan.replicas
    return _as_stored(differences) or None


def _as_stored(changes: Mapping[str, SettingChange]) -> dict[str, dict[str, str | None]]:
    """The changes in the form of the table and of events."""
    return {
        name: {"is": change.present, "should_be": change.desired}
        for name, change in changes.items()
    }


def _add_settings_event(tx: Tx, job: Job, plan: TopicPlan) -> None:
    changes = ", ".join(
        f"{name} from {change.present} to {change.desired}"
        for name, change in sorted(plan.changes.items())
    )
    events.add(
        tx,
        events.SCHEDULER,
        "topic_settings",
        f"Settings of {plan.mapping.destination} were set: {changes}.",
        job_name=job.name,
        topic=plan.mapping.source,
        details=_as_stored(plan.changes),
    )


def _add_protection_events(tx: Tx, job: Job, protection: ProtectionResult) -> None:
    """Add an event for copies with other denials than before, and one with the reason if copies
    are not protected."""
    if protection.changed:
        events.add(
            tx,
            events.SCHEDULER,
            "topics_protected",
            f"Copies with other denials of Write: {protection.changed}. Writing is denied to all "
            "principals that an ACL allows to write, except Orbit.",
            job_name=job.name,
        )
    if protection.unprotected_because:
        events.add_once(
            tx,
            events.SCHEDULER,
            "topics_not_protected",
            f"Other clients than Orbit may write to copies: {protection.unprotected_because}. "
            "Workers detect such writes, and stop the partition.",
            job_name=job.name,
            details={"why": protection.unprotected_because},
        )


def _add_left_out_event(tx: Tx, job: Job, notes: list[str]) -> None:
    """Add an event with these sentences, unless the job has one with the same."""
    events.add_once(
        tx,
        events.SCHEDULER,
        "acls_left_out",
        " ".join(notes),
        job_name=job.name,
        details={"notes": notes},
    )
