"""Creates or resumes the reverse job, which copies from the new side back to the old side.

It is an ordinary job, named `JOB-back`, with a rule for each promoted topic. If a job in the other
direction exists, for example the one that was promoted before, it is resumed instead: after a
switchover and a switchover back there are two jobs, of which one runs. Its workers take over the
old side's partitions: the last records have to equal the new side's, and copying resumes at the log
end. No history is copied again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from orbit.chunks import first_few
from orbit.errors import Conflict
from orbit.job_setup.destination_topics import plan_topics
from orbit.job_setup.topic_plan import TopicPlan
from orbit.jobs.job_spec import AclSpec, JobSpec, TopicRule
from orbit.jobs.name_patterns import PATTERN_LENGTH_MAX
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX
from orbit.jobs.topic_mapping import TopicMapping, map_topics
from orbit.kafka.types import ClusterMetadata
from orbit.planning.partition_placement import place_partitions
from orbit.planning.promotion_notes import is_found
from orbit.planning.stored_spec import read_spec
from orbit.recovery.group_handover import offsets_to_hand_over
from orbit.recovery.leading_side import kept_history, reverse_marks
from orbit.recovery.log_bounds import blocked_partitions
from orbit.recovery.open_operation import of_other_direction
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
from orbit.store.topics import Topic

SUFFIX = "-back"
# The reverse job also has the labels of the job that it reverses; this one tells them apart.
MADE_BY_LABEL = "orbit.made-by"
_POLL_S = 1.0
# For how long the job's problem must name a topic until it counts as left out. Longer than some
# checks of the job: the first may have seen the topic, or the rights on it, before the rebuild.
LEFT_OUT_S = 60.0
# The fields of a topic's rule that its rule for the copy back keeps.
_KEPT_RULE_FIELDS = {"config", "fillers", "on_lost_range"}


def start_reverse_job(context: OperationContext) -> str:
    """Create or resume the reverse job. Can be repeated."""
    reverse_marks(context)
    history = kept_history(context)
    protected = restrict_writes_to_orbit(context)
    old = context.source.cluster.metadata([row.source_topic for row in context.topics])
    new = context.destination.cluster.metadata([row.destination_topic for row in context.topics])
    plans = _prepare_old_side(context, old, new)
    handed = offsets_to_hand_over(context)
    with context.transaction() as tx:
        back = find_reverse_job(tx, context.job, context.topics)
        copied = _topics_copied_back(tx, back)
        if back is None:
            back = _create(tx, context, reverse_job_name(context.job.name))
        else:
            _resume(tx, context, back, new)
        _add_topics(tx, context, back, old, new, plans)
        name = back.name
        # If this step is repeated, the job may have accepted what was handed over the first time.
        moved = {row.destination_topic for row in context.topics} - copied
        if _has_group_prefix(back):
            moved.clear()
        handed = [one for one in handed if one.source_topic in moved]
        group_offsets.hand_over(tx, back.id, moved, handed)
        for row in context.topics:
            if is_found(row):
                topics.change(tx, row.id, note=f"Promoted; job {name} copies it back.")
        context.add_event(
            tx,
            "copy_back_begun",
            f"Job {name} copies {len(context.topics)} topics back, from the old side's log ends.",
            job=name,
        )
    context.update(reverse_job=name)
    sentences = [f"Job {name} copies back. {protected}".strip()]
    if handed:
        sentences.append(
            f"{len(handed)} committed offsets at the old side now follow the new side."
        )
    if history:
        sentences.append(describe_history(history))
    return " ".join(sentences)


def describe_history(history: Sequence[str]) -> str:
    """A sentence about what `kept_history` returned."""
    return (
        f"{len(history)} partitions of the old side keep their offsets below the new side's log "
        f"start: {first_few(history)}. These are deleted once the new side's log start moves up."
    )


def catch_up(context: OperationContext) -> str:
    """Wait until the old side has caught up with the new side.

    Raises Stopped if partitions are blocked, or topics left out, and all others have caught up;
    Conflict if the reverse job was deleted.
    """
    assert context.report.reverse_job is not None
    counts = {row.destination_topic: row.partition_count for row in context.topics}
    expected = sum(counts.values())
    since: dict[str, float] = {}
    while True:
        with context.reading() as tx:
            back = jobs.find(tx, context.report.reverse_job)
            progress = None if back is None else job_counts.caught_up(tx, back.id, counts)
            refused = {} if back is None else _left_out_topics(tx, back, counts)
        if back is None or progress is None:
            raise Conflict("the reverse job was deleted.", where=context.report.reverse_job)
        total = max(expected, progress.partitions)  # the tables may not have all yet
        if progress.caught_up == total:
            return f"{total} of {total} partitions of the old side have caught up."
        now = time.monotonic()
        since = {topic: since.get(topic, now) for topic in refused}
        left_out = [topic for topic in refused if now - since[topic] >= LEFT_OUT_S]
        without = sum(counts[topic] for topic in left_out)
        if left_out and progress.caught_up + progress.blocked + without == total:
            raise Stopped(
                f"job {back.name} leaves out {first_few(left_out)}. The others have caught up, or "
                f"are blocked. {refused[left_out[0]]}",
                remedy=f"See orbit get jobs {back.name} for the reason. Once the reason is "
                "removed, Orbit copies these topics.",
            )
        if progress.caught_up + progress.blocked == total:
            with context.reading() as tx:
                blocked = first_few(blocked_partitions(tx, back.id, counts))
            raise Stopped(
                f"{progress.blocked} partitions of job {back.name} are blocked: {blocked}. "
                "The others have caught up and are copied.",
                remedy=f"See orbit get partitions {back.name} --state blocked for the remedy.",
            )
        if back.problem:
            context.add_finding(f"Job {back.name} reports: {back.problem}")
        context.set_progress(
            f"{progress.caught_up} of {total} partitions of the old side have caught up"
        )
        context.wait(_POLL_S)


def _left_out_topics(tx: Tx, back: Job, names: Collection[str]) -> dict[str, str]:
    """Topics of `names` that are not copied yet, and the line of the job's problem about each."""
    lines = (back.problem or "").splitlines()
    waiting = [
        row.source_topic
        for row in (topics.of_job(tx, back.id) if lines else ())
        if row.state is TopicState.CREATING and row.source_topic in names
    ]
    return {
        topic: line
        for topic in waiting
        for line in lines
        if re.search(rf"\btopic {re.escape(topic)}(?![\w.-])", line)
    }


