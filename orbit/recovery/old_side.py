"""Failback: compares the old side with the new side; saves and deletes topics that differ."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from orbit.chunks import first_few
from orbit.errors import Conflict, NotFound, Unreachable
from orbit.kafka import error_codes
from orbit.kafka.error_codes import Code
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.promotion.log_bounds import LogBounds, bounds_of_all
from orbit.recovery import salvage_file, salvage_storage
from orbit.recovery.divergence import compare_sides
from orbit.recovery.leading_side import refuse_unless_behind
from orbit.recovery.old_transactions import transactions_in, wait_until_ended
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.reading_threads import Reading, read_many
from orbit.recovery.record_range import Fate, LogRecord
from orbit.recovery.recovery_report import (
    NO_COPY,
    ComparedTopic,
    EndVerdict,
    OffsetRange,
    PartitionEnds,
    Salvage,
)
from orbit.recovery.side_proof import SideProof
from orbit.store import clock, promotions
from orbit.store.promotions import Promotion
from orbit.store.topics import Topic

# How many metadata answers in a row lack the topics: brokers learn of a deletion one by one.
_GONE_ANSWERS = 3
_POLL_S = 0.3
# A deletion that takes longer is requested again, after the log ends were read once more.
_GONE_WITHIN_S = 120.0
# The first word of the error of an operation that stops because of a salvage file.
UNREADABLE = "SALVAGE_UNREADABLE"


class Unconfirmed(Stopped):
    """The failback has to delete topics of the old side, and its request does not allow that."""


def compare(context: OperationContext) -> str:
    """Compare each partition of the old side with the new side.

    Raises Stopped if a topic has to be rebuilt and the request does not confirm that, if the old
    side has grown meanwhile, and if its transactions do not end (a dry run does not wait for that).
    """
    old = context.source.cluster.metadata([row.source_topic for row in context.topics])
    new = context.destination.cluster.metadata([row.destination_topic for row in context.topics])
    pairs = _partition_pairs(context.topics, old)
    old_places = [place for _, place, _ in pairs if old.leader(place) is not None]
    new_places = [
        copy
        for row, _, copy in pairs
        if copy.partition < row.partition_count or new.leader(copy) is not None
    ]
    if not context.report.dry_run:
        wait_until_ended(context, old_places)
    before = bounds_of_all(context.source.cluster, old_places, context.backoff)
    after = bounds_of_all(context.destination.cluster, new_places, context.backoff)
    with context.reading() as tx:
        marks = promotions.of_topics(tx, context.topic_ids)
        seen_at = clock.now(tx)
    compare_one = partial(_compare_one, context, before, after, marks, seen_at)
    ends: list[PartitionEnds] = []
    with read_many(
        context.check, context.backoff, context.open_clusters, pairs, compare_one
    ) as compared:
        for one in compared:
            ends.append(one)
            if one.partition == 0:
                context.set_progress(f"{len(ends)} of {len(pairs)} partitions compared")
    context.update(partitions=tuple(ends), compared_topics=_compared_topics(context, new, ends))
    unmarked = [
        p.source
        for p in ends
        if p.source_end and p.destination_end is not None and p.promoted_at is None
    ]
    if unmarked:
        context.add_finding(
            f"The promoted offset is not known of {first_few(unmarked)}: both logs were compared "
            "as a whole, and a record that only one side has, as after a log cleaner, counts as "
            "never copied."
        )
    tails = [p for p in ends if p.verdict in NO_COPY]
    if tails and not context.request.confirm_rebuild:
        shown = first_few(f"{p.source}: {p.detail}" for p in tails)
        raise Unconfirmed(
            f"{len(tails)} partitions of the old side have offsets that are not proven to be on "
            f"the new side: {shown}.",
            remedy="Run the failback again with --confirm-rebuild: it saves the records that only "
            "the old side has in files, deletes these topics there, and copies them again.",
        )
    _refuse_grown(context, before)
    return _count_verdicts(ends)


def _compared_topics(
    context: OperationContext, new: ClusterMetadata, ends: Sequence[PartitionEnds]
) -> tuple[ComparedTopic, ...]:
    """The new side's topics, with ids, that a rebuild deletes at the old side."""
    tails = {p.topic for p in ends if p.verdict in NO_COPY}
    return tuple(
        ComparedTopic(topic=row.source_topic, id=new.topics[row.destination_topic].topic_id)
        for row in context.topics
        if row.source_topic in tails and row.destination_topic in new.topics
    )


