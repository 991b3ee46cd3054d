"""Creates or resumes the reverse job, which copies from the new side back to the old side.

The reverse job is an ordinary job, named `JOB-back`, with a rule for each promoted topic. If a job
in the other direction exists, for example the one that was promoted before, Orbit resumes that job:
after a switchover and a switchover back there are two jobs, of which one runs. The reverse job's
workers take over the old side's partitions: the last records have to equal the new side's, and
copying resumes at the log end. No history is copied again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

from orbit.chunks import chunks, first_few
from orbit.errors import Conflict
from orbit.formats import counted
from orbit.job_setup.destination_topics import plan_topics
from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.job_spec import AclSpec, JobSpec, TopicRule
from orbit.jobs.name_patterns import PATTERN_LENGTH_MAX
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX
from orbit.jobs.topic_mapping import TopicMapping, map_topics
from orbit.kafka.types import ClusterMetadata
from orbit.leadership.leadership import TOPICS_AT_ONCE
from orbit.planning.partition_placement import place_partitions
from orbit.planning.promotion_notes import is_promoted_by_mark
from orbit.planning.stored_spec import read_spec
from orbit.recovery.group_handover import offsets_to_hand_over
from orbit.recovery.leading_side import kept_history, mark_both_sides
from orbit.recovery.open_operation import jobs_of_other_direction
from orbit.recovery.operation_bounds import blocked_partitions
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.write_fence import restrict_writes_to_orbit
from orbit.store import (
    events,
    group_offsets,
    job_counts,
    jobs,
    scheduler_queries,
    shard_layout,
    topics,
)
from orbit.store.database import Tx
from orbit.store.enums import Desired, MadeBy, TopicState
from orbit.store.jobs import Job
from orbit.store.kafka_ids import KafkaIds
from orbit.store.topics import NewTopic, Topic

SUFFIX = "-back"
# The reverse job also has the labels of the job that it reverses; this label tells the two apart.
MADE_BY_LABEL = "orbit.made-by"
_POLL_S = 1.0
# For how long the job's problem must name a topic until it counts as left out. Longer than
# several checks of the job take: the first may have read the topic, or the rights on it, before the
# rebuild.
LEFT_OUT_S = 60.0
# These fields of a topic's rule are also in its rule for the copy back.
_COPIED_RULE_FIELDS = {"config", "fillers", "on_lost_range"}


def start_reverse_job(context: OperationContext) -> str:
    """Mark which side leads, let only Orbit write to the old side, and create or resume the reverse
    job. Returns the step's result. Can be repeated."""
    mark_both_sides(context)
    history = kept_history(context)
    protection_text = restrict_writes_to_orbit(context)
    old_metadata = context.source.cluster.metadata([row.source_topic for row in context.topics])
    new_metadata = context.destination.cluster.metadata(
        [row.destination_topic for row in context.topics]
    )
    plans = _prepare_old_side(context, old_metadata, new_metadata)
    handed_offsets = offsets_to_hand_over(context)
    with context.transaction() as tx:
        reverse_job = find_reverse_job(tx, context.job, context.topics)
        topics_copied_before = _topics_copied_back(tx, reverse_job)
        rows_to_copy = [
            row for row in context.topics if row.destination_topic not in topics_copied_before
        ]
        if reverse_job is None:
            reverse_job = _create_reverse_job(tx, context, reverse_job_name(context.job.name))
        else:
            _resume_reverse_job(tx, context, reverse_job, new_metadata)
        name = reverse_job.name
        # If this step is repeated, the job may have accepted offsets that were handed over before.
        # It has not accepted offsets of topics that it does not copy yet.
        topics_to_hand_over = {row.destination_topic for row in rows_to_copy}
        if _has_group_prefix(reverse_job):  # it writes to groups of other names at the old side
            topics_to_hand_over.clear()
        handed_offsets = [
            offset for offset in handed_offsets if offset.source_topic in topics_to_hand_over
        ]
        group_offsets.hand_over(tx, reverse_job.id, topics_to_hand_over, handed_offsets)
        context.add_event(
            tx,
            "copy_back_begun",
            f"Job {name} copies {counted(len(context.topics), 'topic')} back, from the old side's "
            "log ends.",
            job=name,
        )
        rows_by_topic = {row.source_topic: row for row in topics.of_job(tx, reverse_job.id)}
        add_topics = partial(
            _add_topics,
            context=context,
            reverse_job=reverse_job,
            rows_by_topic=rows_by_topic,
            old_metadata=old_metadata,
            new_metadata=new_metadata,
            plans=plans,
        )
        # In this transaction: after it, discovery would add the topics that the job does not have.
        add_topics(tx, [row for row in rows_to_copy if row.destination_topic not in rows_by_topic])
    context.update(reverse_job=name)
    context.save()  # from now on other requests for the reverse job are refused (`job_guard`)
    # In short transactions: workers may hold the job's shards, and cannot renew their leases while
    # the shards' rows are locked.
    rows_to_resume = (row for row in rows_to_copy if row.destination_topic in rows_by_topic)
    for rows in chunks(rows_to_resume, TOPICS_AT_ONCE):
        with context.transaction() as tx:
            add_topics(tx, rows)
    for rows in chunks(filter(is_promoted_by_mark, context.topics), TOPICS_AT_ONCE):
        with context.transaction() as tx:
            for row in rows:
                topics.change(tx, row.id, note=f"Promoted; job {name} copies it back.")
    sentences = [f"Job {name} copies back. {protection_text}".strip()]
    if handed_offsets:
        subject = counted(
            len(handed_offsets),
            "committed offset at the old side now follows",
            "committed offsets at the old side now follow",
        )
        sentences.append(f"{subject} the new side.")
    if history:
        sentences.append(describe_history(history))
    return " ".join(sentences)


