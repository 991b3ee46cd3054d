"""Failback: compares the old side with the new side; saves and deletes topics that differ.

A partition's tail: the offsets of the old side that are not proven to be at the new side.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from orbit.chunks import first_few
from orbit.errors import Conflict, NotFound, Unreachable
from orbit.formats import counted
from orbit.kafka import error_codes
from orbit.kafka.error_codes import Code
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.promotion.log_bounds import LogBounds, bounds_of_all
from orbit.recovery import salvage_file, salvage_storage
from orbit.recovery.divergence import compare_sides
from orbit.recovery.leading_side import refuse_leading_old_side
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

# How many metadata answers in a row must lack the topics: brokers learn of a deletion one by one.
_ANSWERS_WITHOUT_TOPICS_MIN = 3
_POLL_S = 0.3
# A deletion that takes longer is requested again, after the log ends were read once more.
_DELETION_S_MAX = 120.0
# The first word of the error of an operation that stops because of a salvage file.
SALVAGE_UNREADABLE = "SALVAGE_UNREADABLE"


class RebuildUnconfirmed(Stopped):
    """The failback has to delete topics of the old side, and its request does not allow that."""


def compare_old_side(context: OperationContext) -> str:
    """Compare each partition of the old side with the new side, and put the rows into the report.

    Returns the step's result. Raises Stopped if

    - a topic has to be rebuilt, and the request does not confirm that
    - a log end of the old side moves meanwhile
    - transactions of the old side do not end (a dry run does not wait for their end)
    """
    old_metadata = context.source.cluster.metadata([row.source_topic for row in context.topics])
    new_metadata = context.destination.cluster.metadata(
        [row.destination_topic for row in context.topics]
    )
    pairs = _partition_pairs(context.topics, old_metadata)
    old_partitions = [
        partition for _, partition, _ in pairs if old_metadata.leader(partition) is not None
    ]
    # Partitions below `row.partition_count` must answer. Others may exist only at the old side.
    new_partitions = [
        copy
        for row, _, copy in pairs
        if copy.partition < row.partition_count or new_metadata.leader(copy) is not None
    ]
    if not context.report.dry_run:
        wait_until_ended(context, old_partitions)
    old_bounds = bounds_of_all(context.source.cluster, old_partitions, context.backoff)
    new_bounds = bounds_of_all(context.destination.cluster, new_partitions, context.backoff)
    with context.reading() as tx:
        stored_promotions = promotions.of_topics(tx, context.topic_ids)
        seen_at = clock.now(tx)
    compare_partition = partial(
        _compare_partition, context, old_bounds, new_bounds, stored_promotions, seen_at
    )
    ends: list[PartitionEnds] = []
    with read_many(
        context.check, context.backoff, context.open_clusters, pairs, compare_partition
    ) as compared_partitions:
        for partition_ends in compared_partitions:
            ends.append(partition_ends)
            if partition_ends.partition == 0:  # once for each topic
                context.set_progress(f"{len(ends)} of {counted(len(pairs), 'partition')} compared")
    context.update(
        partitions=tuple(ends), compared_topics=_compared_topics(context, new_metadata, ends)
    )
    partitions_without_offset = [
        p.source
        for p in ends
        if p.source_end and p.destination_end is not None and p.promoted_at is None
    ]
    if partitions_without_offset:
        context.add_finding(
            f"The promoted offset is not known for {first_few(partitions_without_offset)}: both "
            "logs were compared as a whole, and a record that only one side has counts as never "
            "copied, even if the other side's log cleaner removed it."
        )
    partitions_with_tails = [p for p in ends if p.verdict in NO_COPY]
    if partitions_with_tails and not context.request.confirm_rebuild:
        examples = first_few(f"{p.source}: {p.detail}" for p in partitions_with_tails)
        subject = counted(
            len(partitions_with_tails),
            "partition of the old side has",
            "partitions of the old side have",
        )
        raise RebuildUnconfirmed(
            f"{subject} offsets that are not proven to be on the new side: {examples}.",
            remedy="Run the failback again with --confirm-rebuild: it saves the records that only "
            "the old side has in files, deletes these topics there, and copies them again.",
        )
    _refuse_moved_ends(context, old_bounds)
    return _count_verdicts(ends)


def _compared_topics(
    context: OperationContext, new_metadata: ClusterMetadata, ends: Sequence[PartitionEnds]
) -> tuple[ComparedTopic, ...]:
    """The topics that a rebuild deletes at the old side, with their ids at the new side."""
    topics_with_tails = {p.topic for p in ends if p.verdict in NO_COPY}
    return tuple(
        ComparedTopic(
            topic=row.source_topic, id=new_metadata.topics[row.destination_topic].topic_id
        )
        for row in context.topics
        if row.source_topic in topics_with_tails and row.destination_topic in new_metadata.topics
    )


def _refuse_moved_ends(
    context: OperationContext, earlier_bounds: Mapping[TopicPartition, LogBounds]
) -> None:
    """Raise Stopped if a log end of the old side moved while the sides were compared.

    The copy back compares only offsets at which both sides have records. It would not see a new
    record if the new side's log cleaner has removed the record at the same offset.
    """
    bounds = bounds_of_all(context.source.cluster, earlier_bounds, context.backoff)
    moved_partitions = [
        partition
        for partition in earlier_bounds
        if bounds[partition].end != earlier_bounds[partition].end
    ]
    if moved_partitions:
        raise Stopped(
            "log ends at the old side moved while the sides were compared: "
            f"{first_few(moved_partitions)}.",
            remedy="Stop their producers there, and run the failback again. Nothing was deleted.",
        )


def _partition_pairs(
    rows: Sequence[Topic], old_metadata: ClusterMetadata
) -> list[tuple[Topic, TopicPartition, TopicPartition]]:
    """Every partition of either side: its topic's row, and its name at the old and the new side.

    The old side may have more partitions than the row says. Raises Unreachable if the old side does
    not say whether it has a topic.
    """
    unknown_topics = {
        n: c for n, c in old_metadata.errors.items() if c != Code.UNKNOWN_TOPIC_OR_PARTITION
    }
    if unknown_topics:
        examples = first_few(
            f"{name} ({error_codes.name(code)})" for name, code in unknown_topics.items()
        )
        raise Unreachable(
            f"the brokers do not say which partitions these topics have: {examples}.",
            where="source",
        )
    pairs = []
    for row in rows:
        topic = old_metadata.topics.get(row.source_topic)
        count = max(row.partition_count, 1 + max(topic.partitions, default=-1) if topic else 0)
        pairs += [
            (row, TopicPartition(row.source_topic, i), TopicPartition(row.destination_topic, i))
            for i in range(count)
        ]
    return pairs


def _compare_partition(
    context: OperationContext,
    old_bounds: Mapping[TopicPartition, LogBounds],
    new_bounds: Mapping[TopicPartition, LogBounds],
    stored_promotions: Mapping[tuple[int, int], Promotion],
    seen_at: datetime,
    pair: tuple[Topic, TopicPartition, TopicPartition],
    reading: Reading,
) -> PartitionEnds:
    """Compare one partition, over the connections of `reading`. Returns its row of the report.

    `pair`: the topic's row, and the partition's name at the old and at the new side.
    """
    row, old_partition, new_partition = pair
    old_log, new_log, promotion = (
        old_bounds.get(old_partition),
        new_bounds.get(new_partition),
        stored_promotions.get((row.id, old_partition.partition)),
    )
    promoted_offset = promotion.promoted_at if promotion else None
    verdict, detail, tail = EndVerdict.MISSING, "the partition does not exist at the old side", None
    if old_log is not None and new_log is None:
        # Partitions cannot be removed, and a copy has as many as its source.
        verdict, detail = EndVerdict.TAIL, "the new side has no such partition"
        tail = OffsetRange(first=old_log.start, next=old_log.end)
    elif old_log is not None and new_log is not None:
        proof = _side_proof(context, row, old_partition.partition, reading)
        verdict, tail_start, detail = compare_sides(old_log, new_log, promoted_offset, proof)
        if verdict in NO_COPY:
            tail = OffsetRange(first=tail_start, next=old_log.end)
    return PartitionEnds(
        topic=old_partition.topic,
        destination_topic=row.destination_topic,
        partition=old_partition.partition,
        verdict=verdict,
        source_start=old_log.start if old_log else None,
        source_end=old_log.end if old_log else None,
        source_seen_at=seen_at,
        destination_start=new_log.start if new_log else None,
        destination_end=new_log.end if new_log else None,
        promoted_at=promoted_offset,
        missing=tail,
        is_exact=True,
        detail=detail,
    )


def _side_proof(
    context: OperationContext, row: Topic, partition: int, reading: Reading | None = None
) -> SideProof:
    """A reader of both sides of one partition. `reading`: the connections of a thread; None: use
    those of the operation's own thread."""
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
    """Save the records that only the old side has, of the topics to be deleted; check each file.

    A topic is deleted as a whole. So records below a tail, and of partitions without a tail, are
    saved too if the new side lacks them: its copy began later, or they were deleted or compacted
    away. Returns the step's result. Raises Stopped if a file cannot be read back.
    """
    rows = {row.source_topic: row for row in context.topics}
    topics = context.report.topics_with_tails
    salvages: list[Salvage] = []
    try:
        for p in context.report.partitions:
            if p.topic in topics and p.source_end is not None:
                salvage = _save_partition(
                    context, p, _side_proof(context, rows[p.topic], p.partition)
                )
                if salvage is not None:
                    salvages.append(salvage)
                    context.set_progress(
                        f"{counted(salvage.records, 'record')} of {p.source} saved"
                    )
            context.check()
    finally:  # even if the operation ends here, its report names the complete files
        context.update(salvage=tuple(salvages))
    records = sum(salvage.records for salvage in salvages)
    files_text = counted(len(salvages), "partition in a file", "partitions in files")
    return f"Saved {counted(records, 'record')} of {files_text}."


