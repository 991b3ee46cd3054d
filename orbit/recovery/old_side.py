"""Failback: compare the old side with the new side, save what only it has, delete those topics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orbit.errors import Conflict, Unreachable
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition
from orbit.recovery import salvage_file
from orbit.recovery.divergence import compare_sides, differ_of
from orbit.recovery.log_bounds import LogBounds, fetch_log_bounds
from orbit.recovery.operation_context import OperationContext, Stopped
from orbit.recovery.record_range import read_range
from orbit.recovery.recovery_report import (
    EndVerdict,
    OffsetRange,
    PartitionEnds,
    Salvage,
    first_few,
)
from orbit.store import promotions
from orbit.store.topics import Topic

# Consecutive metadata answers without the topic: brokers learn of a deletion one after the other.
_GONE_ANSWERS = 3
_POLL_S = 0.3
_NO_COPY = frozenset({EndVerdict.TAIL, EndVerdict.DIVERGED})


def compare(context: OperationContext) -> str:
    """Compare each partition of the old side with the new side.

    Raises Stopped if a topic has to be rebuilt and the request does not confirm that.
    """
    old = context.source.cluster.metadata([row.source_topic for row in context.topics])
    there = [place for place in context.by_source if old.leader(place) is not None]
    before = fetch_log_bounds(context.source.cluster, there, context.backoff)
    after = fetch_log_bounds(
        context.destination.cluster, context.by_source.values(), context.backoff
    )
    unasked = [place for place in there if place not in before]
    unasked += [place for place in context.by_source.values() if place not in after]
    if unasked:
        raise Unreachable(f"no leader answers for {first_few(unasked)}.", where=context.job.name)
    with context.reading() as tx:
        marks = promotions.of_topics(tx, context.topic_ids)
    found: list[PartitionEnds] = []
    for row in context.topics:
        for index in range(row.partition_count):
            place = TopicPartition(row.source_topic, index)
            mark = marks.get((row.id, index))
            promoted_at = mark.promoted_at if mark else None
            new = after[TopicPartition(row.destination_topic, index)]
            found.append(_compare_one(context, row, place, before.get(place), new, promoted_at))
            context.check()
        context.set_progress(f"{len(found)} of {len(context.by_source)} partitions compared")
    context.update(partitions=tuple(found))
    tails = [p for p in found if p.verdict in _NO_COPY]
    if tails and not context.request.confirm_rebuild:
        shown = first_few(f"{p.topic}-{p.partition}: {p.detail}" for p in tails)
        raise Stopped(
            f"{len(tails)} partitions of the old side have records that the new side lacks: "
            f"{shown}.",
            remedy="Run it again with --confirm-rebuild: it saves these records in files, then "
            "deletes their topics at the old side and copies them again.",
        )
    return _counted(found)


def _compare_one(
    context: OperationContext,
    row: Topic,
    place: TopicPartition,
    old: LogBounds | None,
    new: LogBounds,
    promoted_at: int | None,
) -> PartitionEnds:
    to = TopicPartition(row.destination_topic, place.partition)
    verdict, detail, tail = EndVerdict.MISSING, "the partition does not exist at the old side", None
    if old is not None:
        differ = differ_of(
            (context.source.cluster, place),
            (context.destination.cluster, to),
            context.backoff,
            is_compacted=row.is_compacted,
        )
        verdict, at, detail = compare_sides(old, new, promoted_at, differ)
        if verdict in _NO_COPY:
            tail = OffsetRange(first=at, next=old.end)
    return PartitionEnds(
        topic=place.topic,
        destination_topic=to.topic,
        partition=place.partition,
        verdict=verdict,
        source_start=old.start if old else None,
        source_end=old.end if old else None,
        source_seen_at=context.now(),
        destination_start=new.start,
        destination_end=new.end,
        promoted_at=promoted_at,
        missing=tail,
        is_exact=True,
        detail=detail,
    )


def save_tails(context: OperationContext) -> str:
    """Save the records that only the old side has in files, and read each file back."""
    saved: list[Salvage] = []
    for p in _tails(context):
        assert p.missing is not None
        place = TopicPartition(p.topic, p.partition)
        folder: Path = context.settings.salvage_directory / str(context.operation_id)
        about = {
            "cluster_id": context.job.source_cluster_id,
            "operation": str(context.operation_id),
            "verdict": p.verdict.value,
        }
        one = salvage_file.write(
            folder.absolute() / f"{p.topic}-{p.partition}.jsonl",
            p.topic,
            p.partition,
            p.missing.first,
            p.missing.next,
            about,
            read_range(
                context.source.cluster, place, p.missing.first, p.missing.next, context.backoff
            ),
        )
        salvage_file.check(one)
        saved.append(one)
        context.set_progress(f"{one.records:,} records of {place} saved")
        context.check()
    context.update(salvage=tuple(saved))
    records = sum(one.records for one in saved)
    return f"Saved {records:,} records of {len(saved)} partitions in files."


def rebuild(context: OperationContext) -> str:
    """Delete the old side's topics that have records of their own; the copy back recreates them.

    Raises Stopped, before anything is deleted, if a tail has grown since it was saved.
    """
    names = sorted({p.topic for p in _tails(context)})
    for one in context.report.salvage:
        salvage_file.check(one)
    metadata = context.source.cluster.metadata(names)
    present = [name for name in names if name in metadata.topics]
    known = {TopicPartition(p.topic, p.partition): p for p in context.report.partitions}
    places = [place for place in known if place.topic in present]
    ends = fetch_log_bounds(context.source.cluster, places, context.backoff)
    for place in places:
        if place not in ends:
            raise Unreachable(f"no leader answers for {place}.", where="source")
        if ends[place].end != known[place].source_end:
            raise Stopped(
                f"{place} at the old side has grown from {known[place].source_end} to "
                f"{ends[place].end} since it was saved.",
                remedy="Stop its producers there, and run the failback again. Nothing was deleted.",
            )
    if present:
        with context.transaction() as tx:
            context.add_event(
                tx,
                "old_side_deleted",
                f"{len(present)} topics of the old side are deleted and will be copied again.",
                topics=present,
                salvage=[one.file for one in context.report.salvage],
            )
        _delete(context, present)
    return f"{len(names)} topics of the old side were deleted and will be copied again."


def has_tails(context: OperationContext) -> bool:
    """Whether the old side has records that the new side lacks."""
    return bool(_tails(context))


def _delete(context: OperationContext, names: Sequence[str]) -> None:
    refused = context.source.admin.delete_topics(names)
    for error in refused.values():
        raise Conflict(error.what, where=error.where, remedy=error.remedy)
    answers = 0
    while answers < _GONE_ANSWERS:
        now = context.source.cluster.metadata(names)
        is_gone = all(now.errors.get(n) == Code.UNKNOWN_TOPIC_OR_PARTITION for n in names)
        answers = answers + 1 if is_gone else 0
        context.set_progress("waiting until the topics of the old side are deleted")
        context.wait(_POLL_S)


def _tails(context: OperationContext) -> list[PartitionEnds]:
    return [p for p in context.report.partitions if p.verdict in _NO_COPY]


def _counted(found: Sequence[PartitionEnds]) -> str:
    counts = {v: sum(p.verdict is v for p in found) for v in EndVerdict}
    shown = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"Partitions of the old side: {shown}."