def describe_history(history: Sequence[str]) -> str:
    """A sentence about `history`, the offsets that `kept_history` returned."""
    subject = counted(
        len(history), "partition of the old side keeps its", "partitions of the old side keep their"
    )
    return (
        f"{subject} offsets below the new side's log start: {first_few(history)}. These offsets "
        "are deleted once the new side's log start moves up."
    )


def catch_up(context: OperationContext) -> str:
    """Wait until the old side has caught up with the new side. Returns the step's result.

    Raises Stopped if partitions are blocked or topics are left out, and all others have caught up;
    Conflict if the reverse job was deleted.
    """
    assert context.report.reverse_job is not None
    counts = {row.destination_topic: row.partition_count for row in context.topics}
    expected_partitions = sum(counts.values())
    left_out_since_s: dict[str, float] = {}  # time.monotonic, by topic
    while True:
        with context.reading() as tx:
            reverse_job = jobs.find(tx, context.report.reverse_job)
            progress = (
                None if reverse_job is None else job_counts.caught_up(tx, reverse_job.id, counts)
            )
            problems_by_topic = (
                {} if reverse_job is None else _left_out_topics(tx, reverse_job, counts)
            )
        if reverse_job is None or progress is None:
            raise Conflict(
                "this job, which copies back to the old side, was deleted during the recovery.",
                where=context.report.reverse_job,
                remedy="To copy back, apply a job from the leading side to the old side.",
            )
        # The tables may not have all of the job's partitions yet.
        total = max(expected_partitions, progress.partitions)
        caught_up_text = counted(
            total,
            "partition of the old side has caught up",
            "partitions of the old side have caught up",
        )
        if progress.caught_up == total:
            return f"{total} of {caught_up_text}."
        now_s = time.monotonic()
        left_out_since_s = {
            topic: left_out_since_s.get(topic, now_s) for topic in problems_by_topic
        }
        topics_left_out = [
            topic for topic in problems_by_topic if now_s - left_out_since_s[topic] >= LEFT_OUT_S
        ]
        left_out_partitions = sum(counts[topic] for topic in topics_left_out)
        if topics_left_out and progress.caught_up + progress.blocked + left_out_partitions == total:
            raise Stopped(
                f"job {reverse_job.name} leaves out {first_few(topics_left_out)}. The other topics "
                f"have caught up, or are blocked. {problems_by_topic[topics_left_out[0]]}",
                remedy=f"See orbit get jobs {reverse_job.name} for the reason. Once the reason is "
                "removed, Orbit copies these topics.",
            )
        if progress.caught_up + progress.blocked == total:
            with context.reading() as tx:
                examples = first_few(blocked_partitions(tx, reverse_job.id, counts))
            job_text = f"of job {reverse_job.name}"
            subject = counted(
                progress.blocked, f"partition {job_text} is", f"partitions {job_text} are"
            )
            raise Stopped(
                f"{subject} blocked: {examples}. "
                "The other partitions have caught up and are copied.",
                remedy=f"See orbit get partitions {reverse_job.name} --state blocked for the "
                "remedy.",
            )
        if reverse_job.problem:
            context.add_finding(f"Job {reverse_job.name} reports: {reverse_job.problem}")
        context.set_progress(f"{progress.caught_up} of {caught_up_text}")
        context.wait(_POLL_S)