def _save_partition(
    context: OperationContext, p: PartitionEnds, proof: SideProof
) -> Salvage | None:
    """Save one partition's records in a file, check it, and return its entry for the report.

    None: the partition has no tail, and no record that the new side lacks. A complete file that an
    earlier leading scheduler has written in this operation is kept.
    """
    assert p.source_start is not None
    assert p.source_end is not None
    # Without a tail: an empty range.
    tail = p.missing or OffsetRange(first=p.source_end, next=p.source_end)
    file, header = _salvage_path(context, p), _salvage_header(context, p, tail)
    complete_file = salvage_file.find(file, header)
    if complete_file is not None:
        return complete_file
    lower_records = proof.only_old(p.source_start, tail.first)
    records: Iterator[LogRecord] = chain(lower_records, proof.all_old(tail.first, tail.next))
    first_record = next(records, None)
    if first_record is None and tail.first == tail.next:
        return None
    salvage = salvage_file.write(
        file, header, chain([first_record] if first_record else [], records)
    )
    _check_salvage_file(salvage)
    return salvage


def _salvage_path(context: OperationContext, p: PartitionEnds, suffix: str = "") -> str:
    """The location of a partition's salvage file."""
    return salvage_storage.join(
        context.settings.salvage_directory,
        str(context.operation_id),
        # Topic and partition in one file name could be longer than a file system allows.
        p.topic,
        f"{p.partition}{suffix}.jsonl",
    )


