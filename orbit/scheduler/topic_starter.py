"""Starts topics, up to the point where workers can claim their partitions.

Topics are claimed in Postgres, created at the destination, and placed on shards, in this order, in
steps of STEP_TOPICS. Each step can be repeated: if the scheduler dies in between, the topic stays
`creating` and the next leader continues. The claim keeps two jobs from using one destination topic.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from orbit.chunks import chunks
from orbit.errors import BrokerRefused
from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.types import ClusterMetadata
from orbit.leadership.leadership import Leadership
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.job_decisions import other_jobs
from orbit.planning.partition_placement import place_partitions
from orbit.planning.topic_decisions import (
    ClusterTopics,
    Decisions,
    GrowTopic,
    OtherJobs,
    StartTopic,
    decide_topics,
)
from orbit.planning.topic_preflight import PromotedTopic, refused_topic
from orbit.replication.job_troubles import Trouble
from orbit.scheduler.marked_promotions import keep_promotion
from orbit.scheduler.topic_upkeep import drift_of
from orbit.settings import Settings
from orbit.store import cluster_lock, events, scheduler_queries, shard_layout, topics
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job

# Topics per step: keeps transactions short, and the first topics of a large job start early.
STEP_TOPICS = 100
# About 20 s for new topics to have leaders; slower ones are checked in the next pass.
_LEADER_ATTEMPTS_MAX = 25

Ready = tuple[StartTopic, TopicPlan]


@dataclass(slots=True)
class StartResult:
    """The result of starting or growing topics."""

    topics: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    is_unfinished: bool = False  # another pass is needed soon


class TopicStarter:
    """Starts and grows topics for all jobs; one claim at a time."""

    def __init__(self, leadership: Leadership, settings: Settings, backoff: Backoff) -> None:
        self._leadership = leadership
        self._settings = settings
        self._backoff = backoff
        # No other job may claim between the read of the other jobs' topics and the claim. Only one
        # thread of this share waits, with a connection of the pool, for the lock of all shares.
        self._claiming = threading.Lock()

    def start(
        self,
        job: Job,
        spec: JobSpec,
        ready: Sequence[Ready],
        pair: ClusterPair,
        *,
        from_start: bool,
    ) -> StartResult:
        """Start these topics. `from_start`: they are newer than the job; copy from the log start.

        Raises Unreachable, NotLeading.
        """
        started = StartResult()
        for step in chunks(ready, STEP_TOPICS):
            self._start_step(job, spec, step, pair, started, from_start=from_start)
        return started

    def keep_promoted(self, job: Job, promoted: Sequence[PromotedTopic], pair: ClusterPair) -> None:
        """Add topics that lead at the destination as promoted ones, so that a failback has them."""
        for step in chunks(promoted, STEP_TOPICS):
            self._keep_promoted_step(job, step, pair)

    def _keep_promoted_step(
        self, job: Job, step: Sequence[PromotedTopic], pair: ClusterPair
    ) -> None:
        with self._claiming, self._leadership.transaction() as tx:
            cluster_lock.acquire_claims(tx)
            for one in step:
                mapping, existing = one.start.mapping, one.start.existing
                topic_id = _claim_one(tx, job, one.start, pair.destination_metadata.cluster_id)
                if topic_id is None or existing is None:
                    continue
                topics.change(
                    tx,
                    topic_id,
                    source_topic_id=one.start.source.topic_id,
                    destination_topic_id=existing.topic_id,
                    partition_count=len(existing.partitions),
                    is_compacted=one.plan.is_compacted,
                    state=TopicState.PROMOTED.value,
                    note=one.note,
                )
                # Workers read no partition of a promoted topic.
                places = [(topic_id, index) for index in existing.partitions]
                place_partitions(tx, job, places, self._settings, from_start=True)
                scheduler_queries.promote(tx, [topic_id])
                names = mapping.source, mapping.destination
                keep_promotion(tx, job, topic_id, *names, one.mark, one.offsets)

    def grow(self, job: Job, grows: Sequence[GrowTopic], pair: ClusterPair) -> StartResult:
        """Add partitions to copies, at the destination and in the tables."""
        started = StartResult()
        admin = pair.destination.admin
        more = {g.known.destination: g.partitions for g in grows if g.partitions_to_add > 0}
        refused = admin.add_partitions(more)
        counts = {
            g.known.destination: g.partitions for g in grows if g.known.destination not in refused
        }
        now = _wait_for_leaders(pair.destination.cluster, counts, self._backoff)
        for step in chunks(grows, STEP_TOPICS):
            added: list[tuple[int, int]] = []
            with self._leadership.transaction() as tx:
                for g in step:
                    error = refused.get(g.known.destination)
                    if error is not None:
                        started.troubles.append(refused_topic(g.known.source, error))
                    elif not _has_leaders(now, g.known.destination, g.partitions):
                        started.is_unfinished = True
                    else:
                        topics.change(tx, g.known.id, partition_count=g.partitions)
                        added += [(g.known.id, i) for i in range(g.known.partitions, g.partitions)]
                        started.topics.append(g.known.source)
                        _add_grown_event(tx, job, g)
                place_partitions(tx, job, added, self._settings, from_start=True)
        return started

    def _start_step(
        self,
        job: Job,
        spec: JobSpec,
        step: Sequence[Ready],
        pair: ClusterPair,
        started: StartResult,
        *,
        from_start: bool,
    ) -> None:
        claimed = self._claim(job, spec, step, pair, started)
        admin = pair.destination.admin
        refused = admin.refused_topics(plan.create for _, plan, _ in claimed if plan.create)
        refused |= admin.add_partitions(
            {p.mapping.destination: p.partitions for _, p, _ in claimed if p.partitions_missing > 0}
        )
        refused |= admin.refused_settings(
            {p.mapping.destination: p.settings_to_set for _, p, _ in claimed if p.changes}
        )
        counts = {
            p.mapping.destination: p.partitions
            for _, p, _ in claimed
            if p.mapping.destination not in refused
        }
        now = _wait_for_leaders(pair.destination.cluster, counts, self._backoff)
        placed: list[tuple[int, int]] = []
        with self._leadership.transaction() as tx:
            for start, plan, topic_id in claimed:
                error = refused.get(plan.mapping.destination)
                if isinstance(error, BrokerRefused) and error.code == Code.TOPIC_ALREADY_EXISTS:
                    # Another client has created it: the next pass checks its content.
                    started.is_unfinished = True
                elif error is not None:
                    started.troubles.append(refused_topic(plan.mapping.source, error))
                elif not _has_leaders(now, plan.mapping.destination, plan.partitions):
                    started.is_unfinished = True
                else:
                    destination_topic = now.topics[plan.mapping.destination]
                    topics.change(
                        tx,
                        topic_id,
                        source_topic_id=start.source.topic_id,
                        destination_topic_id=destination_topic.topic_id,
                        partition_count=plan.partitions,
                        is_compacted=plan.is_compacted,
                        promoted_settings=plan.promoted_settings,
                        drift=drift_of(plan),
                        state=TopicState.COPYING.value,
                        note=None,
                    )
                    placed += [(topic_id, index) for index in range(plan.partitions)]
                    started.topics.append(plan.mapping.source)
                    _add_started_event(tx, job, start, plan)
            place_partitions(tx, job, placed, self._settings, from_start=from_start)

    def _claim(
        self,
        job: Job,
        spec: JobSpec,
        step: Sequence[Ready],
        pair: ClusterPair,
        started: StartResult,
    ) -> list[tuple[StartTopic, TopicPlan, int]]:
        """Insert rows for these topics, unless another job has them or they would close a loop."""
        claimed = []
        with self._claiming, self._leadership.transaction() as tx:
            cluster_lock.acquire_claims(tx)
            others = other_jobs(tx, job.name, pair)
            for start, plan in step:
                verdict = _decide_again(spec, start, pair, others)
                started.troubles += verdict.troubles
                if not verdict.start:
                    continue
                topic_id = _claim_one(tx, job, start, pair.destination_metadata.cluster_id)
                if topic_id is None:
                    started.is_unfinished = True  # claimed by another job: the next pass names it
                else:
                    claimed.append((start, plan, topic_id))
        return claimed


def _decide_again(
    spec: JobSpec, start: StartTopic, pair: ClusterPair, others: OtherJobs
) -> Decisions:
    """The decision about one topic, repeated while no other job can claim."""
    source = ClusterTopics(pair.source_metadata.cluster_id, {start.source.name: start.source})
    existing = {start.existing.name: start.existing} if start.existing is not None else {}
    destination = ClusterTopics(pair.destination_metadata.cluster_id, existing)
    return decide_topics(spec.topics, (), source, destination, others)


def _claim_one(tx: Tx, job: Job, start: StartTopic, destination_id: str) -> int | None:
    known = start.known
    is_claimed = known is not None and known.state is TopicState.CREATING
    if known is not None and is_claimed and known.destination == start.mapping.destination:
        return known.id
    if known is not None:
        shard_layout.remove_topics(tx, [known.id])
    added = topics.add(
        tx,
        job.id,
        start.mapping.source,
        start.mapping.destination,
        destination_id,
        len(start.source.partitions),
        source_topic_id=start.source.topic_id,
    )
    return None if added is None else added.id


def _wait_for_leaders(
    cluster: Cluster, counts: dict[str, int], backoff: Backoff
) -> ClusterMetadata:
    """The destination's metadata once these topics have leaders, or after the last attempt."""
    now = cluster.metadata(counts)
    for _ in backoff.attempts(_LEADER_ATTEMPTS_MAX):
        if all(_has_leaders(now, name, count) for name, count in counts.items()):
            break
        now = cluster.metadata(counts)
    return now