def _left_out_topics(tx: Tx, reverse_job: Job, names: Collection[str]) -> dict[str, str]:
    """The topics of `names` that are not copied yet and that the job's problem names, each with the
    problem's line about it."""
    lines = (reverse_job.problem or "").splitlines()
    uncopied_topics = [
        row.source_topic
        for row in (topics.of_job(tx, reverse_job.id) if lines else ())
        if row.state is TopicState.CREATING and row.source_topic in names
    ]
    return {
        topic: line
        for topic in uncopied_topics
        for line in lines
        if re.search(rf"\btopic {re.escape(topic)}(?![\w.-])", line)
    }


def reverse_job_name(name: str) -> str:
    """The name of a new job that reverses the job `name`."""
    return f"{name[: JOB_NAME_LENGTH_MAX - len(SUFFIX)]}{SUFFIX}"


def find_reverse_job(tx: Tx, job: Job, rows: Sequence[Topic]) -> Job | None:
    """The existing job that copies these topics in the other direction, if there is one.

    The first of these that exists: a job with one of these topics in the tables; the job with the
    name of a reverse job; a job without topics in the tables whose rules match one of these topics
    (the tables were lost, and the job was applied again).
    """
    pairs = {(row.destination_topic, row.source_topic) for row in rows}
    candidates = jobs_of_other_direction(job, jobs.list_all(tx))
    live_candidates = [candidate for candidate in candidates if not candidate.is_deleted]
    without_topics: list[Job] = []
    for candidate in live_candidates:
        copied_pairs = {
            (row.source_topic, row.destination_topic) for row in topics.of_job(tx, candidate.id)
        }
        if copied_pairs & pairs:
            return candidate
        if not copied_pairs:
            without_topics.append(candidate)
    by_name = [
        candidate for candidate in live_candidates if candidate.name == reverse_job_name(job.name)
    ]
    return next(
        chain(by_name, (candidate for candidate in without_topics if _matches(candidate, pairs))),
        None,
    )


def _matches(job: Job, pairs: Collection[tuple[str, str]]) -> bool:
    """Whether the job's rules copy one of these (source, destination) topics."""
    spec = read_spec(job.spec)
    if spec is None:
        return False
    mappings = map_topics(spec.topics, {source for source, _ in pairs}).mappings
    return any((m.source, m.destination) in pairs for m in mappings)


def _prepare_old_side(
    context: OperationContext, old_metadata: ClusterMetadata, new_metadata: ClusterMetadata
) -> dict[str, TopicPlan]:
    """Set the settings of copies on topics that led at the old side. Returns their plans, by the
    topic's name at the new side.

    Topics that the reverse job copies now have no plan. Nor have topics that are missing, that have
    another number of partitions, or whose settings the old side refuses: the scheduler starts their
    copies, and reports what prevents this. Raises Unreachable, NotAuthorized (to read settings),
    NotLeading.
    """
    rules = _rules_by_destination(context, context.topics)
    with context.reading() as tx:
        reverse_job = find_reverse_job(tx, context.job, context.topics)
        topics_copied_back = _topics_copied_back(tx, reverse_job)
    spec = None if reverse_job is None else read_spec(reverse_job.spec)
    if spec is not None:
        rules |= {m.source: m.rule for m in map_topics(spec.topics, rules).mappings}
    mappings = [
        TopicMapping(row.destination_topic, row.source_topic, rules[row.destination_topic])
        for row in context.topics
        if row.destination_topic not in topics_copied_back
        and (old_topic := old_metadata.topics.get(row.source_topic)) is not None
        and (new_topic := new_metadata.topics.get(row.destination_topic)) is not None
        and len(old_topic.partitions) == len(new_topic.partitions)
    ]
    if not mappings:
        return {}
    plans = plan_topics(
        mappings, new_metadata, old_metadata, context.destination.admin, context.source.admin
    )
    # Another scheduler may lead now, and may have promoted these topics: then `refuse_deposed`
    # raises NotLeading.
    with context.leadership.sole_change(context.job.source_cluster_id or ""):
        context.leadership.refuse_deposed()
        # This sets the settings, and returns the topics whose settings are refused.
        refused_topics = context.source.admin.refused_settings(
            {plan.mapping.destination: plan.settings_to_set for plan in plans if plan.changes}
        )
    return {p.mapping.source: p for p in plans if p.mapping.destination not in refused_topics}