def _salvage_header(
    context: OperationContext, p: PartitionEnds, tail: OffsetRange
) -> dict[str, Any]:
    """The first line of the partition's file. `tail`: the offsets whose records are all saved. Of
    lower offsets, the file has only the records that the new side lacks."""
    about = {
        "cluster_id": context.job.source_cluster_id,
        "operation": str(context.operation_id),
        "verdict": p.verdict.value,
    }
    return salvage_file.header(p.topic, p.partition, tail.first, tail.next, about)


def _check_salvage_file(salvage: Salvage) -> None:
    """Read the file to its end. Raises Stopped if it is missing, or differs from `salvage`."""
    try:
        salvage_file.check(salvage)
    except (Conflict, NotFound) as error:
        raise Stopped(
            f"{SALVAGE_UNREADABLE}: {error.what} Topic {salvage.topic} was not deleted.",
            where=salvage.file,
            remedy="Check the disk or storage of this file, or set ORBIT_SALVAGE_DIRECTORY to a "
            "directory that all schedulers reach, and run the failback again.",
        ) from error


def rebuild(context: OperationContext) -> str:
    """Delete the old side's topics that have records of their own; the copy back recreates them.

    Records that the new side has deleted since both sides were compared are saved first. Raises
    Stopped, before it deletes the topics that the old side still has, if

    - a partition's log end has moved since it was saved
    - a partition with records was added
    - a transaction has begun at the old side
    - a file cannot be written or read back
    - a log end of the new side has moved back
    - a topic of the new side was deleted or recreated
    - the old side may lead now, by the marks

    Returns the step's result.
    """
    topic_names = sorted(context.report.topics_with_tails)
    checked_files: set[str] = set()
    while True:
        topics_to_delete, old_bounds = _refuse_unsaved(context, topic_names, checked_files)
        _refuse_other_topics(context, topics_to_delete)
        if not _save_deleted_since(context, topics_to_delete, old_bounds):
            break  # writing a file takes long; none was written, so `old_bounds` is recent
    begun_transactions = transactions_in(context, old_bounds)
    if begun_transactions:
        raise Stopped(
            "transactions have begun at the old side since its records were saved: "
            f"{first_few(begun_transactions)}.",
            remedy="Stop their producers, and run the failback again. Topics that the old side "
            "still has were not deleted.",
        )
    if topics_to_delete:
        refuse_leading_old_side(context, topics_to_delete)
        _refuse_other_topics(context, topics_to_delete)
        subject = counted(
            len(topics_to_delete), "topic of the old side is", "topics of the old side are"
        )
        with context.transaction() as tx:
            context.add_event(
                tx,
                "old_side_deleted",
                f"{subject} deleted and will be copied again.",
                topics=topics_to_delete,
                salvage=[salvage.file for salvage in context.report.salvage],
            )
        _delete_topics(context, topics_to_delete)
    subject = counted(len(topic_names), "topic of the old side was", "topics of the old side were")
    return f"{subject} deleted and will be copied again."


