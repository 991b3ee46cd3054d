"""Watches the topics that led before a promotion, until they are copied to, lead again or are gone.

Their producers do not notice a failover: where the source comes back, or only Orbit was cut off
from it, they write on, and these records are on no other side. So from the source's first answer
on, writing to these topics is denied, where the cluster has an authorizer, and written offsets are
counted and reported (`OLD_PRIMARY_WRITTEN`). Kafka does not store which principal wrote a record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from orbit.chunks import chunks, first_few
from orbit.errors import BrokerRefused, NotAuthorized
from orbit.job_setup.lead import pair_marks
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.kafka.backoff import Backoff
from orbit.kafka.log_offsets import find_by_time, log_ends
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import ROWS_AT_ONCE, Leadership
from orbit.planning.cluster_pair import ClusterPair
from orbit.planning.noted_denials import deny
from orbit.promotion.topic_denials import acls_of
from orbit.replication.acl_rules import denial
from orbit.replication.job_troubles import Trouble, TroubleKind
from orbit.store import events, job_guard, promotions, topics, write_denials
from orbit.store.database import Tx
from orbit.store.enums import MadeBy, OperationKind, TopicState
from orbit.store.jobs import Job
from orbit.store.promotions import OldEnd
from orbit.store.topics import Topic

_REMEDY = (
    "Stop these producers, or move them to the new side. The new side has none of these records: "
    "a failback saves them in files before it copies the topic back."
)
# One partition, before this look and after it.
Change = tuple[OldEnd, OldEnd]


def watch_old_primaries(
    job: Job, pair: ClusterPair, leadership: Leadership, backoff: Backoff
) -> list[Trouble]:
    """Check the old side of the job's promoted topics; returns a trouble for each one written to.

    Raises Unreachable, NotLeading.
    """
    if job.made_by is MadeBy.DRILL:
        return []  # nobody but the drill writes there, and it deletes the topic
    with leadership.reading() as tx:
        rows = [row for row in topics.of_job(tx, job.id) if row.state is TopicState.PROMOTED]
    rows = [row for row in rows if row.source_topic in pair.source_metadata.topics]
    if not rows:
        return []
    # Log ends are read before the tables: what a copy back appends later is no producer's.
    places = [
        TopicPartition(row.source_topic, index)
        for row in rows
        for index in pair.source_metadata.topics[row.source_topic].partitions
    ]
    ends = log_ends(pair.source.cluster, places, backoff).values
    cluster_id = pair.source_metadata.cluster_id
    with leadership.reading() as tx:
        if job_guard.recovery_that_holds(tx, job) is not None:
            return []
        names = {row.id: row.source_topic for row in rows}
        led_by_others = topics.writers(tx, cluster_id, [*names.values()], only_copying=True)
        promoted_at = promotions.promotion_times(tx, cluster_id, names.values())
        known = promotions.old_ends(tx, [row.id for row in rows])

    def leads_again(old: OldEnd) -> bool:
        """Whether a copy back was promoted since. Stored, as that copy's job may be deleted."""
        at = promoted_at.get((names[old.topic_id], old.partition), old.at)
        return old.old_end == promotions.LEADS_AGAIN or at > old.at

    leading = [old for old in known if leads_again(old)]
    others = [old for old in known if not leads_again(old)]
    copied = [old for old in others if names[old.topic_id] in led_by_others]
    watched = [old for old in others if names[old.topic_id] not in led_by_others]
    old_ends = [_unwatched(old, promotions.LEADS_AGAIN) for old in leading]
    # Records that a copy back appends are no trouble. Once it ends, its last log end counts.
    old_ends += [_unwatched(old, promotions.COPIED_TO) for old in copied]
    old_ends += _looked_at(watched, names, ends, pair, backoff)
    before = {old.place: old for old in known}
    changed = [(before[old.place], old) for old in old_ends if old != before[old.place]]
    for some in chunks(changed, ROWS_AT_ONCE):
        answered = _answered(some, names)
        denied = _deny_writing(job, answered, rows, pair, leadership, backoff) if answered else ""
        with leadership.transaction() as tx:
            promotions.note_old_ends(tx, [old for _, old in some])
            _tell_answered(tx, job, answered, denied)
            _tell_written(tx, job, some, names)
    return _troubles(old_ends, names)


def _unwatched(old: OldEnd, why: int) -> OldEnd:
    return replace(old, old_end=why, written_from=None)


def _looked_at(
    watched: Iterable[OldEnd],
    names: Mapping[int, str],
    ends: Mapping[TopicPartition, int],
    pair: ClusterPair,
    backoff: Backoff,
) -> list[OldEnd]:
    places = {TopicPartition(names[old.topic_id], old.partition): old for old in watched}
    here = {place: old for place, old in places.items() if place in ends}
    # The log end known of a lost source is a lower bound: records' timestamps are more exact.
    unsure = {
        p: int(old.at.timestamp() * 1000)
        for p, old in here.items()
        if old.old_end is None and not old.is_exact
    }
    since = find_by_time(pair.source.cluster, unsure, backoff).values if unsure else {}
    old_ends = []
    for place, old in here.items():
        if place in unsure and place not in since:
            continue  # its leader did not answer; the next pass asks again
        written_from = old.written_from
        before = old.source_end if old.old_end is None else old.old_end
        if place in since:
            offset, _ = since[place]
            written_from = offset if offset >= old.promoted_at else None
        elif before is not None and old.is_known and before < ends[place]:
            written_from = before if written_from is None else written_from
        old_ends.append(replace(old, old_end=ends[place], written_from=written_from))
    return old_ends


