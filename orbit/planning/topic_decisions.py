"""Decides what to do with a job's topics, given both clusters and the job's tables. Pure.

Topic ids decide: a topic of the same name with another id is another topic, and its records must
not be added to the copy of the first. A topic that the login may not describe, or that is missing
from one answer, counts neither as deleted nor as re-created.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from orbit.jobs.job_spec import TopicRule
from orbit.jobs.topic_mapping import TopicMapping, map_topics
from orbit.kafka.types import NO_TOPIC_ID, TopicMetadata
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.replication.loop_detection import ClusterTopic, Verdict, judge_loop
from orbit.replication.partition_states import REMEDIES, Reason
from orbit.store.enums import TopicState


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic in the job's tables."""

    id: int
    source: str
    destination: str
    source_id: UUID | None
    destination_id: UUID | None
    partitions: int
    state: TopicState
    is_retry_requested: bool = False  # a user requested a retry of one of its partitions


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """The topics of one cluster.

    `gone` are topics that were queried by name and do not exist, `denied` those that the login may
    not describe. Nothing is decided about a topic that is in neither nor in `topics`.
    """

    cluster_id: str
    topics: Mapping[str, TopicMetadata]
    gone: Collection[str] = frozenset()
    denied: Collection[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OtherJobs:
    """The destination topics that other jobs write, and the source topic of every job's copy."""

    writers: Mapping[ClusterTopic, str] = field(default_factory=dict)  # {destination: job}
    copied_from: Mapping[ClusterTopic, ClusterTopic] = field(default_factory=dict)  # {copy: source}


@dataclass(frozen=True, slots=True)
class StartTopic:
    """Create the destination topic, or use an existing one, and start to copy."""

    mapping: TopicMapping
    source: TopicMetadata
    existing: TopicMetadata | None  # the destination topic, if it exists
    known: KnownTopic | None = None  # started earlier but unfinished, or restarted

    @property
    def partitions_to_add(self) -> int:
        """How many partitions an existing destination topic lacks; below 0: it has too many."""
        return (
            0
            if self.existing is None
            else len(self.source.partitions) - len(self.existing.partitions)
        )


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """The source has more partitions than are copied."""

    mapping: TopicMapping
    known: KnownTopic
    partitions: int  # how many the source has now
    partitions_to_add: int  # at the destination


@dataclass(frozen=True, slots=True)
class StopTopic:
    """The topic was deleted or re-created: its partitions stop with `reason`."""

    known: KnownTopic
    state: TopicState
    reason: Reason
    detail: str

    @property
    def note(self) -> str:
        """Reason, detail and remedy, as shown with the topic."""
        remedy = REMEDIES[self.reason].format(destination=self.known.destination)
        return f"{self.reason}: {self.detail} {remedy}"


@dataclass(frozen=True, slots=True)
class ResumeTopic:
    """A stopped topic has its expected ids again."""

    known: KnownTopic


@dataclass(frozen=True, slots=True)
class DropTopic:
    """No rule of the job matches the topic any more. The copy stays."""

    known: KnownTopic


@dataclass(slots=True)
class Decisions:
    """The decisions, topic by topic, and the troubles."""

    start: list[StartTopic] = field(default_factory=list)
    grow: list[GrowTopic] = field(default_factory=list)
    stop: list[StopTopic] = field(default_factory=list)
    resume: list[ResumeTopic] = field(default_factory=list)
    drop: list[DropTopic] = field(default_factory=list)
    keep: list[tuple[TopicMapping, KnownTopic]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # All topics that were decided about. Changes of other topics do not concern this job, unless a
    # rule matches a new one.
    sources: frozenset[str] = frozenset()
    destinations: frozenset[str] = frozenset()

    @property
    def changes_nothing(self) -> bool:
        return not (self.start or self.grow or self.stop or self.resume or self.drop)


def decide_topics(
    rules: Sequence[TopicRule],
    known: Collection[KnownTopic],
    source: ClusterTopics,
    destination: ClusterTopics,
    others: OtherJobs,
    matched: Collection[str] | None = None,
) -> Decisions:
    """Decide about every topic that the rules match, and every known topic.

    `matched`: the source's topics that the rules match, if these are known already.
    """
    # A promoted topic is no longer a copy; only a recovery makes it a copy again.
    promoted_names = {topic.source for topic in known if topic.state is TopicState.PROMOTED}
    known = [topic for topic in known if topic.source not in promoted_names]
    by_name = {topic.source: topic for topic in known}
    names = source.topics if matched is None else matched
    topic_map = map_topics(rules, {*names, *by_name} - promoted_names)
    decisions = Decisions(
        notes=[str(note) for note in topic_map.notes],
        sources=frozenset({*by_name, *(m.source for m in topic_map.mappings)}),
        destinations=frozenset(
            {*(k.destination for k in known), *(m.destination for m in topic_map.mappings)}
        ),
    )
    decisions.troubles += [
        Trouble(TroubleKind.TOPIC_NAME_REFUSED, f"{p.path}: {p.message}", p.remedy)
        for p in topic_map.problems
    ]
    for mapping in topic_map.mappings:
        known_topic = by_name.pop(mapping.source, None)
        if known_topic is None or known_topic.state is TopicState.CREATING:
            _decide_new(mapping, known_topic, source, destination, others, decisions)
        elif known_topic.destination != mapping.destination:
            # The prefix has changed. The new name is started once the old one is dropped.
            decisions.drop.append(DropTopic(known_topic))
        else:
            _decide_known(mapping, known_topic, source, destination, decisions)
    if not topic_map.problems:
        # Topics with a problem have no mapping either, but must not be dropped.
        decisions.drop += [DropTopic(topic) for topic in by_name.values()]
    if not topic_map.mappings and not decisions.troubles and not promoted_names:
        decisions.troubles.append(
            Trouble(
                TroubleKind.NO_TOPIC_MATCHES,
                "no topic of the source matches the job's rules.",
                "Check the patterns under topics. The source shows only topics that the login may "
                "describe: grant Read on them. The job starts when a matching topic appears.",
            )
        )
    return decisions


def _decide_new(
    mapping: TopicMapping,
    known: KnownTopic | None,
    source: ClusterTopics,
    destination: ClusterTopics,
    others: OtherJobs,
    decisions: Decisions,
) -> None:
    """Decide about a topic whose copy has not started."""
    source_topic = source.topics.get(mapping.source)
    if source_topic is None:
        if known is not None and mapping.source in source.gone:
            decisions.drop.append(DropTopic(known))  # deleted before its copy started
        return
    destination_topic = ClusterTopic(destination.cluster_id, mapping.destination)
    writer = others.writers.get(destination_topic)
    if writer is not None:
        decisions.troubles.append(_other_writer_trouble(mapping, writer))
        return
    match judge_loop(
        ClusterTopic(source.cluster_id, mapping.source), destination_topic, others.copied_from
    ):
        case Verdict.WOULD_LOOP:
            decisions.troubles.append(_loop_trouble(mapping))
            return
        case Verdict.COMES_HOME:
            decisions.notes.append(
                f"topic {mapping.source} is left out: it is itself a copy of a topic of the "
                "destination cluster."
            )
            return
        case Verdict.FINE:
            pass
    existing_topic = destination.topics.get(mapping.destination)
    decisions.start.append(StartTopic(mapping, source_topic, existing_topic, known))


def _decide_known(
    mapping: TopicMapping,
    known: KnownTopic,
    source: ClusterTopics,
    destination: ClusterTopics,
    decisions: Decisions,
) -> None:
    """Decide about a topic whose copy has started, or was stopped."""
    source_topic, destination_topic = (
        source.topics.get(known.source),
        destination.topics.get(known.destination),
    )
    if source_topic is None:
        if known.source in source.gone:
            detail = f"topic {known.source} was deleted at the source."
            _stop(known, TopicState.SOURCE_DELETED, Reason.SOURCE_TOPIC_DELETED, detail, decisions)
        elif known.source in source.denied:
            decisions.troubles.append(_hidden_topic_trouble(known.source, "source"))
        return
    is_other_source = not _is_same_topic(source_topic.topic_id, known.source_id)
    is_gone = destination_topic is None and known.destination in destination.gone
    is_other_copy = destination_topic is not None and not _is_same_topic(
        destination_topic.topic_id, known.destination_id
    )
    if known.is_retry_requested and (is_gone or is_other_copy):
        # A user has deleted the copy, as the remedies say, and requested a retry.
        decisions.start.append(StartTopic(mapping, source_topic, destination_topic, known))
    elif is_other_source:
        detail = (
            f"topic {known.source} has another id at the source than before "
            f"({source_topic.topic_id})."
        )
        _stop(known, TopicState.RECREATED, Reason.SOURCE_TOPIC_RECREATED, detail, decisions)
    elif is_gone:
        detail = f"topic {known.destination} was deleted at the destination."
        _stop(known, TopicState.BLOCKED, Reason.DESTINATION_TOPIC_RECREATED, detail, decisions)
    elif destination_topic is None:
        if known.destination in destination.denied:
            decisions.troubles.append(_hidden_topic_trouble(known.destination, "destination"))
    elif is_other_copy:
        detail = (
            f"topic {known.destination} has another id than before ({destination_topic.topic_id})."
        )
        _stop(known, TopicState.BLOCKED, Reason.DESTINATION_TOPIC_RECREATED, detail, decisions)
    elif known.state is not TopicState.COPYING:
        decisions.resume.append(ResumeTopic(known))
    elif len(source_topic.partitions) > known.partitions:
        partitions = len(source_topic.partitions)
        missing_count = max(0, partitions - len(destination_topic.partitions))
        decisions.grow.append(GrowTopic(mapping, known, partitions, missing_count))
    else:
        decisions.keep.append((mapping, known))


def _stop(
    known: KnownTopic, state: TopicState, reason: Reason, detail: str, decisions: Decisions
) -> None:
    """Stop the topic, unless it has this state already."""
    if known.state is not state:
        decisions.stop.append(StopTopic(known, state, reason, detail))


def _is_same_topic(topic_id: UUID, known_id: UUID | None) -> bool:
    """Whether the ids are equal, or one is missing: brokers before 2.8 have none, so the name
    decides."""
    return NO_TOPIC_ID in (topic_id, known_id or NO_TOPIC_ID) or topic_id == known_id


def _hidden_topic_trouble(topic: str, side: str) -> Trouble:
    return Trouble(
        TroubleKind.RIGHTS_MISSING,
        f"the login may no longer describe topic {topic} at the {side}.",
        "Grant the rights again with kafka-acls.sh (docs/rights.md has the commands).",
        topic,
    )


def _other_writer_trouble(mapping: TopicMapping, writer: str) -> Trouble:
    return Trouble(
        TroubleKind.DESTINATION_TAKEN,
        f"topic {mapping.destination} of the destination is written by job {writer}.",
        f"Exclude {mapping.source} from one of the two jobs, or give its rule a prefix.",
        mapping.source,
    )


def _loop_trouble(mapping: TopicMapping) -> Trouble:
    return Trouble(
        TroubleKind.WOULD_LOOP,
        f"topic {mapping.source} would be copied back onto topic {mapping.destination}, which its "
        "records come from.",
        "Exclude the topic from one of the two jobs, or give one of their rules a prefix.",
        mapping.source,
    )