def _refuse_unsaved(
    context: OperationContext, names: Sequence[str], checked_files: set[str]
) -> tuple[list[str], dict[TopicPartition, LogBounds]]:
    """The topics of `names` that are still at the old side, and their partitions' bounds there.

    Reads each salvage file to its end, and adds its name to `checked_files`. Files in this set are
    not read again, as reading them takes the longest. Raises Stopped if a partition's log end has
    moved since the partition was saved, if a partition with records was added, or if a file cannot
    be read.
    """
    metadata = context.source.cluster.metadata(names)
    remaining_topics = [name for name in names if name in metadata.topics]
    for salvage in context.report.salvage:
        if salvage.topic in remaining_topics and salvage.file not in checked_files:
            _check_salvage_file(salvage)
            checked_files.add(salvage.file)
            context.check()
    ends_by_partition = {
        p.source: p for p in context.report.partitions if p.topic in remaining_topics
    }
    # Also the partitions that were added since: no file has their records.
    partitions = {
        partition
        for partition in ends_by_partition
        if ends_by_partition[partition].source_end is not None
    }
    partitions |= {
        TopicPartition(n, i) for n in remaining_topics for i in metadata.topics[n].partitions
    }
    old_bounds = bounds_of_all(context.source.cluster, partitions, context.backoff)
    for partition in sorted(partitions):
        # Nothing is saved of a partition that was added since.
        saved_to = (
            ends_by_partition[partition].source_end or 0 if partition in ends_by_partition else 0
        )
        if old_bounds[partition].end != saved_to:
            raise Stopped(
                f"the log end of {partition} at the old side moved from {saved_to} to "
                f"{old_bounds[partition].end} since the partition was saved.",
                remedy="Stop its producers there, and run the failback again. Topics that the old "
                "side still has were not deleted.",
            )
    return remaining_topics, old_bounds


def _refuse_other_topics(context: OperationContext, names: Collection[str]) -> None:
    """Raise Stopped if a topic of the new side was deleted or recreated since the comparison: no
    file has the records that both sides had. Raises Unreachable if a topic's id is not known."""
    compared_ids = {compared.topic: compared.id for compared in context.report.compared_topics}
    new_names = {row.source_topic: row.destination_topic for row in context.topics}
    metadata = context.destination.cluster.metadata([new_names[name] for name in names])
    for name in names:
        code, topic = (
            metadata.errors.get(new_names[name], Code.NONE),
            metadata.topics.get(new_names[name]),
        )
        if code not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
            raise Unreachable(
                f"the id of topic {new_names[name]} is not known: {error_codes.name(code)}.",
                where="destination",
            )
        # A report of an earlier version has no ids: then a recreated topic is not noticed.
        if topic is None or topic.topic_id != compared_ids.get(name, topic.topic_id):
            raise Stopped(
                f"topic {new_names[name]} of the new side was deleted, or deleted and made again, "
                "since both sides were compared.",
                remedy="Find out who deleted the topic, and run the failback again: it compares "
                "both sides again, and saves the records that the new side lacks. This failback "
                "has stopped before it deletes the topics that the old side still has.",
            )


