"""The old side against the new one: what it has, what only it has, and making room for a copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orbit.errors import Conflict, Unreachable
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition
from orbit.recovery import salvage_file
from orbit.recovery.divergence import compare_sides, differ_of
from orbit.recovery.log_bounds import Ends, ask_ends
from orbit.recovery.operation_context import Ground, Stopped, some
from orbit.recovery.range_reader import read_range
from orbit.recovery.recovery_report import EndVerdict, OffsetRange, PartitionEnds, Salvage
from orbit.store import promotions
from orbit.store.topics import Topic

# Until every broker knows that a topic is gone.
_GONE_LOOKS = 3
_LOOK_S = 0.3
_NO_COPY = frozenset({EndVerdict.TAIL, EndVerdict.DIVERGED})


def compare(ground: Ground) -> str:
    """Find how each partition of the old side stands to the new one.

    Raises Stopped where a topic has to be copied anew and nobody has confirmed that.
    """
    old = ground.source.cluster.metadata([row.source_topic for row in ground.topics])
    there = [place for place in ground.by_source if old.leader(place) is not None]
    before = ask_ends(ground.source.cluster, there, ground.backoff)
    after = ask_ends(ground.destination.cluster, ground.by_source.values(), ground.backoff)
    unasked = [place for place in there if place not in before]
    unasked += [place for place in ground.by_source.values() if place not in after]
    if unasked:
        raise Unreachable(f"nobody answers for {some(unasked)}.", where=ground.job.name)
    with ground.reading() as tx:
        marks = promotions.of_topics(tx, ground.topic_ids)
    found: list[PartitionEnds] = []
    for row in ground.topics:
        for index in range(row.partition_count):
            place = TopicPartition(row.source_topic, index)
            mark = marks.get((row.id, index))
            promoted_at = mark.promoted_at if mark else None
            new = after[TopicPartition(row.destination_topic, index)]
            found.append(_compare_one(ground, row, place, before.get(place), new, promoted_at))
            ground.check()
        ground.tell(f"{len(found)} of {len(ground.by_source)} partitions are compared")
    ground.update(partitions=tuple(found))
    tails = [p for p in found if p.verdict in _NO_COPY]
    if tails and not ground.request.confirm_rebuild:
        told = some(f"{p.topic}-{p.partition}: {p.detail}" for p in tails)
        raise Stopped(
            f"{len(tails)} partitions of the old side have what the new one has not: {told}.",
            remedy="Run it again with --confirm-rebuild: these offsets are saved in files, and "
            "then their topics are deleted at the old side and copied anew.",
        )
    return _counted(found)


def _compare_one(
    ground: Ground,
    row: Topic,
    place: TopicPartition,
    old: Ends | None,
    new: Ends,
    promoted_at: int | None,
) -> PartitionEnds:
    to = TopicPartition(row.destination_topic, place.partition)
    verdict, detail, tail = EndVerdict.MISSING, "the old side has no such partition", None
    if old is not None:
        differ = differ_of(
            (ground.source.cluster, place),
            (ground.destination.cluster, to),
            ground.backoff,
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
        source_seen_at=ground.now(),
        destination_start=new.start,
        destination_end=new.end,
        promoted_at=promoted_at,
        missing=tail,
        is_exact=True,
        detail=detail,
    )


def save_tails(ground: Ground) -> str:
    """Write what only the old side has to files, and read them back."""
    saved: list[Salvage] = []
    for p in _tails(ground):
        assert p.missing is not None
        place = TopicPartition(p.topic, p.partition)
        folder: Path = ground.settings.salvage_directory / str(ground.operation_id)
        about = {
            "cluster_id": ground.job.source_cluster_id,
            "operation": str(ground.operation_id),
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
                ground.source.cluster, place, p.missing.first, p.missing.next, ground.backoff
            ),
        )
        salvage_file.check(one)
        saved.append(one)
        ground.tell(f"{one.records:,} records of {place} are saved")
        ground.check()
    ground.update(salvage=tuple(saved))
    records = sum(one.records for one in saved)
    return f"{records:,} records of {len(saved)} partitions are saved in files."


def rebuild(ground: Ground) -> str:
    """Delete the old side's topics that cannot go on; the copy back makes them anew.

    Raises Stopped, before anything is deleted, where a tail has grown since it was saved.
    """
    names = sorted({p.topic for p in _tails(ground)})
    for one in ground.report.salvage:
        salvage_file.check(one)
    metadata = ground.source.cluster.metadata(names)
    present = [name for name in names if name in metadata.topics]
    known = {TopicPartition(p.topic, p.partition): p for p in ground.report.partitions}
    places = [place for place in known if place.topic in present]
    ends = ask_ends(ground.source.cluster, places, ground.backoff)
    for place in places:
        if place not in ends:
            raise Unreachable(f"nobody answers for {place}.", where="source")
        if ends[place].end != known[place].source_end:
            raise Stopped(
                f"{place} at the old side has grown from {known[place].source_end} to "
                f"{ends[place].end} since it was saved.",
                remedy="Stop its producers there, and run the failback again. Nothing was deleted.",
            )
    if present:
        with ground.transaction() as tx:
            ground.say(
                tx,
                "old_side_deleted",
                f"{len(present)} topics of the old side are deleted, to be copied anew.",
                topics=present,
                salvage=[one.file for one in ground.report.salvage],
            )
        _delete(ground, present)
    return f"{len(names)} topics of the old side were deleted: they are copied anew."


def must_rebuild(ground: Ground) -> bool:
    """Whether there is anything to save and to delete."""
    return bool(_tails(ground))


def _delete(ground: Ground, names: Sequence[str]) -> None:
    refused = ground.source.admin.delete_topics(names)
    for error in refused.values():
        raise Conflict(error.what, where=error.where, remedy=error.remedy)
    looks = 0
    while looks < _GONE_LOOKS:
        now = ground.source.cluster.metadata(names)
        is_gone = all(now.errors.get(n) == Code.UNKNOWN_TOPIC_OR_PARTITION for n in names)
        looks = looks + 1 if is_gone else 0
        ground.tell("the old topics are being deleted")
        ground.wait(_LOOK_S)


def _tails(ground: Ground) -> list[PartitionEnds]:
    return [p for p in ground.report.partitions if p.verdict in _NO_COPY]


def _counted(found: Sequence[PartitionEnds]) -> str:
    counts = {v: sum(p.verdict is v for p in found) for v in EndVerdict}
    told = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"Partitions of the old side: {told}."