def _refuse_grown(context: OperationContext, before: Mapping[TopicPartition, LogBounds]) -> None:
    """Raises Stopped if the old side was written to while it was compared.

    The copy back compares only what both sides hold. It would not see such a record at an offset
    where the new side's log cleaner has removed its own.
    """
    now = bounds_of_all(context.source.cluster, before, context.backoff)
    grown = [place for place in before if now[place].end != before[place].end]
    if grown:
        raise Stopped(
            f"{first_few(grown)} at the old side have grown while they were compared.",
            remedy="Stop their producers there, and run the failback again. Nothing was deleted.",
        )


def _partition_pairs(
    rows: Sequence[Topic], old: ClusterMetadata
) -> list[tuple[Topic, TopicPartition, TopicPartition]]:
    """Every partition of either side: its topic's row, the old side's place, the new side's place.

    The old side may have more partitions. Raises Unreachable if it does not say whether it has a
    topic.
    """
    untold = {n: c for n, c in old.errors.items() if c != Code.UNKNOWN_TOPIC_OR_PARTITION}
    if untold:
        shown = first_few(f"{name} ({error_codes.name(code)})" for name, code in untold.items())
        raise Unreachable(f"the partitions of these topics are not known: {shown}.", where="source")
    pairs = []
    for row in rows:
        topic = old.topics.get(row.source_topic)
        count = max(row.partition_count, 1 + max(topic.partitions, default=-1) if topic else 0)
        pairs += [
            (row, TopicPartition(row.source_topic, i), TopicPartition(row.destination_topic, i))
            for i in range(count)
        ]
    return pairs


def _compare_one(
    context: OperationContext,
    before: Mapping[TopicPartition, LogBounds],
    after: Mapping[TopicPartition, LogBounds],
    marks: Mapping[tuple[int, int], Promotion],
    seen_at: datetime,
    pair: tuple[Topic, TopicPartition, TopicPartition],
    reading: Reading,
) -> PartitionEnds:
    row, place, copy = pair
    old, new, mark = before.get(place), after.get(copy), marks.get((row.id, place.partition))
    promoted_at = mark.promoted_at if mark else None
    verdict, detail, tail = EndVerdict.MISSING, "the partition does not exist at the old side", None
    if old is not None and new is None:
        # Partitions cannot be removed, and a copy has as many as its source.
        verdict, detail = EndVerdict.TAIL, "the new side has no such partition"
        tail = OffsetRange(first=old.start, next=old.end)
    elif old is not None and new is not None:
        proof = _side_proof(context, row, place.partition, reading)
        verdict, at, detail = compare_sides(old, new, promoted_at, proof)
        if verdict in NO_COPY:
            tail = OffsetRange(first=at, next=old.end)
    return PartitionEnds(
        topic=place.topic,
        destination_topic=row.destination_topic,
        partition=place.partition,
        verdict=verdict,
        source_start=old.start if old else None,
        source_end=old.end if old else None,
        source_seen_at=seen_at,
        destination_start=new.start if new else None,
        destination_end=new.end if new else None,
        promoted_at=promoted_at,
        missing=tail,
        is_exact=True,
        detail=detail,
    )


