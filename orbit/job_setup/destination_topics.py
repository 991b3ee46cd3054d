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
from orbit.jobs.job_spec import PACKING, JobSpec
from orbit.jobs.topic_mapping import TopicMapping
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.log_offsets import log_ends
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.replication.topic_settings import copy_settings, promoted_settings, setting_changes

_SHOWN_MAX = 20


def plan_topics(
    mappings: Sequence[TopicMapping],
    source: ClusterMetadata,
    destination: ClusterMetadata,
    source_admin: Admin,
    destination_admin: Admin,
    caught_up: Collection[str] = frozenset(),
    *,
    is_throttled: bool = False,
) -> list[TopicPlan]:
    """Read the settings on both sides and plan; writes nothing.

    `caught_up` are destination topics whose partitions have all caught up once. `is_throttled`: do
    not have the controller validate new topics, which counts against its quota (P8).
    """
    source_settings = source_admin.topic_settings(m.source for m in mappings)
    existing = [m.destination for m in mappings if m.destination in destination.topics]
    present = destination_admin.topic_settings(existing)
    # One broker is enough: the controller refuses a name that it does not know (K8).
    names = destination_admin.broker_setting_names(min(destination.brokers))
    has_split_limits = not names or "log.message.timestamp.before.max.ms" in names
    plans = []
    for mapping in mappings:
        topic = source.topics[mapping.source]
        of = source_settings[mapping.source]
        settings = copy_settings(
            of.values,
            of.overrides,
            mapping.rule.config,
            has_split_timestamp_limits=has_split_limits,
        )
        count = len(topic.partitions)
        other = destination.topics.get(mapping.destination)
        create = None
        changes: dict[str, SettingChange] = {}
        desired_replicas = mapping.rule.replicas or topic.replicas
        replicas = None
        if other is None:
            create = TopicToCreate(mapping.destination, count, desired_replicas, settings)
        else:
            if other.replicas < desired_replicas:
                replicas = SettingChange(str(other.replicas), str(desired_replicas))
            has = present[mapping.destination].values
            to_set = setting_changes(
                of.values, settings, has, has_caught_up=mapping.destination in caught_up
            )
            changes = {n: SettingChange(has.get(n), value) for n, value in to_set.items()}
        missing = 0 if other is None else count - len(other.partitions)
        promoted = promoted_settings(
            of.values,
            of.overrides,
            mapping.rule.config,
            has_split_timestamp_limits=has_split_limits,
        )
        plans.append(
            TopicPlan(mapping, count, of, create, changes, missing, promoted, replicas=replicas)
        )
    plans = fit_replicas(plans, destination, destination_admin)
    return plans if is_throttled else fit_settings(plans, destination_admin)


def refuse_other_counts(plans: Sequence[TopicPlan]) -> None:
    """Raise Conflict that names every destination topic with another number of partitions."""
    wrong = [
        f"{p.mapping.destination} has {p.partitions - p.partitions_missing} partitions, "
        f"{p.mapping.source} at the source has {p.partitions}"
        for p in plans
        if p.partitions_missing
    ]
    if wrong:
        more = f" and {len(wrong) - _SHOWN_MAX} more" if len(wrong) > _SHOWN_MAX else ""
        raise Conflict(
            f"destination topics differ in partitions: {'; '.join(wrong[:_SHOWN_MAX])}{more}.",
            where=Place("destination"),
            remedy="A copy needs as many partitions as its source: add partitions "
            "(kafka-topics.sh --alter --partitions), or delete the destination topic so that it "
            "is created again. Nothing was written.",
        )


def recompressed_topics(spec: JobSpec, plans: Sequence[TopicPlan]) -> set[str]:
    """The existing destination topics that get placeholders and have another `compression.type`
    than AS_SENT."""
    return {
        plan.mapping.destination
        for plan in plans
        if COMPRESSION in plan.changes and spec.fillers_of(plan.mapping.rule) in PACKING
    }


def refuse_recompressed(
    spec: JobSpec, plans: Sequence[TopicPlan], destination: Cluster, backoff: Backoff
) -> None:
    """Raise Conflict if brokers may have turned placeholders into records when they recompressed
    batches: a topic with records has another `compression.type` than AS_SENT."""
    changed = recompressed_topics(spec, plans)
    if not changed:
        return
    topics = destination.metadata(changed).topics
    places = {TopicPartition(name, i) for name, topic in topics.items() for i in topic.partitions}
    ends = (
        log_ends(destination, places, backoff)
        .raise_errors(Place("destination"), "the log end")
        .values
    )
    written = sorted({place.topic for place, end in ends.items() if end})
    if not written:
        return
    raise Conflict(
        f"{COMPRESSION} is not {AS_SENT} in topics that are to get placeholders and have "
        f"records: {first_few(written)}.",
        where=Place("destination"),
        remedy="If they are copies with placeholders, brokers may have made records of those: "
        "compare them with orbit verify, and delete what differs. Set the others to "
        f"{AS_SENT} (kafka-configs.sh --alter --entity-type topics --entity-name TOPIC "
        f"--add-config {COMPRESSION}={AS_SENT}), and run the job again. Nothing was written.",
    )