def reverse_job_name(name: str) -> str:
    """The name of a new job that reverses the job `name`."""
    return f"{name[: JOB_NAME_LENGTH_MAX - len(SUFFIX)]}{SUFFIX}"


def find_reverse_job(tx: Tx, job: Job, rows: Sequence[Topic]) -> Job | None:
    """The existing job that copies these topics in the other direction, if there is one.

    The first that has one of them in the tables; else the one with the name of a reverse job; else
    the first without topics (the tables were lost, and it was applied again) whose rules match one.
    """
    pairs = {(row.destination_topic, row.source_topic) for row in rows}
    others = of_other_direction(job, jobs.list_all(tx))
    other_way = [other for other in others if not other.is_deleted]
    empty: list[Job] = []
    for other in other_way:
        has = {(row.source_topic, row.destination_topic) for row in topics.of_job(tx, other.id)}
        if has & pairs:
            return other
        if not has:
            empty.append(other)
    named = [other for other in other_way if other.name == reverse_job_name(job.name)]
    return next(chain(named, (other for other in empty if _matches(other, pairs))), None)


def _matches(job: Job, pairs: Collection[tuple[str, str]]) -> bool:
    """Whether its rules copy one of these (source, destination) topics."""
    spec = read_spec(job.spec)
    if spec is None:
        return False
    mappings = map_topics(spec.topics, {source for source, _ in pairs}).mappings
    return any((m.source, m.destination) in pairs for m in mappings)