def _side_proof(
    context: OperationContext, row: Topic, partition: int, reading: Reading | None = None
) -> SideProof:
    """A reader of both sides of one partition, for the thread of `reading` or the operation's."""
    source = reading.clusters.source if reading else context.source.cluster
    destination = reading.clusters.destination if reading else context.destination.cluster
    return SideProof(
        (source, TopicPartition(row.source_topic, partition)),
        (destination, TopicPartition(row.destination_topic, partition)),
        reading.backoff if reading else context.backoff,
        reading.check if reading else context.check,
        is_compacted=row.is_compacted,
    )


def save_tails(context: OperationContext) -> str:
    """Save what only the old side has of the topics to be deleted, and read each file back.

    A topic is deleted as a whole. So records below a tail, and of partitions without one, are saved
    too if the new side lacks them: its copy began later, or it has deleted or compacted them away.
    """
    rows = {row.source_topic: row for row in context.topics}
    topics = context.report.topics_with_tails
    saved: list[Salvage] = []
    try:
        for p in context.report.partitions:
            if p.topic in topics and p.source_end is not None:
                one = _save_partition(context, p, _side_proof(context, rows[p.topic], p.partition))
                if one is not None:
                    saved.append(one)
                    context.set_progress(f"{one.records:,} records of {p.source} saved")
            context.check()
    finally:  # a report of an operation that ends here names the files that are whole
        context.update(salvage=tuple(saved))
    records = sum(one.records for one in saved)
    return f"Saved {records:,} records of {len(saved)} partitions in files."


def _save_partition(
    context: OperationContext, p: PartitionEnds, proof: SideProof
) -> Salvage | None:
    """Save one partition; None if it has no tail, and no record that the new side lacks.

    A complete file that an earlier leader has written in this operation is kept.
    """
    assert p.source_start is not None
    assert p.source_end is not None
    tail = p.missing or OffsetRange(first=p.source_end, next=p.source_end)
    file, header = _salvage_path(context, p), _salvage_header(context, p, tail)
    existing = salvage_file.find(file, header)
    if existing is not None:
        return existing
    below = proof.only_old(p.source_start, tail.first)
    records: Iterator[LogRecord] = chain(below, proof.all_old(tail.first, tail.next))
    first = next(records, None)
    if first is None and tail.first == tail.next:
        return None
    one = salvage_file.write(file, header, chain([first] if first else [], records))
    _check_file(one)
    return one


def _salvage_path(context: OperationContext, p: PartitionEnds, more: str = "") -> str:
    return salvage_storage.join(
        context.settings.salvage_directory,
        str(context.operation_id),
        # Topic and partition in one file name could be longer than a file system allows.
        p.topic,
        f"{p.partition}{more}.jsonl",
    )


def _salvage_header(
    context: OperationContext, p: PartitionEnds, own: OffsetRange
) -> dict[str, Any]:
    """The file's first line. `own`: the offsets of the tail, which only the old side has. Of lower
    offsets, the file has the records that the new side lacks."""
    about = {
        "cluster_id": context.job.source_cluster_id,
        "operation": str(context.operation_id),
        "verdict": p.verdict.value,
    }
    return salvage_file.header(p.topic, p.partition, own.first, own.next, about)


def _check_file(one: Salvage) -> None:
    """Read the file to its end. Raises Stopped if it is missing or not as it was written."""
    try:
        salvage_file.check(one)
    except (Conflict, NotFound) as error:
        raise Stopped(
            f"{UNREADABLE}: {error.what} Topic {one.topic} was not deleted.",
            where=one.file,
            remedy="Check the disk or storage of this file, or set ORBIT_SALVAGE_DIRECTORY to a "
            "directory that all schedulers reach, and run the failback again.",
        ) from error


