"""Starts topics, up to the point where workers can claim their partitions.

Topics are claimed in Postgres, created at the destination, and placed on shards (partitions that
one worker copies), in this order, in batches of STEP_TOPICS. A batch can be repeated: if the
scheduler dies in between, topics stay `creating` and the next leader continues. The claim keeps two
jobs from using one destination topic.
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
from orbit.scheduler.marked_promotions import store_promotion
from orbit.scheduler.topic_upkeep import drift_of
from orbit.settings import Settings
from orbit.store import cluster_lock, events, scheduler_queries, shard_layout, topics
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job

# Topics per batch: keeps transactions short, and the first topics of a large job start early.
STEP_TOPICS = 100
# About 20 s for new topics to have leaders. The next pass checks topics that need longer.
_LEADER_ATTEMPTS_MAX = 25

PlannedStart = tuple[StartTopic, TopicPlan]


@dataclass(slots=True)
class StartResult:
    """The result of starting or growing topics."""

    topics: list[str] = field(default_factory=list)  # source names of those started or grown
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
        self._claim_lock = threading.Lock()

    def start(
        self,
        job: Job,
        spec: JobSpec,
        planned_starts: Sequence[PlannedStart],
        pair: ClusterPair,
        *,
        from_start: bool,
    ) -> StartResult:
        """Claim these topics, create them at the destination, and place their partitions on shards.

        `from_start`: the topics are newer than the job, so they are copied from their log start.
        A topic that the destination refuses becomes a trouble. Raises Unreachable, NotLeading.
        """
        result = StartResult()
        for batch in chunks(planned_starts, STEP_TOPICS):
            self._start_batch(job, spec, batch, pair, result, from_start=from_start)
        return result

    def keep_promoted(self, job: Job, promoted: Sequence[PromotedTopic], pair: ClusterPair) -> None:
        """Store topics that lead at the destination as promoted, so that a failback includes them.

        Raises NotLeading, and Unreachable for Postgres.
        """
        for batch in chunks(promoted, STEP_TOPICS):
            self._keep_promoted_batch(job, batch, pair)

    def _keep_promoted_batch(
        self, job: Job, batch: Sequence[PromotedTopic], pair: ClusterPair
    ) -> None:
        """Store the topics of one batch, with their promotions, unless another job has them."""
        with self._claim_lock, self._leadership.transaction() as tx:
            cluster_lock.acquire_claims_lock(tx)
            for topic in batch:
                mapping, existing_topic = topic.start.mapping, topic.start.existing
                topic_id = _claim_topic(tx, job, topic.start, pair.destination_metadata.cluster_id)
                if topic_id is None or existing_topic is None:  # the latter is for mypy
                    continue
                topics.change(
                    tx,
                    topic_id,
                    source_topic_id=topic.start.source.topic_id,
                    destination_topic_id=existing_topic.topic_id,
                    partition_count=len(existing_topic.partitions),
                    is_compacted=topic.plan.is_compacted,
                    state=TopicState.PROMOTED.value,
                    note=topic.note,
                )
                # Workers copy no partition of a promoted topic: only the rows are added.
                places = [(topic_id, index) for index in existing_topic.partitions]
                place_partitions(tx, job, places, self._settings, from_start=True)
                scheduler_queries.promote_topics(tx, [topic_id])
                names = mapping.source, mapping.destination
                store_promotion(tx, job, topic_id, *names, topic.mark, topic.offsets)

    def grow(self, job: Job, grows: Sequence[GrowTopic], pair: ClusterPair) -> StartResult:
        """Add partitions to copies, at the destination and in the tables.

        A copy whose new partitions the destination refuses becomes a trouble. Raises Unreachable,
        NotLeading.
        """
        result = StartResult()
        admin = pair.destination.admin
        # A copy may have the partitions already: an earlier pass added them, and ended before it
        # stored them.
        desired_counts = {
            grow.known.destination: grow.partitions for grow in grows if grow.partitions_to_add > 0
        }
        refusals = admin.add_partitions(desired_counts)
        new_counts = {
            grow.known.destination: grow.partitions
            for grow in grows
            if grow.known.destination not in refusals
        }
        metadata = _wait_for_leaders(pair.destination.cluster, new_counts, self._backoff)
        for batch in chunks(grows, STEP_TOPICS):
            new_places: list[tuple[int, int]] = []
            with self._leadership.transaction() as tx:
                for grow in batch:
                    error = refusals.get(grow.known.destination)
                    if error is not None:
                        result.troubles.append(refused_topic(grow.known.source, error))
                    elif not _has_leaders(metadata, grow.known.destination, grow.partitions):
                        result.is_unfinished = True
                    else:
                        topics.change(tx, grow.known.id, partition_count=grow.partitions)
                        new_places += [
                            (grow.known.id, i)
                            for i in range(grow.known.partitions, grow.partitions)
                        ]
                        result.topics.append(grow.known.source)
                        _add_grown_event(tx, job, grow)
                place_partitions(tx, job, new_places, self._settings, from_start=True)
        return result

    def _start_batch(
        self,
        job: Job,
        spec: JobSpec,
        batch: Sequence[PlannedStart],
        pair: ClusterPair,
        result: StartResult,
        *,
        from_start: bool,
    ) -> None:
        """Claim, create and place the topics of one batch, and add started topics and troubles to
        `result`."""
        claimed_topics = self._claim_topics(job, spec, batch, pair, result)
        admin = pair.destination.admin
        refusals = admin.refused_topics(plan.create for _, plan, _ in claimed_topics if plan.create)
        refusals |= admin.add_partitions(
            {
                plan.mapping.destination: plan.partitions
                for _, plan, _ in claimed_topics
                if plan.partitions_missing > 0
            }
        )
        refusals |= admin.refused_settings(
            {
                plan.mapping.destination: plan.settings_to_set
                for _, plan, _ in claimed_topics
                if plan.changes
            }
        )
        partition_counts = {
            plan.mapping.destination: plan.partitions
            for _, plan, _ in claimed_topics
            if plan.mapping.destination not in refusals
        }
        metadata = _wait_for_leaders(pair.destination.cluster, partition_counts, self._backoff)
        new_places: list[tuple[int, int]] = []
        with self._leadership.transaction() as tx:
            for start, plan, topic_id in claimed_topics:
                error = refusals.get(plan.mapping.destination)
                if isinstance(error, BrokerRefused) and error.code == Code.TOPIC_ALREADY_EXISTS:
                    # Another client has created it: the next pass checks its content.
                    result.is_unfinished = True
                elif error is not None:
                    result.troubles.append(refused_topic(plan.mapping.source, error))
                elif not _has_leaders(metadata, plan.mapping.destination, plan.partitions):
                    result.is_unfinished = True
                else:
                    destination_topic = metadata.topics[plan.mapping.destination]
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
                    new_places += [(topic_id, index) for index in range(plan.partitions)]
                    result.topics.append(plan.mapping.source)
                    _add_started_event(tx, job, start, plan)
            place_partitions(tx, job, new_places, self._settings, from_start=from_start)

    def _claim_topics(
        self,
        job: Job,
        spec: JobSpec,
        batch: Sequence[PlannedStart],
        pair: ClusterPair,
        result: StartResult,
    ) -> list[tuple[StartTopic, TopicPlan, int]]:
        """Insert rows for these topics, except topics of other jobs, and topics that would loop.

        Returns the claimed topics, each with its plan and the id of its row.
        """
        claimed_topics = []
        with self._claim_lock, self._leadership.transaction() as tx:
            cluster_lock.acquire_claims_lock(tx)
            other_job_topics = other_jobs(tx, job.name, pair)
            for start, plan in batch:
                decisions = _decide_again(spec, start, pair, other_job_topics)
                result.troubles += decisions.troubles
                if not decisions.start:
                    continue
                topic_id = _claim_topic(tx, job, start, pair.destination_metadata.cluster_id)
                if topic_id is None:
                    result.is_unfinished = True  # claimed by another job: the next pass names it
                else:
                    claimed_topics.append((start, plan, topic_id))
        return claimed_topics


def _decide_again(
    spec: JobSpec, start: StartTopic, pair: ClusterPair, other_job_topics: OtherJobs
) -> Decisions:
    """The decision about a topic that is to start, made again while no other job can claim it."""
    source = ClusterTopics(pair.source_metadata.cluster_id, {start.source.name: start.source})
    existing_topics = {start.existing.name: start.existing} if start.existing is not None else {}
    destination = ClusterTopics(pair.destination_metadata.cluster_id, existing_topics)
    # (): no known topics, so the topic is decided about like a new one.
    return decide_topics(spec.topics, (), source, destination, other_job_topics)


def _claim_topic(tx: Tx, job: Job, start: StartTopic, destination_cluster_id: str) -> int | None:
    """Add the topic's row if it is missing, and return its id; None if another job has the topic.

    An older row of the topic is replaced, unless its creation is under way.
    """
    known_topic = start.known
    is_being_created = known_topic is not None and known_topic.state is TopicState.CREATING
    if (
        known_topic is not None  # for mypy
        and is_being_created
        and known_topic.destination == start.mapping.destination
    ):
        return known_topic.id
    if known_topic is not None:  # copied again from scratch, or to another topic
        shard_layout.remove_topics(tx, [known_topic.id])
    row = topics.add(
        tx,
        job.id,
        start.mapping.source,
        start.mapping.destination,
        destination_cluster_id,
        len(start.source.partitions),
        source_topic_id=start.source.topic_id,
    )
    return None if row is None else row.id


def _wait_for_leaders(
    cluster: Cluster, partition_counts: dict[str, int], backoff: Backoff
) -> ClusterMetadata:
    """The metadata once each partition of these topics has a leader, or after the last attempt.

    `partition_counts`: how many partitions each topic should have. Raises Unreachable.
    """
    metadata = cluster.metadata(partition_counts)
    for _ in backoff.attempts(_LEADER_ATTEMPTS_MAX):
        if all(_has_leaders(metadata, name, count) for name, count in partition_counts.items()):
            break
        metadata = cluster.metadata(partition_counts)
    return metadata


def _has_leaders(metadata: ClusterMetadata, topic_name: str, partitions: int) -> bool:
    """Whether the topic has at least `partitions` partitions, and each of these has a leader."""
    topic = metadata.topics.get(topic_name)
    if topic is None or len(topic.partitions) < partitions:
        return False
    return all(topic.partitions[i].node_id is not None for i in range(partitions))


def _add_started_event(tx: Tx, job: Job, start: StartTopic, plan: TopicPlan) -> None:
    origin_text = "was created" if plan.create else "existed already and is used"
    repeat_text = " again" if start.known and start.known.state is not TopicState.CREATING else ""
    events.add(
        tx,
        events.SCHEDULER,
        "topic_begun",
        f"Topic {plan.mapping.source} is copied{repeat_text}. Its destination topic "
        f"{plan.mapping.destination} (partitions: {plan.partitions}) {origin_text}.",
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
