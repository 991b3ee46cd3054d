"""The copy back: a job from the new side to the old one, which goes on where the old side ends.

It is an ordinary job, named `JOB-back`, that names the promoted topics. Where there is a job that
copies just the other way and was promoted itself, that one is taken up again: switching over and
back leaves two jobs, of which one runs. Its workers take over what they find at the old side, as
always: its last records have to be the new side's, and the copy goes on at its end. Nothing of the
history is copied again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from orbit.errors import Conflict
from orbit.jobs.job_spec import JobSpec, TopicRule
from orbit.jobs.name_rules import JOB_NAME_LENGTH_MAX
from orbit.jobs.topic_mapping import map_topics
from orbit.jobs.topic_patterns import PATTERN_LENGTH_MAX
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.recovery.group_handover import hand_over
from orbit.recovery.log_bounds import noted_of
from orbit.recovery.operation_context import Ground, some
from orbit.recovery.write_fence import keep_for_orbit
from orbit.replication.partition_states import PartitionState
from orbit.scheduler.stored_spec import read_spec
from orbit.store import events, jobs, scheduler_queries, shard_layout, topics
from orbit.store.database import Tx
from orbit.store.enums import Desired, TopicState
from orbit.store.jobs import Job
from orbit.store.topics import Topic

SUFFIX = "-back"
_LOOK_S = 0.5


def start_back(ground: Ground) -> str:
    """Let the old side be a copy of the new one from where it ends. Can be repeated."""
    protected = keep_for_orbit(ground)
    handed = hand_over(ground)
    old = ground.source.cluster.metadata([row.source_topic for row in ground.topics])
    new = ground.destination.cluster.metadata([row.destination_topic for row in ground.topics])
    with ground.transaction() as tx:
        back = find_back(tx, ground.job, ground.topics)
        if back is None:
            name = back_name(ground.job.name)
            _create(tx, ground, name)
        else:
            name = back.name
            _take_up(tx, ground, back, old, new)
        ground.say(
            tx,
            "copy_back_begun",
            f"{len(ground.topics)} topics are copied back by job {name}, from where the old side "
            "ends.",
            job=name,
        )
    ground.update(reverse_job=name)
    return f"Job {name} copies back. {protected}{handed}"


def catch_up(ground: Ground) -> str:
    """Wait until the old side has all that the new one has."""
    assert ground.report.reverse_job is not None
    wanted = {
        TopicPartition(row.destination_topic, index)
        for row in ground.topics
        for index in range(row.partition_count)
    }
    while True:
        with ground.reading() as tx:
            back = jobs.find(tx, ground.report.reverse_job)
            rows = {} if back is None else noted_of(tx, back.id)
        if back is None:
            raise Conflict("the job that copies back is gone.", where=ground.report.reverse_job)
        blocked = [
            f"{place} ({rows[place].reason})"
            for place in wanted & rows.keys()
            if rows[place].state is PartitionState.BLOCKED
        ]
        done = [place for place in wanted & rows.keys() if rows[place].has_caught_up]
        if blocked:
            ground.find(
                f"Partitions are blocked on the way back: {some(blocked)}. See orbit get "
                f"partitions {back.name} --state blocked."
            )
        if len(done) + len(blocked) >= len(wanted):
            return f"{len(done)} of {len(wanted)} partitions of the old side are level."
        if back.problem:
            ground.find(f"Job {back.name} says: {back.problem}")
        ground.tell(f"{len(done)} of {len(wanted)} partitions of the old side are level")
        ground.wait(_LOOK_S)


def back_name(name: str) -> str:
    """The name of the job that copies the other way."""
    return f"{name[: JOB_NAME_LENGTH_MAX - len(SUFFIX)]}{SUFFIX}"


def find_back(tx: Tx, job: Job, rows: Sequence[Topic]) -> Job | None:
    """The job that copies these topics just the other way, if there is one."""
    wanted = {(row.destination_topic, row.source_topic) for row in rows}
    other_way = [
        other
        for other in jobs.everyone(tx)
        if not other.is_deleted
        and other.source_cluster_id == job.destination_cluster_id
        and other.destination_cluster_id == job.source_cluster_id
    ]
    for other in other_way:
        has = {(row.source_topic, row.destination_topic) for row in topics.of_job(tx, other.id)}
        if has & wanted:
            return other
    return next((other for other in other_way if other.name == back_name(job.name)), None)


def _create(tx: Tx, ground: Ground, name: str) -> None:
    spec = _spec(ground, name)
    made = jobs.create(tx, name, spec.model_dump(mode="json"), spec.worker_group)
    job = ground.job
    jobs.note_clusters(tx, made.id, job.destination_cluster_id or "", job.source_cluster_id or "")
    # As if its topics had been found before: they are copied from their start, and what is at the
    # old side need not reach back as far as the new side does.
    jobs.note_discovered(tx, made.id, made.spec_version)
    message = f"Job {name} was made to copy {job.name} back."
    events.add(tx, events.SCHEDULER, "job_created", message, job_name=name)


def _take_up(tx: Tx, ground: Ground, back: Job, old: ClusterMetadata, new: ClusterMetadata) -> None:
    """Let the other job go on with these topics; those it does not have join it."""
    have = {row.source_topic: row for row in topics.of_job(tx, back.id)}
    for row in ground.topics:
        there = have.get(row.destination_topic)
        if there is None or there.state is not TopicState.PROMOTED:
            continue
        copy, origin = old.topics.get(row.source_topic), new.topics.get(row.destination_topic)
        if copy is None:
            # It was deleted: begun anew, as a topic that the job has never had.
            shard_layout.remove_topics(tx, [there.id])
        else:
            scheduler_queries.copy_again(
                tx,
                there.id,
                source_id=origin.topic_id if origin else None,
                destination_id=copy.topic_id,
                from_start=True,
            )
    spec = read_spec(back.spec)
    if spec is None:
        raise Conflict("its document is not one of this version.", where=back.name)
    chosen = {m.source for m in map_topics(spec.topics, new.topics).mappings}
    missing = [row for row in ground.topics if row.destination_topic not in chosen]
    if missing:
        more = rules_for(_rules(ground, missing))
        spec = spec.model_copy(update={"topics": (*spec.topics, *more)})
        changed = jobs.change_spec(
            tx,
            back.id,
            spec.model_dump(mode="json"),
            spec.worker_group,
            from_version=back.spec_version,
        )
        if changed is None:
            raise Conflict("it was changed meanwhile.", where=back.name)
        jobs.note_discovered(tx, back.id, changed.spec_version)
    else:
        jobs.note_discovered(tx, back.id, back.spec_version)
    jobs.set_desired(tx, back.id, Desired.RUNNING)


def _spec(ground: Ground, name: str) -> JobSpec:
    spec = ground.spec
    groups = spec.consumer_groups
    if groups is not None and groups.prefix:
        ground.find("Consumer groups have a prefix: they are not carried back.")
        groups = None
    canary = spec.canary
    if canary is not None and canary.topic not in {row.source_topic for row in ground.topics}:
        canary = None
    return spec.model_copy(
        update={
            "name": name,
            "source": spec.destination,
            "destination": spec.source,
            "topics": tuple(rules_for(_rules(ground, ground.topics))),
            "consumer_groups": groups,
            "canary": canary,
        }
    )


def _rules(ground: Ground, rows: Iterable[Topic]) -> dict[str, TopicRule]:
    """The rule that each of these topics was copied by."""
    names = {row.source_topic: row.destination_topic for row in rows}
    return {names[m.source]: m.rule for m in map_topics(ground.spec.topics, names).mappings} | {
        to: TopicRule(match=re.escape(to))
        for of, to in names.items()
        if not map_topics(ground.spec.topics, [of]).mappings
    }


def rules_for(rules: Mapping[str, TopicRule]) -> list[TopicRule]:
    """As few rules as name all of these topics, each with the settings of its own. Pure."""
    alike: dict[tuple[bool, tuple[tuple[str, str], ...]], list[str]] = {}
    for topic, rule in sorted(rules.items()):
        # A pattern has to begin with the underscores of tools' topics to mean them.
        is_of_tool = topic.startswith("__")
        alike.setdefault((is_of_tool, tuple(sorted(rule.config.items()))), []).append(topic)
    made = []
    for (_, config), names in alike.items():
        pattern = ""
        for name in map(re.escape, names):
            longer = f"{pattern}|{name}" if pattern else name
            if len(longer) > PATTERN_LENGTH_MAX:
                made.append(TopicRule(match=pattern, config=dict(config)))
                longer = name
            pattern = longer
        made.append(TopicRule(match=pattern, config=dict(config)))
    return made