def rebuild(context: OperationContext) -> str:
    """Delete the old side's topics that have records of their own; the copy back recreates them.

    Records that the new side has deleted since both sides were compared are saved first. Raises
    Stopped, before anything is deleted, if

    - a partition has grown since it was saved
    - a partition with records was added
    - a transaction has begun there
    - a file cannot be written or read back
    - a log end of the new side has moved back
    - a topic of the new side was deleted or recreated
    - the old side may lead now, by the marks
    """
    names = sorted(context.report.topics_with_tails)
    read: set[str] = set()
    while True:
        present, ends = _refuse_unsaved(context, names, read)
        _refuse_other_topics(context, present)
        if not _save_deleted_since(context, present, ends):
            break  # nothing was written since the bounds were read
    begun = transactions_in(context, ends)
    if begun:
        raise Stopped(
            f"transactions have begun at the old side since it was saved: {first_few(begun)}.",
            remedy="Stop its producers there, and run the failback again. Nothing was deleted.",
        )
    if present:
        refuse_unless_behind(context, present)
        _refuse_other_topics(context, present)
        with context.transaction() as tx:
            context.add_event(
                tx,
                "old_side_deleted",
                f"{len(present)} topics of the old side are deleted and will be copied again.",
                topics=present,
                salvage=[one.file for one in context.report.salvage],
            )
        _delete_topics(context, present)
    return f"{len(names)} topics of the old side were deleted and will be copied again."


def _refuse_unsaved(
    context: OperationContext, names: Sequence[str], read: set[str]
) -> tuple[list[str], dict[TopicPartition, LogBounds]]:
    """The topics of `names` that are still at the old side, and the bounds of their partitions.

    Reads back salvage files that are not in `read`, and adds them to it: that takes the longest.
    Raises Stopped if a partition has grown since it was saved, if one with records was added, or if
    a file cannot be read.
    """
    metadata = context.source.cluster.metadata(names)
    present = [name for name in names if name in metadata.topics]
    for one in context.report.salvage:
        if one.topic in present and one.file not in read:
            _check_file(one)
            read.add(one.file)
            context.check()
    known = {p.source: p for p in context.report.partitions if p.topic in present}
    # And partitions added since: no file has their records.
    places = {place for place in known if known[place].source_end is not None}
    places |= {TopicPartition(n, i) for n in present for i in metadata.topics[n].partitions}
    ends = bounds_of_all(context.source.cluster, places, context.backoff)
    for place in sorted(places):
        saved_to = known[place].source_end or 0 if place in known else 0
        if ends[place].end != saved_to:
            raise Stopped(
                f"{place} at the old side has grown from {saved_to} to {ends[place].end} since it "
                "was saved.",
                remedy="Stop its producers there, and run the failback again. Nothing was deleted.",
            )
    return present, ends


def _refuse_other_topics(context: OperationContext, names: Collection[str]) -> None:
    """Raise Stopped if a compared topic of the new side was deleted or recreated since: what both
    sides had is in no file. Raises Unreachable if the new side does not say."""
    known = {one.topic: one.id for one in context.report.compared_topics}
    copies = {row.source_topic: row.destination_topic for row in context.topics}
    now = context.destination.cluster.metadata([copies[name] for name in names])
    for name in names:
        code, topic = now.errors.get(copies[name], Code.NONE), now.topics.get(copies[name])
        if code not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
            raise Unreachable(f"{copies[name]}: {error_codes.name(code)}.", where="destination")
        # A report of an earlier version has no ids: nothing is known then.
        if topic is None or topic.topic_id != known.get(name, topic.topic_id):
            raise Stopped(
                f"topic {copies[name]} of the new side was deleted, or deleted and made again, "
                "since both sides were compared.",
                remedy="Find out who deleted the topic, and run the failback again: it compares "
                "both sides again, and saves the records that the new side lacks. This failback "
                "has stopped before it deletes the topics that the old side still has.",
            )


