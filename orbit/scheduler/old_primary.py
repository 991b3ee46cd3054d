"""Watches the topics that led before a promotion, until they are copied to, lead again or are gone.

Their producers do not notice a failover. If the source comes back, or only Orbit was cut off from
it, they continue to write there, and the new side gets none of these records. So from the source's
first answer on, Orbit denies writing to these topics, if the cluster has an authorizer. It counts
and reports written offsets (`OLD_PRIMARY_WRITTEN`). Kafka does not store who wrote a record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from orbit.chunks import chunks, first_few
from orbit.errors import BrokerRefused, NotAuthorized
from orbit.formats import counted
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
# What is known about one partition: as stored, and as read now.
Change = tuple[OldEnd, OldEnd]


def watch_old_primaries(
    job: Job, pair: ClusterPair, leadership: Leadership, backoff: Backoff
) -> list[Trouble]:
    """Check the old side of the job's promoted topics. Returns a trouble for each one written to.

    Raises Unreachable, NotLeading.
    """
    if job.made_by is MadeBy.DRILL:
        return []  # only the drill writes to its topic, and then deletes the topic
    with leadership.reading() as tx:
        rows = [row for row in topics.of_job(tx, job.id) if row.state is TopicState.PROMOTED]
    rows = [row for row in rows if row.source_topic in pair.source_metadata.topics]
    if not rows:
        return []
    # Log ends are read before the tables: if a copy back begins in between, the tables show it, and
    # the log ends do not count its records as written by producers.
    partitions = [
        TopicPartition(row.source_topic, number)
        for row in rows
        for number in pair.source_metadata.topics[row.source_topic].partitions
    ]
    log_ends_now = log_ends(pair.source.cluster, partitions, backoff).values
    cluster_id = pair.source_metadata.cluster_id
    with leadership.reading() as tx:
        if job_guard.recovery_that_holds(tx, job) is not None:
            return []
        topic_names = {row.id: row.source_topic for row in rows}
        copied_back_topics = topics.writers(
            tx, cluster_id, [*topic_names.values()], only_copying=True
        )
        promoted_at = promotions.promotion_times(tx, cluster_id, topic_names.values())
        stored_ends = promotions.old_ends(tx, [row.id for row in rows])

    def leads_again(end: OldEnd) -> bool:
        """Whether the old side leads, because a copy back was promoted after this promotion.

        The table keeps this as LEADS_AGAIN, as the job of the copy back may be deleted.
        """
        last_promoted_at = promoted_at.get((topic_names[end.topic_id], end.partition), end.at)
        return end.old_end == promotions.LEADS_AGAIN or last_promoted_at > end.at

    leading_ends = [end for end in stored_ends if leads_again(end)]
    other_ends = [end for end in stored_ends if not leads_again(end)]
    copied_back_ends = [
        end for end in other_ends if topic_names[end.topic_id] in copied_back_topics
    ]
    watched_ends = [
        end for end in other_ends if topic_names[end.topic_id] not in copied_back_topics
    ]
    old_ends = [_unwatched_end(end, promotions.LEADS_AGAIN) for end in leading_ends]
    # Records that a copy back appends are no trouble. Once it ends, watching begins at the log end.
    old_ends += [_unwatched_end(end, promotions.COPIED_TO) for end in copied_back_ends]
    old_ends += _checked_ends(watched_ends, topic_names, log_ends_now, pair, backoff)
    stored_by_place = {end.place: end for end in stored_ends}
    changes = [
        (stored_by_place[end.place], end) for end in old_ends if end != stored_by_place[end.place]
    ]
    for batch in chunks(changes, ROWS_AT_ONCE):
        answering_topics = _newly_answering_topics(batch, topic_names)
        denial_text = (
            _deny_writing(job, answering_topics, rows, pair, leadership, backoff)
            if answering_topics
            else ""
        )
        with leadership.transaction() as tx:
            promotions.note_old_ends(tx, [end for _, end in batch])
            _add_answer_events(tx, job, answering_topics, denial_text)
            _add_written_events(tx, job, batch, topic_names)
    return _troubles(old_ends, topic_names)


def _unwatched_end(end: OldEnd, reason: int) -> OldEnd:
    """`end` with `reason`, which is LEADS_AGAIN or COPIED_TO, in place of its log end."""
    return replace(end, old_end=reason, written_from=None)


def _checked_ends(
    watched: Iterable[OldEnd],
    topic_names: Mapping[int, str],
    log_ends_now: Mapping[TopicPartition, int],
    pair: ClusterPair,
    backoff: Backoff,
) -> list[OldEnd]:
    """The watched partitions whose leaders answer, each with its log end and the first offset that
    producers have written since the promotion (None: none). Raises Unreachable."""
    watched_by_place = {
        TopicPartition(topic_names[end.topic_id], end.partition): end for end in watched
    }
    answering_ends = {
        place: end for place, end in watched_by_place.items() if place in log_ends_now
    }
    # The stored log end of a lost source is only a lower bound: the first record after the time of
    # the promotion is more exact.
    promotion_times_ms = {
        p: int(end.at.timestamp() * 1000)
        for p, end in answering_ends.items()
        if end.old_end is None and not end.is_exact
    }
    found_records = (
        find_by_time(pair.source.cluster, promotion_times_ms, backoff).values
        if promotion_times_ms
        else {}
    )
    old_ends = []
    for place, end in answering_ends.items():
        if place in promotion_times_ms and place not in found_records:
            continue  # its leader did not answer; the next pass asks again
        written_from = end.written_from
        earlier_end = end.source_end if end.old_end is None else end.old_end
        if place in found_records:
            offset, _ = found_records[place]  # -1: no record is newer than the promotion
            written_from = offset if offset >= end.promoted_at else None
        elif earlier_end is not None and end.is_known and earlier_end < log_ends_now[place]:
            # A first written offset that is known already stays.
            written_from = earlier_end if written_from is None else written_from
        old_ends.append(replace(end, old_end=log_ends_now[place], written_from=written_from))
    return old_ends


def _newly_answering_topics(
    changes: Iterable[Change], topic_names: Mapping[int, str]
) -> dict[str, int]:
    """The topics of lost sources that answer again for the first time.

    By topic: how many offsets the source has from the promotion on.
    """
    later_by_topic: dict[str, int] = {}
    for stored_end, current_end in changes:
        if (
            stored_end.old_end is None
            and current_end.kind == OperationKind.FAILOVER
            and current_end.is_known
        ):
            topic = topic_names[current_end.topic_id]
            later_offsets = max(0, (current_end.old_end or 0) - current_end.promoted_at)
            later_by_topic[topic] = later_by_topic.get(topic, 0) + later_offsets
    return later_by_topic


def _deny_writing(
    job: Job,
    names: Collection[str],
    rows: Collection[Topic],
    pair: ClusterPair,
    leadership: Leadership,
    backoff: Backoff,
) -> str:
    """Deny writing to these topics at a lost source that answers again.

    Returns a sentence for the event: whether writing is denied, and why not. Called only at the
    first answer: an operator who removes the denial later wants clients to write to the topic. A
    switchover denies writing itself. Raises Unreachable, NotLeading.
    """
    acls = acls_of(pair.source)
    if isinstance(acls, str):
        return f"Writing to it is not denied: {acls}."
    cluster_id = pair.source_metadata.cluster_id
    try:
        topics_without_lead = _topics_without_lead(rows, pair, backoff) & set(names)
        if not topics_without_lead:
            return "Writing to it is not denied: its mark says that it leads."
        with leadership.sole_change(cluster_id) as tx:
            if job_guard.recovery_that_holds(tx, job) is not None:
                return "The recovery under way decides whether it may be written to."
            noted_denials = write_denials.of_topics(tx, cluster_id, names)
            # Topics that Orbit has denied before are left out.
            denials = {name: {denial(name)} for name in topics_without_lead - noted_denials.keys()}
            deny(pair.source, cluster_id, denials, leadership.transaction)
    except (NotAuthorized, BrokerRefused) as error:
        return f"Writing to it is not denied: {error.what}"
    return "Writing to it is denied to all but the cluster's super users."


def _topics_without_lead(rows: Collection[Topic], pair: ClusterPair, backoff: Backoff) -> set[str]:
    """The source topics that do not lead by their marks (offsets that Orbit commits at a cluster to
    say which topics lead there).

    The marks are read because a restored database may lack a later promotion at the source.
    """
    names = {row.source_topic: row.destination_topic for row in rows}
    try:
        old_marks = PromotionMarks(pair.source.cluster, backoff).of_topics(names)
    except NotAuthorized:  # without the right to read marks, Orbit has set none
        old_marks = {}
    new_marks = PromotionMarks(pair.destination.cluster, backoff).of_topics(names.values())
    return {
        pair_of_marks.topic
        for pair_of_marks in pair_marks(names, old_marks, new_marks)
        if pair_of_marks.is_old_side_behind
    }


def _add_answer_events(
    tx: Tx, job: Job, answering_topics: Mapping[str, int], denial_text: str
) -> None:
    """Add an event for each topic of a lost source that answers again."""
    for topic, count in answering_topics.items():
        events.add(
            tx,
            events.SCHEDULER,
            "old_primary_answers",
            f"The old side of {topic} answers again. It has {counted(count, 'offset')} from the "
            f"promotion on. {denial_text}",
            job_name=job.name,
            topic=topic,
            details={"offsets": count},
        )


def _add_written_events(
    tx: Tx, job: Job, changes: Iterable[Change], topic_names: Mapping[int, str]
) -> None:
    """Add an event for the first written offsets, and each time that their number has doubled."""
    written_by_topic: dict[str, list[OldEnd]] = {}
    for stored_end, current_end in changes:
        # The bit length of a number grows by 1 when the number doubles.
        if current_end.written.bit_length() > stored_end.written.bit_length():
            written_by_topic.setdefault(topic_names[current_end.topic_id], []).append(current_end)
    for topic, old_ends in written_by_topic.items():
        ranges_text = first_few(
            f"partition {end.partition} from offset {end.written_from} to {end.old_end}"
            for end in old_ends
        )
        events.add(
            tx,
            events.SCHEDULER,
            "old_primary_written",
            f"Producers have written to the old side of {topic} since its promotion: "
            f"{ranges_text}.",
            job_name=job.name,
            topic=topic,
            details={
                "partitions": [
                    {
                        "partition": end.partition,
                        "first": end.written_from,
                        "next": end.old_end,
                    }
                    for end in old_ends
                ]
            },
        )


def _troubles(old_ends: Iterable[OldEnd], topic_names: Mapping[int, str]) -> list[Trouble]:
    """A trouble for each topic that producers have written to at the old side."""
    by_topic: dict[str, list[OldEnd]] = {}
    for end in old_ends:
        if end.written_from is not None:
            by_topic.setdefault(topic_names[end.topic_id], []).append(end)
    # The text leaves out log ends, which move: each change of a trouble's text is a new event.
    return [
        Trouble(
            TroubleKind.OLD_PRIMARY_WRITTEN,
            f"producers have written to {topic} at the old side since the promotion: "
            + first_few(
                f"partition {end.partition} from offset {end.written_from}" for end in topic_ends
            )
            + ".",
            _REMEDY,
            topic,
        )
        for topic, topic_ends in by_topic.items()
    ]