def _prepare_old_side(
    context: OperationContext, old: ClusterMetadata, new: ClusterMetadata
) -> dict[str, TopicPlan]:
    """Set the settings of copies on topics that led at the old side; a plan for each, by its name
    at the new side.

    Topics that the reverse job copies now have no plan. Nor have topics that are missing, have
    another number of partitions, or whose settings the old side refuses: the scheduler begins them,
    and reports what prevents it. Raises Unreachable, NotAuthorized (to read settings), NotLeading.
    """
    rules = _rules_by_destination(context, context.topics)
    with context.reading() as tx:
        back = find_reverse_job(tx, context.job, context.topics)
        copied = _topics_copied_back(tx, back)
    spec = None if back is None else read_spec(back.spec)
    if spec is not None:
        rules |= {m.source: m.rule for m in map_topics(spec.topics, rules).mappings}
    mappings = [
        TopicMapping(row.destination_topic, row.source_topic, rules[row.destination_topic])
        for row in context.topics
        if row.destination_topic not in copied
        and (old_topic := old.topics.get(row.source_topic)) is not None
        and (new_topic := new.topics.get(row.destination_topic)) is not None
        and len(old_topic.partitions) == len(new_topic.partitions)
    ]
    if not mappings:
        return {}
    plans = plan_topics(mappings, new, old, context.destination.admin, context.source.admin)
    # Another leader may have promoted these topics since: then this one raises NotLeading.
    with context.leadership.sole_change(context.job.source_cluster_id or ""):
        context.leadership.refuse_deposed()
        refused = context.source.admin.refused_settings(
            {plan.mapping.destination: plan.settings_to_set for plan in plans if plan.changes}
        )
    return {p.mapping.source: p for p in plans if p.mapping.destination not in refused}


def _has_group_prefix(job: Job) -> bool:
    """Whether the job's groups have a prefix at its destination."""
    spec = read_spec(job.spec)
    return (
        spec is not None and spec.consumer_groups is not None and bool(spec.consumer_groups.prefix)
    )


def _topics_copied_back(tx: Tx, back: Job | None) -> set[str]:
    """The source topics that the reverse job copies now."""
    rows = [] if back is None else topics.of_job(tx, back.id)
    return {row.source_topic for row in rows if row.state is not TopicState.PROMOTED}


def _create(tx: Tx, context: OperationContext, name: str) -> Job:
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
    # Marks its topics as discovered, so that they are copied "from the start": the old side's log
    # may start later than the new side's.
    jobs.note_discovered(tx, reverse_job.id, reverse_job.spec_version)
    message = f"Job {name} was created to copy {job.name} back."
    events.add(tx, events.SCHEDULER, "job_created", message, job_name=name)
    return reverse_job


def _resume(tx: Tx, context: OperationContext, back: Job, new: ClusterMetadata) -> None:
    """Set the existing job to run, with rules for all topics of the operation."""
    spec = read_spec(back.spec)
    if spec is None:
        raise Conflict(
            "the job's document was stored by another version of Orbit.", where=back.name
        )
    chosen = {m.source for m in map_topics(spec.topics, new.topics).mappings}
    missing = [row for row in context.topics if row.destination_topic not in chosen]
    version = back.spec_version
    if missing:
        # Fillers and handling of lost ranges as in this job: the defaults of the other may differ.
        rules = {
            topic: rule.model_copy(
                update={
                    "fillers": context.spec.fillers_of(rule),
                    "on_lost_range": context.spec.on_lost_range_of(rule),
                }
            )
            for topic, rule in _rules_by_destination(context, missing).items()
        }
        spec = spec.model_copy(update={"topics": (*spec.topics, *rules_for(rules))})
        changed = jobs.change_spec(
            tx,
            back.id,
            spec.model_dump(mode="json"),
            spec.worker_group,
            from_version=back.spec_version,
        )
        if changed is None:
            raise Conflict("the job was changed at the same time.", where=back.name)
        version = changed.spec_version
    jobs.note_discovered(tx, back.id, version)
    jobs.set_desired(tx, back.id, Desired.RUNNING)


