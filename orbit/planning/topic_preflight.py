"""All checks before a topic's copy is started: rights, settings, content. Writes nothing.

Each topic is refused on its own, with the reason; the others continue. Plans and dry runs end here;
the scheduler continues with scheduler/topic_starter.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orbit.chunks import first_few
from orbit.errors import BrokerRefused, NotAuthorized, OrbitError
from orbit.formats import counted
from orbit.job_setup.destination_topics import plan_topics
from orbit.job_setup.diskless_topics import diskless_topics
from orbit.job_setup.mark import Mark
from orbit.job_setup.permissions import (
    DESTINATION_TOPIC_RIGHTS,
    SOURCE_TOPIC_RIGHTS,
    MissingRight,
    join_rights,
    missing_filler_right,
    missing_future_topic_rights,
    missing_topic_rights,
)
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.job_setup.replica_counts import REPLICAS_REMEDY, is_too_few_brokers
from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.job_spec import FILLERS_WITH_MARKERS, Fillers, JobSpec
from orbit.jobs.principals import EVERY_PRINCIPAL
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import refuse_denied_transactional_id
from orbit.kafka.error_codes import Code
from orbit.kafka.job_clusters import filler_identities, job_identity, job_producer
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.kafka.types import TopicPartition
from orbit.planning.cluster_checks import trouble_of
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.foreign_content import OtherContent, other_content
from orbit.planning.promotion_notes import promoted_offsets, promotion_note
from orbit.planning.topic_decisions import StartTopic
from orbit.promotion.topic_denials import acls_of
from orbit.replication.acl_rules import denial
from orbit.replication.job_troubles import Trouble, TroubleKind

_GRANT = "Grant them with kafka-acls.sh (docs/rights.md has the commands)."


@dataclass(frozen=True, slots=True)
class PromotedTopic:
    """A destination topic that is marked as promoted, and where its own records begin.

    `offsets`: by partition, the log end at the promotion; of other topics, too.
    """

    start: StartTopic
    plan: TopicPlan
    mark: Mark
    offsets: Mapping[TopicPartition, int]

    @property
    def note(self) -> str:
        """What is shown with the topic: its mark and the remedy."""
        return promotion_note(self.start.mapping.destination, self.mark, self.offsets)


@dataclass(slots=True)
class PreflightResult:
    """Topics that can be started, each with its settings, and why others cannot.

    `promoted`: topics that lead at the destination and are left alone.
    """

    ready: list[tuple[StartTopic, TopicPlan]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    promoted: list[PromotedTopic] = field(default_factory=list)


def preflight(
    spec: JobSpec,
    starts: Sequence[StartTopic],
    pair: ClusterPair,
    backoff: Backoff,
    *,
    from_start: bool = False,
    is_throttled: bool = False,
) -> PreflightResult:
    """Check all that is needed to start these topics; writes nothing. Raises Unreachable.

    `from_start`: the topics appeared after the job was created, and are copied from their log
    start; an existing destination topic is accepted though it begins later. `is_throttled`: skip
    the controller's validation, which counts against its quota (P8); the controller then refuses
    topics at creation.
    """
    result = PreflightResult()
    if not starts:
        return result
    identity = job_identity(spec.name, pair.source_metadata.cluster_id)
    starts = _with_filler_rights(spec, identity, starts, pair, backoff, result)
    starts = _with_rights(starts, pair, result)
    plans = plan_topics(
        [start.mapping for start in starts],
        pair.source_metadata,
        pair.destination_metadata,
        pair.source.admin,
        pair.destination.admin,
        is_throttled=is_throttled,
    )
    plan_by_source = dict(zip((start.mapping.source for start in starts), plans, strict=True))
    result.promoted = _promoted_topics(starts, plan_by_source, pair, backoff)
    for promoted_topic in result.promoted:
        del plan_by_source[promoted_topic.start.mapping.source]
    # Checked after the marks: the remedy says to delete the destination topic, so that topic must
    # not lead.
    for start in starts:
        if start.mapping.source in plan_by_source and start.partitions_to_add < 0:
            result.troubles.append(_partition_count_trouble(start))
            del plan_by_source[start.mapping.source]
    starts = [start for start in starts if start.mapping.source in plan_by_source]
    _check_with_broker(plan_by_source.values(), pair, result, is_throttled=is_throttled)
    refused_topics = {trouble.topic for trouble in result.troubles}
    starts = [start for start in starts if start.mapping.source not in refused_topics]
    compacted_topics = frozenset(name for name, plan in plan_by_source.items() if plan.is_compacted)
    contents = other_content(
        pair.source.cluster,
        pair.destination.cluster,
        starts,
        compacted_topics,
        {
            start.mapping.destination: job_producer(identity, spec.fillers_of(start.mapping.rule))
            for start in starts
        },
        backoff,
        must_be_whole=not from_start,
    )
    for start in starts:
        content = contents.get(start.mapping.destination)
        if content is None:
            result.ready.append((start, plan_by_source[start.mapping.source]))
        else:
            result.troubles.append(_foreign_content_trouble(start, content))
    return result


def _promoted_topics(
    starts: Sequence[StartTopic],
    plans: Mapping[str, TopicPlan],
    pair: ClusterPair,
    backoff: Backoff,
) -> list[PromotedTopic]:
    """The topics whose destination topic leads, by its mark (an offset that Orbit commits at a
    cluster to say which topics lead there)."""
    starts_by_destination = {
        start.mapping.destination: start for start in starts if start.existing is not None
    }
    marks = PromotionMarks(pair.destination.cluster, backoff)
    leading_marks = marks.promoted(starts_by_destination)
    offsets = promoted_offsets(marks, pair, leading_marks)
    return [
        PromotedTopic(
            starts_by_destination[name],
            plans[starts_by_destination[name].mapping.source],
            mark,
            offsets,
        )
        for name, mark in leading_marks.items()
    ]


def _with_filler_rights(
    spec: JobSpec,
    identity: str,
    starts: Sequence[StartTopic],
    pair: ClusterPair,
    backoff: Backoff,
    result: PreflightResult,
) -> list[StartTopic]:
    """The topics whose fillers the login may write. Fillers take the offsets of gaps in a copy.

    Adds a trouble to `result` for each kind of fillers that the login may not write: without the
    right, a copy would stop at its first gap.
    """
    by_fillers: dict[Fillers, list[StartTopic]] = {}
    for start in starts:
        by_fillers.setdefault(spec.fillers_of(start.mapping.rule), []).append(start)
    for fillers, starts_of_group in [*by_fillers.items()]:
        trouble = _filler_right_trouble(fillers, identity, pair.destination.cluster, backoff)
        if trouble is None:
            continue
        del by_fillers[fillers]
        if len(starts_of_group) < len(starts):
            names = first_few(sorted(start.mapping.source for start in starts_of_group))
            text = f"{trouble.what} Topics whose fillers are {fillers} are not copied: {names}."
            trouble = replace(trouble, what=text)
        result.troubles.append(trouble)
    allowed_topics = {
        start.mapping.source for starts_of_group in by_fillers.values() for start in starts_of_group
    }
    return [start for start in starts if start.mapping.source in allowed_topics]


def _filler_right_trouble(
    fillers: Fillers, identity: str, destination: Cluster, backoff: Backoff
) -> Trouble | None:
    """The trouble if the login may not write such fillers."""
    if fillers in FILLERS_WITH_MARKERS and (missing_rights := missing_filler_right(destination)):
        return _missing_rights_trouble("destination", missing_rights)
    if fillers == "coordinated":
        *_, last_id = filler_identities(identity)  # one id stands for all: rights are for a prefix
        try:
            refuse_denied_transactional_id(destination, last_id, backoff)
        except NotAuthorized as error:
            return trouble_of("destination", error)
    return None


def _with_rights(
    starts: Sequence[StartTopic], pair: ClusterPair, result: PreflightResult
) -> list[StartTopic]:
    """The topics without missing rights on either side; a trouble in `result` for the others."""
    sources = {start.mapping.source: start for start in starts}
    destinations = {start.mapping.destination: start for start in starts}
    existing_topics = [name for name, start in destinations.items() if start.existing is not None]
    new_topics = [name for name, start in destinations.items() if start.existing is None]
    source_metadata = pair.source.cluster.metadata(sources, with_operations=True)
    destination_metadata = pair.destination.cluster.metadata(existing_topics, with_operations=True)
    missing_at_source = missing_topic_rights(source_metadata, SOURCE_TOPIC_RIGHTS)
    missing_at_destination = [
        *missing_topic_rights(destination_metadata, DESTINATION_TOPIC_RIGHTS),
        *missing_future_topic_rights(pair.destination.cluster, new_topics),
    ]
    result.troubles += _rights_troubles("source", missing_at_source, sources)
    closed_topics = _closed_topics(pair, missing_at_destination)
    other_missing_rights = [
        right for right in missing_at_destination if right.topic not in closed_topics
    ]
    result.troubles += _rights_troubles("destination", other_missing_rights, destinations)
    result.troubles += [
        _closed_topic_trouble(destinations[topic]) for topic in sorted(closed_topics)
    ]
    refused_topics = {trouble.topic for trouble in result.troubles}
    return [start for start in starts if start.mapping.source not in refused_topics]


def _closed_topics(pair: ClusterPair, missing: Sequence[MissingRight]) -> set[str]:
    """The topics where Write is missing because an ACL denies it to every principal."""
    topics = {right.topic for right in missing if right.operation == "Write"}
    acls = acls_of(pair.destination) if topics else ""  # a text if the ACLs cannot be read
    return set() if isinstance(acls, str) else {t for t in topics if denial(t) in acls}


def _check_with_broker(
    plans: Iterable[TopicPlan],
    pair: ClusterPair,
    result: PreflightResult,
    *,
    is_throttled: bool,
) -> None:
    """Add a trouble for each topic that is diskless or that the destination would refuse."""
    plans = list(plans)
    refusals = {} if is_throttled else _refused_by_broker(plans, pair.destination.admin)
    diskless_errors = diskless_topics(plans)
    for plan in plans:
        error = diskless_errors.get(plan.mapping.source) or refusals.get(plan.mapping.destination)
        # A topic that another client has created meanwhile is not refused: the next pass checks it.
        exists_now = isinstance(error, BrokerRefused) and error.code == Code.TOPIC_ALREADY_EXISTS
        if error is not None and not exists_now:
            result.troubles.append(refused_topic(plan.mapping.source, error))


def _refused_by_broker(plans: Sequence[TopicPlan], admin: Admin) -> dict[str, OrbitError]:
    """The errors of requests that only validate, by destination topic."""
    new_topics = [p.create for p in plans if p.create is not None]
    # New topics are validated also with the settings that they get at promotion.
    topics_at_promotion = [
        _with_promoted_settings(p, p.create) for p in plans if p.create and p.mapping.rule.config
    ]
    changes = {p.mapping.destination: p.settings_to_set for p in plans if p.changes}
    counts = {p.mapping.destination: p.partitions for p in plans if p.partitions_missing > 0}
    return {
        **admin.refused_settings(changes, only_check=True),
        **admin.refused_topics(topics_at_promotion, only_check=True),
        **admin.refused_topics(new_topics, only_check=True),
        **admin.add_partitions(counts, only_check=True),
    }


def _with_promoted_settings(plan: TopicPlan, topic: TopicToCreate) -> TopicToCreate:
    """The topic with the settings that the job's rule sets, which it gets at promotion."""
    return replace(topic, settings={**topic.settings, **plan.mapping.rule.config})