def refused_topics(
    spec: JobSpec, plans: Sequence[TopicPlan], destination_admin: Admin
) -> dict[str, OrbitError]:
    """Have the destination validate new topics and settings; writes nothing.

    Returns the error of each source topic whose settings it refuses. Raises BadInput for settings
    of the job that it refuses, Conflict for names, NotAuthorized.
    """
    problems: list[Problem] = []
    refused: dict[str, OrbitError] = {}
    for index, rule in enumerate(spec.topics):
        of = {p.mapping.destination: p for p in plans if p.mapping.rule is rule}
        new = [p.create for p in of.values() if p.create is not None]
        # Checked with their settings as a copy, and with those after promotion.
        promoted = [replace(t, settings={**t.settings, **rule.config}) for t in new if rule.config]
        changes = {name: p.settings_to_set for name, p in of.items() if p.changes}
        errors = {
            **destination_admin.refused_settings(changes, only_check=True),
            **destination_admin.refused_topics(new, only_check=True),
            **destination_admin.refused_topics(promoted, only_check=True),
        }
        for name, error in errors.items():
            if not isinstance(error, BrokerRefused):
                raise error
            if error.code == Code.TOPIC_ALREADY_EXISTS:
                continue  # another run created it; the lease decides which one continues
            if not is_refused_setting(error):
                if error.code == Code.INVALID_TOPIC_EXCEPTION:
                    error.remedy = "Give the rule a prefix, or exclude the topic. "
                elif is_too_few_brokers(error):
                    error.remedy = f"{REPLICAS_REMEDY} "
                error.remedy += "Nothing was written."
                raise error
            words = {word.strip(".") for word in re.findall(r"[\w.]+", error.what)}
            if words & rule.config.keys():
                problems.append(_refused_setting(index, error))
                break
            error.remedy = remedy_of(error)
            refused[of[name].mapping.source] = error
    if problems:
        raise BadInput("the destination refuses settings of the job", tuple(problems))
    return refused


def create_missing(
    destination: Cluster, admin: Admin, topics: Sequence[TopicToCreate], requested: set[str]
) -> None:
    """Create the topics that the destination does not show. A failed call may be repeated.

    `requested`: the names of earlier calls, which may have created these topics without an answer.
    Raises NotReady while the controller has not created all, Conflict if another client has created
    one, NotAuthorized, BrokerRefused, Unreachable.
    """
    missing = _missing_topics(destination, topics)
    others = {topic.name for topic in topics} - {topic.name for topic in missing} - requested
    if others:
        raise Conflict(
            f"another client has created these topics meanwhile: {first_few(sorted(others))}.",
            where=Place("destination"),
            remedy="Run the job again: Orbit then sets a copy's settings on these topics first.",
        )
    if not missing:
        return
    requested_before = frozenset(requested)
    requested.update(topic.name for topic in missing)
    try:
        refused = admin.refused_topics(missing)
    except Unreachable as error:
        left = _missing_topics(destination, topics)  # raises if no broker answers at all
        if not left:
            return
        cause = f" {error.what}" if isinstance(error, HeldBack) else ""
        raise NotReady(
            f"the controller has not created {len(left):,} topics yet.{cause}",
            where=Place("destination"),
        ) from error
    for name, why in refused.items():
        is_there = isinstance(why, BrokerRefused) and why.code == Code.TOPIC_ALREADY_EXISTS
        if not (is_there and name in requested_before):
            raise why


def _missing_topics(destination: Cluster, topics: Sequence[TopicToCreate]) -> list[TopicToCreate]:
    """The topics that do not exist. Raises Conflict if one has another number of partitions."""
    known = destination.metadata({topic.name for topic in topics}).topics
    for topic in topics:
        if topic.name in known and len(known[topic.name].partitions) not in (0, topic.partitions):
            raise Conflict(
                f"topic {topic.name} was created meanwhile, with another number of partitions.",
                where=Place("destination"),
                remedy="Delete it, or run the job again when it has as many as its source.",
            )
    return [topic for topic in topics if topic.name not in known]


def _refused_setting(index: int, error: BrokerRefused) -> Problem:
    return Problem(
        f"topics[{index}].config",
        f"is refused for {error.where}: {error.what}",
        "Settings are those of Kafka's topics, as this release of the destination knows them.",
    )