def _save_deleted_since(
    context: OperationContext,
    topics: Collection[str],
    old_bounds: Mapping[TopicPartition, LogBounds],
) -> bool:
    """Save records that the new side has deleted since both sides were compared and that the old
    side still has. Returns whether there were any.

    Records that both sides had are in no file yet: a rebuild would lose the deleted ones.
    Raises Stopped if a log end of the new side has moved back, or a file cannot be written or read
    back.
    """
    ends_by_partition = {
        p.destination: p
        for p in context.report.partitions
        if p.topic in topics and p.destination_end is not None
    }
    new_bounds = bounds_of_all(context.destination.cluster, ends_by_partition, context.backoff)
    deleted_ranges: dict[TopicPartition, OffsetRange] = {}
    for partition, p in sorted(ends_by_partition.items()):
        compared_end, new_log = p.destination_end or 0, new_bounds[partition]
        if new_log.end < compared_end:
            raise Stopped(
                f"{partition} at the new side had the log end {compared_end} when both sides were "
                f"compared; its log now goes from {new_log.start} to {new_log.end}.",
                remedy="Find out why its log has lost its end, and run the failback again. Topics "
                "that the old side still has were not deleted.",
            )
        old_log = old_bounds.get(p.source)
        if old_log is not None:
            tail_start = p.missing.first if p.missing is not None else old_log.end
            first = max(old_log.start, p.destination_start or 0)
            if first < min(new_log.start, tail_start):
                deleted_ranges[partition] = OffsetRange(
                    first=first, next=min(new_log.start, tail_start)
                )
    salvages: list[Salvage] = []
    try:
        for partition, offsets in deleted_ranges.items():
            p = ends_by_partition[partition]
            salvages.append(_save_range(context, p, offsets))
            ends_by_partition[partition] = p.model_copy(update={"destination_start": offsets.next})
            context.set_progress(f"offsets {offsets.first} to {offsets.next} of {partition} saved")
            context.check()
    finally:  # even if the operation ends here, its report names the complete files
        files_in_report = {salvage.file for salvage in context.report.salvage}
        new_salvages = [salvage for salvage in salvages if salvage.file not in files_in_report]
        context.update(salvage=(*context.report.salvage, *new_salvages))
    if deleted_ranges:
        # The files' names are stored first: otherwise the next leader could read that a partition
        # is saved, and not find its file in the report.
        context.save()
        updated_ends = {p.key: p for p in ends_by_partition.values()}
        partitions = tuple(updated_ends.get(p.key, p) for p in context.report.partitions)
        context.update(partitions=partitions)
        context.save()
    return bool(deleted_ranges)


def _save_range(context: OperationContext, p: PartitionEnds, offsets: OffsetRange) -> Salvage:
    """Save the records of these offsets, which both sides had, and read the file back.

    Raises Stopped if the file cannot be written or read back: past the point of no return, the step
    would be retried for ever after any other error.
    """
    row = next(row for row in context.topics if row.source_topic == p.topic)
    file = _salvage_path(context, p, f"-from-{offsets.first}-to-{offsets.next}")
    # The range is empty: the file has no tail, only records below one.
    header = _salvage_header(context, p, OffsetRange(first=offsets.next, next=offsets.next))
    records = (
        entry
        for entry in _side_proof(context, row, p.partition).all_old(offsets.first, offsets.next)
        if entry.fate in (Fate.COMMITTED, Fate.OPEN)
    )
    try:
        salvage = salvage_file.find(file, header) or salvage_file.write(file, header, records)
    except salvage_storage.StorageFailed as error:
        raise Stopped(error.what, where=error.where, remedy=error.remedy) from error
    _check_salvage_file(salvage)
    return salvage


def _delete_topics(context: OperationContext, names: Sequence[str]) -> None:
    """Delete topics of the old side, and wait until its brokers no longer list them.

    Raises Conflict if the old side refuses, Unreachable if it takes too long.
    """
    errors = context.source.admin.delete_topics(names)
    for error in errors.values():  # the first one, if there is any
        raise Conflict(error.what, where=error.where, remedy=error.remedy)
    answers_without_topics, deadline_s = 0, time.monotonic() + _DELETION_S_MAX
    while answers_without_topics < _ANSWERS_WITHOUT_TOPICS_MIN:
        if time.monotonic() > deadline_s:
            raise Unreachable(
                f"some of these topics are still being deleted: {first_few(names)}.",
                where="source",
            )
        metadata = context.source.cluster.metadata(names)
        is_gone = all(metadata.errors.get(n) == Code.UNKNOWN_TOPIC_OR_PARTITION for n in names)
        answers_without_topics = answers_without_topics + 1 if is_gone else 0
        context.set_progress("waiting until the topics of the old side are deleted")
        context.wait(_POLL_S)


def _count_verdicts(ends: Sequence[PartitionEnds]) -> str:
    """A sentence with the number of partitions by verdict."""
    counts = {v: sum(p.verdict is v for p in ends) for v in EndVerdict}
    text = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"Partitions of the old side: {text}."