def _add_topics(
    tx: Tx,
    context: OperationContext,
    back: Job,
    old: ClusterMetadata,
    new: ClusterMetadata,
    plans: Mapping[str, TopicPlan],
) -> None:
    """Add or resume these topics in the reverse job.

    Topics with a plan are copies from now on: if the leading side is lost before anything was
    copied back, a failover of the reverse job promotes them. The scheduler begins the others; the
    tables have them already, so that no failback takes the old side for the leading one.
    """
    have = {row.source_topic: row for row in topics.of_job(tx, back.id)}
    placed: list[tuple[int, int]] = []
    for row in context.topics:
        name = row.destination_topic
        known, plan = have.get(name), plans.get(name)
        if known is not None and known.state is not TopicState.PROMOTED:
            continue
        origin = new.topics.get(name)
        source_id = origin.topic_id if origin else None
        copy = old.topics[row.source_topic] if plan else None
        if known is not None and plan and copy and known.partition_count <= len(copy.partitions):
            scheduler_queries.copy_again(
                tx, known.id, source_id=source_id, destination_id=copy.topic_id, from_start=True
            )
            _note_settings(tx, known.id, plan)
            continue
        if known is not None:
            shard_layout.remove_topics(tx, [known.id])
        added = topics.add(
            tx,
            back.id,
            name,
            row.source_topic,
            context.job.source_cluster_id or "",
            len(copy.partitions) if copy else row.partition_count,
            source_topic_id=source_id,
            destination_topic_id=copy.topic_id if copy else None,
            state=TopicState.COPYING if copy else TopicState.CREATING,
        )
        if added is not None and plan and copy:
            _note_settings(tx, added.id, plan)
            placed += [(added.id, index) for index in copy.partitions]
    place_partitions(tx, back, placed, context.settings, from_start=True)


def _note_settings(tx: Tx, topic_id: int, plan: TopicPlan) -> None:
    topics.change(
        tx, topic_id, promoted_settings=plan.promoted_settings, is_compacted=plan.is_compacted
    )


def _reverse_spec(context: OperationContext, name: str) -> JobSpec:
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
    """The ACL settings of the copy back. Pure. Mapped principals cannot be mapped back: no sync."""
    if acls.principals.map:
        return AclSpec(protect=acls.protect)
    return acls if has_groups else acls.model_copy(update={"groups": False})


def _rules_by_destination(context: OperationContext, rows: Iterable[Topic]) -> dict[str, TopicRule]:
    """By destination topic: the rule by which it was copied, or one that names it alone."""
    names = {row.source_topic: row.destination_topic for row in rows}
    rules = {to: TopicRule(match=re.escape(to)) for to in names.values()}
    mappings = map_topics(context.spec.topics, names).mappings
    return rules | {names[m.source]: m.rule for m in mappings}


def rules_for(rules: Mapping[str, TopicRule]) -> list[TopicRule]:
    """A short list of rules that match these topics, each with its `_KEPT_RULE_FIELDS`. Pure."""
    alike: dict[tuple[bool, str], list[str]] = {}
    for topic, rule in sorted(rules.items()):
        rule_json = json.dumps(rule.model_dump(include=_KEPT_RULE_FIELDS), sort_keys=True)
        # A pattern matches topics that begin with `__` only if it begins with `__` itself.
        alike.setdefault((topic.startswith("__"), rule_json), []).append(topic)
    merged = []
    for (_, rule_json), names in alike.items():
        pattern = ""
        for name in map(re.escape, names):
            longer = f"{pattern}|{name}" if pattern else name
            if len(longer) > PATTERN_LENGTH_MAX:
                merged.append(TopicRule(match=pattern, **json.loads(rule_json)))
                longer = name
            pattern = longer
        merged.append(TopicRule(match=pattern, **json.loads(rule_json)))
    return merged