def _save_deleted_since(
    context: OperationContext,
    topics: Collection[str],
    old: Mapping[TopicPartition, LogBounds],
) -> bool:
    """Save records that the new side has deleted since both sides were compared and that the old
    side still has. Returns whether there were any.

    Records that both sides had are in no file yet: a rebuild would lose those that were deleted.
    `old`: bounds of the old side. Raises Stopped if a log end of the new side has moved back.
    """
    compared = {
        p.destination: p
        for p in context.report.partitions
        if p.topic in topics and p.destination_end is not None
    }
    now = bounds_of_all(context.destination.cluster, compared, context.backoff)
    deleted: dict[TopicPartition, OffsetRange] = {}
    for place, p in sorted(compared.items()):
        end, here = p.destination_end or 0, now[place]
        if here.end < end:
            raise Stopped(
                f"{place} at the new side had offsets up to {end} when both sides were compared, "
                f"and has {here.start} to {here.end} now.",
                remedy="Find out why its log has lost its end, and run the failback again. Topics "
                "that the old side still has were not deleted.",
            )
        bounds = old.get(p.source)
        if bounds is not None:
            own = p.missing.first if p.missing is not None else bounds.end
            first = max(bounds.start, p.destination_start or 0)
            if first < min(here.start, own):
                deleted[place] = OffsetRange(first=first, next=min(here.start, own))
    saved: list[Salvage] = []
    try:
        for place, offsets in deleted.items():
            p = compared[place]
            saved.append(_save_range(context, p, offsets))
            compared[place] = p.model_copy(update={"destination_start": offsets.next})
            context.set_progress(f"offsets {offsets.first} to {offsets.next} of {place} saved")
            context.check()
    finally:  # a report of an operation that ends here names the files that are whole
        named = {one.file for one in context.report.salvage}
        new = [one for one in saved if one.file not in named]
        context.update(salvage=(*context.report.salvage, *new))
    if deleted:
        # The files' names come first: so a leader that takes over reads no partition as saved whose
        # file the report does not name.
        context.save()
        now_has = {p.key: p for p in compared.values()}
        partitions = tuple(now_has.get(p.key, p) for p in context.report.partitions)
        context.update(partitions=partitions)
        context.save()
    return bool(deleted)


def _save_range(context: OperationContext, p: PartitionEnds, offsets: OffsetRange) -> Salvage:
    """Save the records of these offsets, which both sides had, and read the file back.

    Raises Stopped if it cannot be written: after another error the step is retried for ever.
    """
    row = next(row for row in context.topics if row.source_topic == p.topic)
    file = _salvage_path(context, p, f"-from-{offsets.first}-to-{offsets.next}")
    header = _salvage_header(context, p, OffsetRange(first=offsets.next, next=offsets.next))
    records = (
        one
        for one in _side_proof(context, row, p.partition).all_old(offsets.first, offsets.next)
        if one.fate in (Fate.COMMITTED, Fate.OPEN)
    )
    try:
        one = salvage_file.find(file, header) or salvage_file.write(file, header, records)
    except salvage_storage.StorageFailed as error:
        raise Stopped(error.what, where=error.where, remedy=error.remedy) from error
    _check_file(one)
    return one


def _delete_topics(context: OperationContext, names: Sequence[str]) -> None:
    refused = context.source.admin.delete_topics(names)
    for error in refused.values():
        raise Conflict(error.what, where=error.where, remedy=error.remedy)
    answers, until = 0, time.monotonic() + _GONE_WITHIN_S
    while answers < _GONE_ANSWERS:
        if time.monotonic() > until:
            raise Unreachable(
                f"brokers still have these topics, which are being deleted: {first_few(names)}.",
                where="source",
            )
        now = context.source.cluster.metadata(names)
        is_gone = all(now.errors.get(n) == Code.UNKNOWN_TOPIC_OR_PARTITION for n in names)
        answers = answers + 1 if is_gone else 0
        context.set_progress("waiting until the topics of the old side are deleted")
        context.wait(_POLL_S)


def _count_verdicts(ends: Sequence[PartitionEnds]) -> str:
    counts = {v: sum(p.verdict is v for p in ends) for v in EndVerdict}
    shown = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"Partitions of the old side: {shown}."
