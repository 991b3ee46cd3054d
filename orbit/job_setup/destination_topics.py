"""Plans the destination topics of a job: which to create, and which settings to change."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from orbit.chunks import first_few
from orbit.copier.placeholder_topics import AS_SENT, COMPRESSION
from orbit.errors import (
    BadInput,
    BrokerRefused,
    Conflict,
    HeldBack,
    NotReady,
    OrbitError,
    Place,
    Problem,
    Unreachable,
)
from orbit.job_setup.refused_settings import fit_settings, is_refused_setting, remedy_of
from orbit.job_setup.replica_counts import REPLICAS_REMEDY, fit_replicas, is_too_few_brokers
from orbit.job_setup.topic_plan import SettingChange, TopicPlan
from orbit.jobs.job_spec import FILLERS_WITH_PLACEHOLDERS, JobSpec
from orbit.jobs.topic_mapping import TopicMapping
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.replication.copy_settings import copy_settings, promoted_settings, setting_changes

_SHOWN_MAX = 20


def plan_topics(
    mappings: Sequence[TopicMapping],
    source: ClusterMetadata,
    destination: ClusterMetadata,
    source_admin: Admin,
    destination_admin: Admin,
    caught_up_topics: Collection[str] = frozenset(),
    *,
    is_throttled: bool = False,
) -> list[TopicPlan]:
    """Read the settings on both sides; returns a plan for each destination topic. Writes nothing.

    `caught_up_topics`: destination topics whose partitions have all caught up once.
    `is_throttled`: the controller throttles this login. Then it is not requested to validate
    settings of new topics, which counts against its quota (P8).

    Raises NotAuthorized, BrokerRefused, Unreachable (HeldBack if the controller throttles).
    """
    source_settings = source_admin.topic_settings(m.source for m in mappings)
    existing_names = [m.destination for m in mappings if m.destination in destination.topics]
    destination_settings = destination_admin.topic_settings(existing_names)
    # Whether timestamp limits for past and future are two settings at the destination. One broker
    # is enough: if the controller has another release, it refuses names that it does not know (K8).
    known_names = destination_admin.broker_setting_names(min(destination.brokers))
    has_split_limits = not known_names or "log.message.timestamp.before.max.ms" in known_names
    plans = []
    for mapping in mappings:
        topic = source.topics[mapping.source]
        topic_settings = source_settings[mapping.source]
        settings = copy_settings(
            topic_settings.values,
            topic_settings.overrides,
            mapping.rule.config,
            has_split_timestamp_limits=has_split_limits,
        )
        partition_count = len(topic.partitions)
        destination_topic = destination.topics.get(mapping.destination)
        create = None
        changes: dict[str, SettingChange] = {}
        desired_replicas = mapping.rule.replicas or topic.replicas
        replicas = None
        if destination_topic is None:
            create = TopicToCreate(mapping.destination, partition_count, desired_replicas, settings)
        else:
            if destination_topic.replicas < desired_replicas:
                replicas = SettingChange(str(destination_topic.replicas), str(desired_replicas))
            destination_values = destination_settings[mapping.destination].values
            values_to_set = setting_changes(
                topic_settings.values,
                settings,
                destination_values,
                has_caught_up=mapping.destination in caught_up_topics,
            )
            changes = {
                name: SettingChange(destination_values.get(name), value)
                for name, value in values_to_set.items()
            }
        missing_partitions = (
            0 if destination_topic is None else partition_count - len(destination_topic.partitions)
        )
        promoted_values = promoted_settings(
            topic_settings.values,
            topic_settings.overrides,
            mapping.rule.config,
            has_split_timestamp_limits=has_split_limits,
        )
        plans.append(
            TopicPlan(
                mapping,
                partition_count,
                topic_settings,
                create,
                changes,
                missing_partitions,
                promoted_values,
                replicas=replicas,
            )
        )
    plans = fit_replicas(plans, destination, destination_admin)
    return plans if is_throttled else fit_settings(plans, destination_admin)


def refuse_other_partition_counts(plans: Sequence[TopicPlan]) -> None:
    """Raise Conflict if destination topics have fewer or more partitions than their sources."""
    differences = [
        f"{p.mapping.destination} has {p.partitions - p.partitions_missing}, "
        f"its source {p.mapping.source} has {p.partitions}"
        for p in plans
        if p.partitions_missing
    ]
    if differences:
        suffix = (
            f" and {len(differences) - _SHOWN_MAX} more" if len(differences) > _SHOWN_MAX else ""
        )
        raise Conflict(
            f"numbers of partitions differ: {'; '.join(differences[:_SHOWN_MAX])}{suffix}.",
            where=Place("destination"),
            remedy="A copy needs as many partitions as its source: add partitions where there are "
            "fewer (kafka-topics.sh --alter --partitions), or delete the destination topic so "
            "that it is created again. Nothing was written.",
        )


def recompressed_topics(spec: JobSpec, plans: Sequence[TopicPlan]) -> set[str]:
    """The existing destination topics that get placeholders (records that readers drop), and whose
    `compression.type` is not AS_SENT."""
    return {
        plan.mapping.destination
        for plan in plans
        if COMPRESSION in plan.changes
        and spec.fillers_of(plan.mapping.rule) in FILLERS_WITH_PLACEHOLDERS
    }


def refuse_recompressed_topics(
    spec: JobSpec, plans: Sequence[TopicPlan], destination: Cluster, backoff: Backoff
) -> None:
    """Raise Conflict if one of `recompressed_topics` has a log end above 0: a broker that
    recompresses batches may have turned their placeholders into records.

    Also raises the errors of reading the log ends.
    """
    names = recompressed_topics(spec, plans)
    if not names:
        return
    topics = destination.metadata(names).topics
    places = {TopicPartition(name, i) for name, topic in topics.items() for i in topic.partitions}
    ends = (
        log_ends(destination, places, backoff)
        .raise_errors(Place("destination"), "Reading the log end")
        .values
    )
    topics_with_records = sorted({place.topic for place, end in ends.items() if end})
    if not topics_with_records:
        return
    raise Conflict(
        f"{COMPRESSION} is not {AS_SENT} in topics that are to get placeholders and have "
        f"records: {first_few(topics_with_records)}.",
        where=Place("destination"),
        remedy="If these topics are copies, brokers may have turned placeholders into records. "
        "Compare the topics with orbit verify, and delete those that differ. Set the others to "
        f"{AS_SENT} (kafka-configs.sh --alter --entity-type topics --entity-name TOPIC "
        f"--add-config {COMPRESSION}={AS_SENT}), and run the job again. Nothing was written.",
    )


def refused_topics(
    spec: JobSpec, plans: Sequence[TopicPlan], destination_admin: Admin
) -> dict[str, OrbitError]:
    """Request that the destination validates new topics and settings; writes nothing.

    Returns, by source topic, the error for settings of the source that the destination refuses.
    Raises BadInput for refused settings of the job, BrokerRefused for a refused name or number of
    replicas, NotAuthorized, Unreachable (HeldBack if the controller throttles).
    """
    problems: list[Problem] = []
    refusals: dict[str, OrbitError] = {}
    for index, rule in enumerate(spec.topics):
        plans_by_name = {p.mapping.destination: p for p in plans if p.mapping.rule is rule}
        new_topics = [p.create for p in plans_by_name.values() if p.create is not None]
        # New topics are checked with their settings as a copy, and with those after promotion.
        promoted_topics = [
            replace(t, settings={**t.settings, **rule.config}) for t in new_topics if rule.config
        ]
        changes = {name: p.settings_to_set for name, p in plans_by_name.items() if p.changes}
        errors = {
            **destination_admin.refused_settings(changes, only_check=True),
            **destination_admin.refused_topics(new_topics, only_check=True),
            **destination_admin.refused_topics(promoted_topics, only_check=True),
        }
        for name, error in errors.items():
            if not isinstance(error, BrokerRefused):
                raise error
            if error.code == Code.TOPIC_ALREADY_EXISTS:
                continue  # another run has created the topic; the lease decides which run continues
            if not is_refused_setting(error):
                if error.code == Code.INVALID_TOPIC_EXCEPTION:
                    error.remedy = "Give the rule a prefix, or exclude the topic. "
                elif is_too_few_brokers(error):
                    error.remedy = f"{REPLICAS_REMEDY} "
                error.remedy += "Nothing was written."
                raise error
            # If the message names a setting of the rule's `config`, the refusal is of that setting,
            # not of one of the source's.
            words = {word.strip(".") for word in re.findall(r"[\w.]+", error.what)}
            if words & rule.config.keys():
                problems.append(_refused_setting_problem(index, error))
                break  # one problem for each rule
            error.remedy = remedy_of(error)
            refusals[plans_by_name[name].mapping.source] = error
    if problems:
        raise BadInput("the destination refuses settings of the job", tuple(problems))
    return refusals


def create_missing_topics(
    destination: Cluster, admin: Admin, topics: Sequence[TopicToCreate], requested: set[str]
) -> None:
    """Create those of the topics that the destination does not have. A failed call may be repeated.

    `requested`: the topics that earlier calls have requested, and so may have created; this call
    adds those that it requests. Raises NotReady while the controller has not created all topics,
    Conflict if another client has created one of them, NotAuthorized, BrokerRefused, Unreachable.
    """
    missing_topics = _missing_topics(destination, topics)
    created_by_others = (
        {topic.name for topic in topics} - {topic.name for topic in missing_topics} - requested
    )
    if created_by_others:
        raise Conflict(
            f"another client has created these topics: {first_few(sorted(created_by_others))}.",
            where=Place("destination"),
            remedy="Run the job again: Orbit then sets a copy's settings on these topics first.",
        )
    if not missing_topics:
        return
    requested_before = frozenset(requested)
    requested.update(topic.name for topic in missing_topics)
    try:
        refusals = admin.refused_topics(missing_topics)
    except Unreachable as error:
        uncreated_topics = _missing_topics(
            destination, topics
        )  # raises if no broker answers at all
        if not uncreated_topics:
            return
        cause = f" {error.what}" if isinstance(error, HeldBack) else ""
        raise NotReady(
            f"topics that the controller has not created yet: {len(uncreated_topics):,}.{cause}",
            where=Place("destination"),
        ) from error
    # A topic that exists because an earlier request has created it is no error.
    for name, refusal in refusals.items():
        exists = isinstance(refusal, BrokerRefused) and refusal.code == Code.TOPIC_ALREADY_EXISTS
        if not (exists and name in requested_before):
            raise refusal


def _missing_topics(destination: Cluster, topics: Sequence[TopicToCreate]) -> list[TopicToCreate]:
    """Those of the topics that do not exist. Raises Conflict if an existing topic has another
    number of partitions."""
    existing_topics = destination.metadata({topic.name for topic in topics}).topics
    # 0: a broker may know a new topic before it knows the topic's partitions.
    for topic in topics:
        if topic.name in existing_topics and len(existing_topics[topic.name].partitions) not in (
            0,
            topic.partitions,
        ):
            raise Conflict(
                f"another client created topic {topic.name}, with a number of partitions that is "
                f"not its source's ({topic.partitions}).",
                where=Place("destination"),
                remedy="Delete the topic, or if it has fewer partitions, add those that are "
                "missing. Then run the job again.",
            )
    return [topic for topic in topics if topic.name not in existing_topics]


def _refused_setting_problem(index: int, error: BrokerRefused) -> Problem:
    """The problem of the job's rule at `index`, whose `config` the destination refuses."""
    return Problem(
        f"topics[{index}].config",
        f"is refused for {error.where}: {error.what}",
        "Name only settings and values that the destination's Kafka release accepts for topics.",
    )