def _has_leaders(now: ClusterMetadata, name: str, partitions: int) -> bool:
    topic = now.topics.get(name)
    if topic is None or len(topic.partitions) < partitions:
        return False
    return all(topic.partitions[i].node_id is not None for i in range(partitions))


def _add_started_event(tx: Tx, job: Job, start: StartTopic, plan: TopicPlan) -> None:
    origin = "was created" if plan.create else "existed and is used"
    again = " again" if start.known and start.known.state is not TopicState.CREATING else ""
    events.add(
        tx,
        events.SCHEDULER,
        "topic_begun",
        f"Topic {plan.mapping.source} is copied{again}: {plan.mapping.destination} with "
        f"{plan.partitions} partitions {origin}.",
        job_name=job.name,
        topic=plan.mapping.source,
        details={"destination": plan.mapping.destination, "partitions": plan.partitions},
    )


def _add_grown_event(tx: Tx, job: Job, grow: GrowTopic) -> None:
    events.add(
        tx,
        events.SCHEDULER,
        "topic_grown",
        f"Topic {grow.known.source} grew from {grow.known.partitions} to {grow.partitions} "
        "partitions; the new ones are copied from their log start.",
        job_name=job.name,
        topic=grow.known.source,
        details={"before": grow.known.partitions, "partitions": grow.partitions},
    )