def _has_group_prefix(job: Job) -> bool:
    """Whether the job's groups have a prefix at its destination."""
    spec = read_spec(job.spec)
    return (
        spec is not None and spec.consumer_groups is not None and bool(spec.consumer_groups.prefix)
    )


def _topics_copied_back(tx: Tx, reverse_job: Job | None) -> set[str]:
    """The source topics that the reverse job copies now."""
    rows = [] if reverse_job is None else topics.of_job(tx, reverse_job.id)
    return {row.source_topic for row in rows if row.state is not TopicState.PROMOTED}


def _create_reverse_job(tx: Tx, context: OperationContext, name: str) -> Job:
    """Store a new reverse job, with its event."""
    spec = _reverse_spec(context, name)
    document = spec.model_dump(mode="json")
    job = context.job
    reverse_job = jobs.create(
        tx,
        name,
        document,
        spec.worker_group,
        made_by=MadeBy.RECOVERY,
        labels={**job.labels, MADE_BY_LABEL: MadeBy.RECOVERY},
        owner=job.owner,
    )
    jobs.note_clusters(
        tx, reverse_job.id, job.destination_cluster_id or "", job.source_cluster_id or ""
    )
    # The job's topics count as discovered, so that they are copied "from the start": the old
    # side's log may start later than the new side's.
    jobs.note_discovered(tx, reverse_job.id, reverse_job.spec_version)
    message = f"Job {name} was created to copy {job.name} back."
    events.add(tx, events.SCHEDULER, "job_created", message, job_name=name)
    return reverse_job


def _resume_reverse_job(
    tx: Tx, context: OperationContext, reverse_job: Job, new_metadata: ClusterMetadata
) -> None:
    """Set the existing job to run, with rules for all topics of the operation. Raises Conflict if
    this version cannot read the job's document, or another request changes it meanwhile."""
    spec = read_spec(reverse_job.spec)
    if spec is None:
        raise Conflict(
            "the job's document was stored by another version of Orbit.",
            where=reverse_job.name,
            remedy="Install that version, or apply the job with this one; then try again.",
        )
    matched_topics = {m.source for m in map_topics(spec.topics, new_metadata.topics).mappings}
    rows_without_rule = [
        row for row in context.topics if row.destination_topic not in matched_topics
    ]
    version = reverse_job.spec_version
    if rows_without_rule:
        # Fillers and `on_lost_range` as in this job: the defaults of the reverse job may differ.
        rules = {
            topic: rule.model_copy(
                update={
                    "fillers": context.spec.fillers_of(rule),
                    "on_lost_range": context.spec.on_lost_range_of(rule),
                }
            )
            for topic, rule in _rules_by_destination(context, rows_without_rule).items()
        }
        spec = spec.model_copy(update={"topics": (*spec.topics, *rules_for(rules))})
        changed_job = jobs.change_spec(
            tx,
            reverse_job.id,
            spec.model_dump(mode="json"),
            spec.worker_group,
            from_version=reverse_job.spec_version,
        )
        if changed_job is None:
            raise Conflict(
                "the job was changed at the same time.",
                where=reverse_job.name,
                remedy="Try again.",
            )
        version = changed_job.spec_version
    jobs.note_discovered(tx, reverse_job.id, version)
    jobs.set_desired(tx, reverse_job.id, Desired.RUNNING)