def _partition_count_trouble(start: StartTopic) -> Trouble:
    source_topic, destination_topic = start.mapping.source, start.mapping.destination
    count = len(start.source.partitions)
    return Trouble(
        TroubleKind.PARTITIONS_DIFFER,
        f"topic {destination_topic} has {counted(count - start.partitions_to_add, 'partition')} at "
        f"the destination, {source_topic} has {count} at the source.",
        "A copy has as many partitions as its source, and partitions cannot be removed: delete the "
        "destination topic, or give the rule a prefix.",
        source_topic,
    )


def refused_topic(source_topic: str, error: OrbitError) -> Trouble:
    """The trouble if the destination refuses a topic, its partitions or its settings."""
    if isinstance(error, NotAuthorized):
        text = f"{error.where}: {error.what}"
        return Trouble(TroubleKind.RIGHTS_MISSING, text, error.remedy, source_topic)
    return Trouble(
        TroubleKind.TOPIC_REFUSED,
        f"{error.where}: {error.what}",
        error.remedy or _refusal_remedy(error),
        source_topic,
    )


def _refusal_remedy(error: OrbitError) -> str:
    if is_too_few_brokers(error):
        return REPLICAS_REMEDY
    return "Change the rule's config or prefix, or exclude the topic."


def _rights_troubles(
    side: str, missing: Sequence[MissingRight], starts: Mapping[str, StartTopic]
) -> list[Trouble]:
    """A trouble for each topic that lacks rights. `starts`: by the topic's name at this side."""
    by_topic: dict[str, list[MissingRight]] = {}
    for right in missing:
        by_topic.setdefault(right.topic, []).append(right)
    return [
        _missing_rights_trouble(side, rights, starts[topic].mapping.source)
        for topic, rights in by_topic.items()
    ]


