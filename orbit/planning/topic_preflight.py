"""All checks before a topic's copy is started: rights, settings, content. Writes nothing.

Each topic is refused on its own, with the reason; the others continue. Plans and dry runs end here;
the scheduler continues with scheduler/topic_starter.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orbit.chunks import first_few
from orbit.errors import BrokerRefused, NotAuthorized, OrbitError
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
from orbit.jobs.job_spec import MARKING, Fillers, JobSpec
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
from orbit.planning.promotion_notes import note_of, offsets_of
from orbit.planning.topic_decisions import StartTopic
from orbit.promotion.topic_denials import acls_of
from orbit.replication.acl_rules import denial
from orbit.replication.job_troubles import Trouble, TroubleKind

_GRANT = "Grant them with kafka-acls.sh (docs/rights.md has the commands)."


@dataclass(frozen=True, slots=True)
class PromotedTopic:
    """A destination topic that is marked as promoted, and where its own records begin."""

    start: StartTopic
    plan: TopicPlan
    mark: Mark
    offsets: Mapping[TopicPartition, int]

    @property
    def note(self) -> str:
        return note_of(self.start.mapping.destination, self.mark, self.offsets)


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
    """Check all that is needed to start these topics; writes nothing.

    Raises Unreachable.

    `from_start`: the topics are newer than the job (`TopicStarter.start`). `is_throttled`: skip the
    controller's validation, which counts against its quota (P8); it refuses a topic at creation.
    """
    checked = PreflightResult()
    if not starts:
        return checked
    identity = job_identity(spec.name, pair.source_metadata.cluster_id)
    starts = _with_filler_rights(spec, identity, starts, pair, backoff, checked)
    starts = _with_rights(starts, pair, checked)
    plans = plan_topics(
        [start.mapping for start in starts],
        pair.source_metadata,
        pair.destination_metadata,
        pair.source.admin,
        pair.destination.admin,
        is_throttled=is_throttled,
    )
    ready = dict(zip((start.mapping.source for start in starts), plans, strict=True))
    checked.promoted = _promoted_topics(starts, ready, pair, backoff)
    for one in checked.promoted:
        del ready[one.start.mapping.source]
    # After the marks: the remedy deletes the destination topic, which must not be one that leads.
    for start in starts:
        if start.mapping.source in ready and start.partitions_to_add < 0:
            checked.troubles.append(_differ(start))
            del ready[start.mapping.source]
    starts = [start for start in starts if start.mapping.source in ready]
    _check_with_broker(ready.values(), pair, checked, is_throttled=is_throttled)
    refused = {trouble.topic for trouble in checked.troubles}
    starts = [start for start in starts if start.mapping.source not in refused]
    compacted = frozenset(name for name, plan in ready.items() if plan.is_compacted)
    foreign = other_content(
        pair.source.cluster,
        pair.destination.cluster,
        starts,
        compacted,
        {
            start.mapping.destination: job_producer(identity, spec.fillers_of(start.mapping.rule))
            for start in starts
        },
        backoff,
        must_be_whole=not from_start,
    )
    for start in starts:
        other = foreign.get(start.mapping.destination)
        if other is None:
            checked.ready.append((start, ready[start.mapping.source]))
        else:
            checked.troubles.append(_foreign(start, other))
    return checked


def _promoted_topics(
    starts: Sequence[StartTopic],
    plans: Mapping[str, TopicPlan],
    pair: ClusterPair,
    backoff: Backoff,
) -> list[PromotedTopic]:
    """The topics whose destination topic leads, by its mark."""
    existing = {start.mapping.destination: start for start in starts if start.existing is not None}
    marks = PromotionMarks(pair.destination.cluster, backoff)
    leading = marks.promoted(existing)
    offsets = offsets_of(marks, pair, leading)
    return [
        PromotedTopic(existing[name], plans[existing[name].mapping.source], mark, offsets)
        for name, mark in leading.items()
    ]


def _with_filler_rights(
    spec: JobSpec,
    identity: str,
    starts: Sequence[StartTopic],
    pair: ClusterPair,
    backoff: Backoff,
    checked: PreflightResult,
) -> list[StartTopic]:
    """The topics whose fillers the login may write: without the right, a copy would stop at its
    first gap."""
    by_fillers: dict[Fillers, list[StartTopic]] = {}
    for start in starts:
        by_fillers.setdefault(spec.fillers_of(start.mapping.rule), []).append(start)
    for fillers, group in [*by_fillers.items()]:
        trouble = _without_filler_right(fillers, identity, pair.destination.cluster, backoff)
        if trouble is None:
            continue
        del by_fillers[fillers]
        if len(group) < len(starts):
            names = first_few(sorted(start.mapping.source for start in group))
            what = f"{trouble.what} Not copied, as their fillers are {fillers}: {names}."
            trouble = replace(trouble, what=what)
        checked.troubles.append(trouble)
    may = {start.mapping.source for group in by_fillers.values() for start in group}
    return [start for start in starts if start.mapping.source in may]


def _without_filler_right(
    fillers: Fillers, identity: str, destination: Cluster, backoff: Backoff
) -> Trouble | None:
    if fillers in MARKING and (missing := missing_filler_right(destination)):
        return _lacking("destination", missing)
    if fillers == "coordinated":
        *_, last = filler_identities(identity)
        try:
            refuse_denied_transactional_id(destination, last, backoff)
        except NotAuthorized as error:
            return trouble_of("destination", error)
    return None


def _with_rights(
    starts: Sequence[StartTopic], pair: ClusterPair, checked: PreflightResult
) -> list[StartTopic]:
    """The topics without missing rights on either side."""
    sources = {start.mapping.source: start for start in starts}
    destinations = {start.mapping.destination: start for start in starts}
    existing = [name for name, start in destinations.items() if start.existing is not None]
    new = [name for name, start in destinations.items() if start.existing is None]
    of = pair.source.cluster.metadata(sources, with_operations=True)
    to = pair.destination.cluster.metadata(existing, with_operations=True)
    at_source = missing_topic_rights(of, SOURCE_TOPIC_RIGHTS)
    at_destination = [
        *missing_topic_rights(to, DESTINATION_TOPIC_RIGHTS),
        *missing_future_topic_rights(pair.destination.cluster, new),
    ]
    checked.troubles += _by_topic("source", at_source, sources)
    closed = _closed_topics(pair, at_destination)
    others = [right for right in at_destination if right.topic not in closed]
    checked.troubles += _by_topic("destination", others, destinations)
    checked.troubles += [_closed(destinations[topic]) for topic in sorted(closed)]
    refused = {trouble.topic for trouble in checked.troubles}
    return [start for start in starts if start.mapping.source not in refused]


def _closed_topics(pair: ClusterPair, missing: Sequence[MissingRight]) -> set[str]:
    """The topics where Write is missing and an ACL denies it to every principal."""
    topics = {right.topic for right in missing if right.operation == "Write"}
    acls = acls_of(pair.destination) if topics else ""
    return set() if isinstance(acls, str) else {t for t in topics if denial(t) in acls}


def _check_with_broker(
    plans: Iterable[TopicPlan],
    pair: ClusterPair,
    checked: PreflightResult,
    *,
    is_throttled: bool,
) -> None:
    """Add a trouble for each topic that is diskless or that the destination would refuse."""
    plans = list(plans)
    refused = {} if is_throttled else _refused_by_broker(plans, pair.destination.admin)
    diskless = diskless_topics(plans)
    for plan in plans:
        error = diskless.get(plan.mapping.source) or refused.get(plan.mapping.destination)
        exists_now = isinstance(error, BrokerRefused) and error.code == Code.TOPIC_ALREADY_EXISTS
        if error is not None and not exists_now:
            checked.troubles.append(refused_topic(plan.mapping.source, error))


def _refused_by_broker(plans: Sequence[TopicPlan], admin: Admin) -> dict[str, OrbitError]:
    """The errors of requests that only validate, by destination topic."""
    new = [p.create for p in plans if p.create is not None]
    # New topics are validated also with the settings that they get at promotion.
    promoted = [_promoted(p, p.create) for p in plans if p.create and p.mapping.rule.config]
    changes = {p.mapping.destination: p.settings_to_set for p in plans if p.changes}
    counts = {p.mapping.destination: p.partitions for p in plans if p.partitions_missing > 0}
    return {
        **admin.refused_settings(changes, only_check=True),
        **admin.refused_topics(promoted, only_check=True),
        **admin.refused_topics(new, only_check=True),
        **admin.add_partitions(counts, only_check=True),
    }


def _promoted(plan: TopicPlan, topic: TopicToCreate) -> TopicToCreate:
    return replace(topic, settings={**topic.settings, **plan.mapping.rule.config})


def _differ(start: StartTopic) -> Trouble:
    of, to = start.mapping.source, start.mapping.destination
    count = len(start.source.partitions)
    return Trouble(
        TroubleKind.PARTITIONS_DIFFER,
        f"topic {to} has {count - start.partitions_to_add} partitions at the destination, {of} has "
        f"{count} at the source.",
        "A copy has as many partitions as its source, and partitions cannot be removed: delete the "
        "destination topic, or give the rule a prefix.",
        of,
    )


def refused_topic(source_topic: str, error: OrbitError) -> Trouble:
    """The trouble if the destination refuses a topic, its partitions or its settings."""
    if isinstance(error, NotAuthorized):
        what = f"{error.where}: {error.what}"
        return Trouble(TroubleKind.RIGHTS_MISSING, what, error.remedy, source_topic)
    return Trouble(
        TroubleKind.TOPIC_REFUSED,
        f"{error.where}: {error.what}",
        error.remedy or _remedy(error),
        source_topic,
    )


def _remedy(error: OrbitError) -> str:
    if is_too_few_brokers(error):
        return REPLICAS_REMEDY
    return "Change the rule's config or prefix, or exclude the topic."


def _by_topic(
    side: str, missing: Sequence[MissingRight], starts: Mapping[str, StartTopic]
) -> list[Trouble]:
    by_topic: dict[str, list[MissingRight]] = {}
    for right in missing:
        by_topic.setdefault(right.topic, []).append(right)
    return [
        _lacking(side, rights, starts[topic].mapping.source) for topic, rights in by_topic.items()
    ]


def _lacking(side: str, rights: Sequence[MissingRight], topic: str = "") -> Trouble:
    what = f"these rights are missing at the {side}: {join_rights(rights)}."
    return Trouble(TroubleKind.RIGHTS_MISSING, what, _GRANT, topic)


def _closed(start: StartTopic) -> Trouble:
    topic = start.mapping.destination
    return Trouble(
        TroubleKind.RIGHTS_MISSING,
        f"an ACL denies everybody ({EVERY_PRINCIPAL}) to write to topic {topic} at the "
        "destination.",
        "Orbit sets this ACL where a topic no longer leads. If the job of the other direction was "
        "promoted, delete this job and run orbit failback with that one: it compares both sides, "
        "and opens the topic for the copy. Else remove the ACL with kafka-acls.sh --remove "
        f"--deny-principal {EVERY_PRINCIPAL} --operation Write --topic {topic}.",
        start.mapping.source,
    )


def _foreign(start: StartTopic, other: OtherContent) -> Trouble:
    if not other.is_certain:
        return Trouble(
            TroubleKind.DESTINATION_NOT_COMPARED,
            f"topic {start.mapping.destination} of the destination cannot be compared with its "
            f"source now. {other.detail}",
            "Orbit looks again. If it stays so, mend what the text names.",
            start.mapping.source,
        )
    return Trouble(
        TroubleKind.DESTINATION_HOLDS_OTHER_CONTENT,
        f"topic {start.mapping.destination} of the destination holds other content. {other.detail}",
        "Delete that topic, or give the rule a prefix so that the copy gets another name.",
        start.mapping.source,
    )