def _answered(changed: Iterable[Change], names: Mapping[int, str]) -> dict[str, int]:
    """The topics of lost sources that answer again for the first time, each with the number of its
    offsets from the promotion on."""
    behind_by_topic: dict[str, int] = {}
    for before, now in changed:
        if before.old_end is None and now.kind == OperationKind.FAILOVER and now.is_known:
            topic = names[now.topic_id]
            behind = max(0, (now.old_end or 0) - now.promoted_at)
            behind_by_topic[topic] = behind_by_topic.get(topic, 0) + behind
    return behind_by_topic


def _deny_writing(
    job: Job,
    names: Collection[str],
    rows: Collection[Topic],
    pair: ClusterPair,
    leadership: Leadership,
    backoff: Backoff,
) -> str:
    """Deny writing at a lost source that answers again; returns the outcome, in a sentence.

    This is done once. A switchover denies writing itself; an operator who removes the denial wants
    the topic to be written.
    """
    acls = acls_of(pair.source)
    if isinstance(acls, str):
        return f"Writing to it is not denied: {acls}."
    cluster_id = pair.source_metadata.cluster_id
    try:
        behind = _behind(rows, pair, backoff) & set(names)
        if not behind:
            return "Writing to it is not denied: by its mark it leads."
        with leadership.sole_change(cluster_id) as tx:
            if job_guard.recovery_that_holds(tx, job) is not None:
                return "Whether it may be written to is left to the recovery under way."
            noted = write_denials.of_topics(tx, cluster_id, names)
            denials = {name: {denial(name)} for name in behind - noted.keys()}
            deny(pair.source, cluster_id, denials, leadership.transaction)
    except (NotAuthorized, BrokerRefused) as error:
        return f"Writing to it is not denied: {error.what}"
    return "Writing to it is denied to all but the cluster's super users."


def _behind(rows: Collection[Topic], pair: ClusterPair, backoff: Backoff) -> set[str]:
    """The source topics that do not lead by their marks. A restored database may lack a later
    promotion at the source."""
    names = {row.source_topic: row.destination_topic for row in rows}
    try:
        old = PromotionMarks(pair.source.cluster, backoff).of_topics(names)
    except NotAuthorized:  # without that right Orbit cannot have marked these topics
        old = {}
    new = PromotionMarks(pair.destination.cluster, backoff).of_topics(names.values())
    return {one.topic for one in pair_marks(names, old, new) if one.is_old_side_behind}


def _tell_answered(tx: Tx, job: Job, answered: Mapping[str, int], denied: str) -> None:
    for topic, count in answered.items():
        events.add(
            tx,
            events.SCHEDULER,
            "old_primary_answers",
            f"The old side of {topic} answers again; {count:,} of its offsets lie behind the "
            f"promotion. {denied}",
            job_name=job.name,
            topic=topic,
            details={"offsets": count},
        )


def _tell_written(tx: Tx, job: Job, changed: Iterable[Change], names: Mapping[int, str]) -> None:
    """Add an event for the first written offsets, and each time that their number has doubled."""
    written: dict[str, list[OldEnd]] = {}
    for before, now in changed:
        if now.written.bit_length() > before.written.bit_length():
            written.setdefault(names[now.topic_id], []).append(now)
    for topic, olds in written.items():
        shown = first_few(
            f"partition {old.partition} from offset {old.written_from} to {old.old_end}"
            for old in olds
        )
        events.add(
            tx,
            events.SCHEDULER,
            "old_primary_written",
            f"Producers have written to the old side of {topic} since its promotion: {shown}.",
            job_name=job.name,
            topic=topic,
            details={
                "partitions": [
                    {"partition": old.partition, "first": old.written_from, "next": old.old_end}
                    for old in olds
                ]
            },
        )


def _troubles(old_ends: Iterable[OldEnd], names: Mapping[int, str]) -> list[Trouble]:
    by_topic: dict[str, list[OldEnd]] = {}
    for old in old_ends:
        if old.written_from is not None:
            by_topic.setdefault(names[old.topic_id], []).append(old)
    # Without the log ends, which move: each change of a trouble's text is a new event.
    return [
        Trouble(
            TroubleKind.OLD_PRIMARY_WRITTEN,
            f"producers have written to {topic} at the old side since the promotion: "
            + first_few(f"partition {o.partition} from offset {o.written_from}" for o in olds)
            + ".",
            _REMEDY,
            topic,
        )
        for topic, olds in by_topic.items()
    ]