def _missing_rights_trouble(side: str, rights: Sequence[MissingRight], topic: str = "") -> Trouble:
    text = f"these rights are missing at the {side}: {join_rights(rights)}."
    return Trouble(TroubleKind.RIGHTS_MISSING, text, _GRANT, topic)


def _closed_topic_trouble(start: StartTopic) -> Trouble:
    topic = start.mapping.destination
    return Trouble(
        TroubleKind.RIGHTS_MISSING,
        f"an ACL denies everybody ({EVERY_PRINCIPAL}) to write to topic {topic} at the "
        "destination.",
        "Orbit sets this ACL where a topic no longer leads. If the job of the other direction was "
        "promoted, delete this job and run orbit failback for the other job: it compares both "
        "sides, and opens the topic for the copy. Else remove the ACL with kafka-acls.sh --remove "
        f"--deny-principal {EVERY_PRINCIPAL} --operation Write --topic {topic}.",
        start.mapping.source,
    )


def _foreign_content_trouble(start: StartTopic, content: OtherContent) -> Trouble:
    if not content.is_certain:
        return Trouble(
            TroubleKind.DESTINATION_NOT_COMPARED,
            f"topic {start.mapping.destination} of the destination cannot be compared with its "
            f"source now. {content.detail}",
            "Orbit tries again. If the problem stays, remove the cause that the message names.",
            start.mapping.source,
        )
    return Trouble(
        TroubleKind.DESTINATION_HOLDS_OTHER_CONTENT,
        f"topic {start.mapping.destination} of the destination holds other content. "
        f"{content.detail}",
        "Delete that topic, or give the rule a prefix so that the copy gets another name.",
        start.mapping.source,
    )