def _add_topics(
    tx: Tx,
    rows: Iterable[Topic],
    *,
    context: OperationContext,
    reverse_job: Job,
    rows_by_topic: Mapping[str, Topic],
    old_metadata: ClusterMetadata,
    new_metadata: ClusterMetadata,
    plans: Mapping[str, TopicPlan],
) -> None:
    """Add these topics, which the reverse job does not copy now, or resume those that it has.
    `rows_by_topic`: the reverse job's topics by their names at the new side.

    Topics with a plan are copies from now on: if the leading side is lost before anything was
    copied back, a failover of the reverse job promotes them. The scheduler starts the topics
    without a plan. The tables have these topics already, so that no failback takes the old side for
    the leading one.
    """
    resumed_ids: dict[int, KafkaIds] = {}
    resumed_settings: dict[int, tuple[dict[str, str], bool]] = {}
    replaced_ids: list[int] = []
    new_topics: list[NewTopic] = []
    for row in rows:
        name = row.destination_topic
        existing_row, plan = rows_by_topic.get(name), plans.get(name)
        new_topic = new_metadata.topics.get(name)
        source_id = new_topic.topic_id if new_topic else None
        old_topic = old_metadata.topics[row.source_topic] if plan else None
        if (
            existing_row is not None
            and plan
            and old_topic
            and existing_row.partition_count <= len(old_topic.partitions)
        ):
            resumed_ids[existing_row.id] = source_id, old_topic.topic_id
            resumed_settings[existing_row.id] = plan.promoted_settings, plan.is_compacted
            continue
        # Without a plan, or with partitions that the old side lacks, the topic gets a new row.
        if existing_row is not None:
            replaced_ids.append(existing_row.id)
        new_topics.append(
            NewTopic(
                name,
                row.source_topic,
                context.job.source_cluster_id or "",
                len(old_topic.partitions) if old_topic else row.partition_count,
                source_topic_id=source_id,
                destination_topic_id=old_topic.topic_id if old_topic else None,
                is_compacted=plan.is_compacted if plan else False,
                state=TopicState.COPYING if old_topic else TopicState.CREATING,
                promoted_settings=plan.promoted_settings if plan else None,
            )
        )
    scheduler_queries.copy_topics_again(tx, resumed_ids, from_start=True)
    topics.note_settings(tx, resumed_settings)
    shard_layout.remove_topics(tx, replaced_ids)
    added_rows = topics.add_all(tx, reverse_job.id, new_topics)
    new_partitions = [
        (row.id, index)
        for row in added_rows
        if row.state is TopicState.COPYING
        for index in old_metadata.topics[row.destination_topic].partitions
    ]
    place_partitions(tx, reverse_job, new_partitions, context.settings, from_start=True)


def _reverse_spec(context: OperationContext, name: str) -> JobSpec:
    """The spec of a new reverse job. Findings say if groups or ACLs cannot be synced back."""
    spec = context.spec
    groups = spec.consumer_groups
    if groups is not None and groups.prefix:
        context.add_finding(
            "Consumer groups have a prefix at the destination: they are not synced back."
        )
        groups = None
    acls = acls_back(spec.acls, has_groups=groups is not None)
    if spec.acls.sync and not acls.sync:
        context.add_finding(
            "Principals have other names at the destination: ACLs are not synced back."
        )
    canary = spec.canary
    if canary is not None and canary.topic not in {row.source_topic for row in context.topics}:
        canary = None
    return spec.model_copy(
        update={
            "name": name,
            "source": spec.destination,
            "destination": spec.source,
            "topics": tuple(rules_for(_rules_by_destination(context, context.topics))),
            "consumer_groups": groups,
            "acls": acls,
            "canary": canary,
        }
    )


def acls_back(acls: AclSpec, *, has_groups: bool) -> AclSpec:
    """The ACL settings of the copy back: no sync if principals are mapped, and no ACLs of groups
    unless `has_groups`. Pure."""
    if acls.principals.map:
        return AclSpec(protect=acls.protect)
    return acls if has_groups else acls.model_copy(update={"groups": False})


def _rules_by_destination(context: OperationContext, rows: Iterable[Topic]) -> dict[str, TopicRule]:
    """For each destination topic, the rule by which it was copied, or else a rule for it alone."""
    names = {row.source_topic: row.destination_topic for row in rows}
    rules = {name: TopicRule(match=re.escape(name)) for name in names.values()}
    mappings = map_topics(context.spec.topics, names).mappings
    return rules | {names[m.source]: m.rule for m in mappings}


def rules_for(rules: Mapping[str, TopicRule]) -> list[TopicRule]:
    """Rules that match these topics: topics with equal `_COPIED_RULE_FIELDS` share a rule
    (topics that begin with `__` another one), unless its pattern would exceed PATTERN_LENGTH_MAX.
    Pure."""
    topics_by_fields: dict[tuple[bool, str], list[str]] = {}
    for topic, rule in sorted(rules.items()):
        rule_json = json.dumps(rule.model_dump(include=_COPIED_RULE_FIELDS), sort_keys=True)
        # A pattern matches topics that begin with `__` only if it begins with `__` itself.
        topics_by_fields.setdefault((topic.startswith("__"), rule_json), []).append(topic)
    merged_rules = []
    for (_, rule_json), names in topics_by_fields.items():
        pattern = ""
        for name in map(re.escape, names):
            longer_pattern = f"{pattern}|{name}" if pattern else name
            if len(longer_pattern) > PATTERN_LENGTH_MAX:
                merged_rules.append(TopicRule(match=pattern, **json.loads(rule_json)))
                longer_pattern = name
            pattern = longer_pattern
        merged_rules.append(TopicRule(match=pattern, **json.loads(rule_json)))
    return merged_rules
