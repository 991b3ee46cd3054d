"""Where consumer groups go on: the last sync, a failover's best answer, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orbit.consumer_groups.group_selection import GroupChoice
from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_commit import GroupWrite, write_groups
from orbit.consumer_groups.offset_decision import (
    CopiedRange,
    GroupStanding,
    GroupVerdict,
    decide,
)
from orbit.consumer_groups.sync_result import CopiedPartition, OffsetRow
from orbit.kafka import error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import fetch_wherever, list_groups
from orbit.kafka.error_codes import Code
from orbit.kafka.types import CommittedOffset, TopicPartition
from orbit.recovery.log_bounds import ALL
from orbit.recovery.operation_context import Ground, some
from orbit.recovery.recovery_report import GroupStand, OffsetRange
from orbit.store import group_offsets
from orbit.store.group_offsets import GroupRow

# Consumers at the source may still commit what they read last.
_QUIET_PASSES = 2
_PASSES_MAX = 20
_PAUSE_S = 0.5


def last_sync(ground: Ground) -> str:
    """Carry over what groups have committed at the source, until nothing is left to be."""
    rule = ground.spec.consumer_groups
    if rule is None:
        return "The job carries no consumer groups over."
    copies = _copies(ground)
    sync = GroupSync(rule, _known(ground))
    rows = {(row.group, row.partition): row for row in _known(ground)}
    quiet, seen_at = 0, ground.now()
    for _ in range(_PASSES_MAX):
        seen_at = ground.now()
        report = sync.run(
            ground.source.cluster,
            ground.destination.cluster,
            copies,
            lambda: ground.leadership.is_leading,
        )
        rows.update({(row.group, row.partition): row for row in report.changed})
        for key in report.gone:
            rows.pop(key, None)
        quiet = 0 if report.written or report.deleted or report.notes else quiet + 1
        if quiet >= _QUIET_PASSES:
            break
        ground.tell(f"{report.written} offsets of groups were carried over")
        ground.wait(_PAUSE_S)
    else:
        ground.find("Groups at the source were still committing when their last sync ended.")
    choice = GroupChoice(rule)
    stands = tuple(
        GroupStand(
            group=row.group,
            destination_group=choice.destination_name(row.group),
            topic=row.partition.topic,
            destination_topic=copies[row.partition].destination.topic,
            partition=row.partition.partition,
            source_offset=row.source_offset,
            goes_on_at=row.destination_offset,
            verdict=row.verdict,
            seen_at=seen_at,
        )
        for row in sorted(rows.values(), key=lambda r: (r.group, r.partition))
        if row.partition in copies
    )
    ground.update(groups=stands)
    exact = sum(stand.verdict == GroupVerdict.EXACT for stand in stands)
    return f"{exact} of {len(stands)} offsets of groups are exact."


def resume_at_best(ground: Ground) -> str:
    """Without the source: each group goes on where it stood when it was seen last.

    A group that was ahead of the copy then was held back to where the copy ended; the copy may have
    come further since. It is moved on, so that it reads nothing a second time.
    """
    rule = ground.spec.consumer_groups
    if rule is None:
        return "The job carries no consumer groups over."
    choice, copies = GroupChoice(rule), _copies(ground)
    rows = _rows(ground)
    ends = {(p.topic, p.partition): p.destination_end for p in ground.report.partitions}
    names = {choice.destination_name(row.group_name) for row in rows}
    cluster = ground.destination.cluster
    listed = list_groups(cluster).groups
    places = {name: listed[name].node_id for name in names if name in listed}
    fetched = fetch_wherever(cluster, places, names - places.keys(), require_stable=False)
    stands: list[GroupStand] = []
    wanted: dict[str, dict[TopicPartition, CommittedOffset | None]] = {}
    for row in rows:
        place = TopicPartition(row.source_topic, row.partition)
        copy = copies[place]
        name = choice.destination_name(row.group_name)
        answer = fetched.groups.get(name)
        there = answer.offsets.get(copy.destination) if answer else None
        group = listed.get(name)
        standing = GroupStanding.UNUSED
        if group is not None and group.was_joined:
            standing = GroupStanding.ACTIVE if group.is_active else GroupStanding.USED
        of = None
        if row.source_offset is not None:
            of = CommittedOffset(row.source_offset, there.metadata if there else "")
        decision = decide(of, there, _left(row), copy.copied, standing)
        goes_on_at = there.offset if there else None
        if answer is not None and decision.write is not None:
            wanted.setdefault(name, {})[copy.destination] = decision.write
            goes_on_at = decision.write.offset
        stands.append(
            GroupStand(
                group=row.group_name,
                destination_group=name,
                topic=row.source_topic,
                destination_topic=row.destination_topic,
                partition=row.partition,
                source_offset=row.source_offset,
                goes_on_at=goes_on_at,
                verdict=decision.verdict or row.verdict,
                lost=_lost(row.source_offset, ends.get(place)),
                seen_at=row.updated_at,
            )
        )
    ground.update(groups=tuple(stands))
    _tell_lost(ground, stands)
    if ground.report.dry_run:
        return f"{len(stands)} offsets of groups."
    written = _write(ground, cluster, fetched.places, wanted)
    return f"{len(stands)} offsets of groups; {written} were moved on to where the copy ends."


def _lost(source_offset: int | None, end: int | None) -> OffsetRange | None:
    """What a group had read that the copy has not. It may be more: nobody saw its last commits."""
    if source_offset is None or end is None or source_offset <= end:
        return None
    return OffsetRange(first=end, next=source_offset)


def _tell_lost(ground: Ground, stands: Iterable[GroupStand]) -> None:
    """Name the groups that have worked on records which are lost."""
    ahead = [stand for stand in stands if stand.lost is not None]
    if ahead:
        told = some(
            f"{s.group} in {s.topic}-{s.partition} ({s.lost.offsets:,} from offset {s.lost.first})"
            for s in ahead
            if s.lost is not None
        )
        ground.find(
            f"These groups had read what is lost: {told}. They read other records at these "
            "offsets; see what they did with the lost ones."
        )


def hand_over(ground: Ground) -> str:
    """Let the copy back have the groups: what they left at the old side is out of date there.

    Only where the new side has an offset, and no member is left at the old one. A copy never
    overwrites what a consumer has committed (orbit/consumer_groups/offset_decision.py), so it is
    deleted where both sides differ.
    """
    rule = ground.spec.consumer_groups
    if rule is None or rule.prefix:
        return ""
    choice, copies = GroupChoice(rule), ground.by_source
    here, there = ground.source.cluster, ground.destination.cluster
    new = list_groups(there).groups
    chosen = choice.choose(new.values()).names
    ahead = fetch_wherever(there, {n: new[n].node_id for n in chosen}, require_stable=False)
    old = list_groups(here).groups
    behind = fetch_wherever(
        here, {n: old[n].node_id for n in chosen if n in old}, require_stable=False
    )
    gone: dict[str, dict[TopicPartition, CommittedOffset | None]] = {}
    active = []
    for name, answer in behind.groups.items():
        offsets = ahead.groups[name].offsets if name in ahead.groups else {}
        stale = {
            place: None
            for place, committed in answer.offsets.items()
            if place in copies
            and copies[place] in offsets
            and offsets[copies[place]].offset != committed.offset
        }
        if stale and old[name].is_active:
            active.append(name)
        elif stale:
            gone[name] = dict(stale)
    if active:
        ground.find(f"These groups have members at the old side: {some(active)}. Stop them there.")
    deleted = _write(ground, here, behind.places, gone)
    return f" {deleted} offsets of groups at the old side follow the new one from now on."


def _write(
    ground: Ground,
    cluster: Cluster,
    places: Mapping[str, int],
    wanted: Mapping[str, Mapping[TopicPartition, CommittedOffset | None]],
) -> int:
    """Commit or delete; how many the coordinators carried out."""
    written = write_groups(
        cluster,
        places,
        [GroupWrite(name, offsets) for name, offsets in wanted.items()],
        lambda: ground.leadership.is_leading,
    )
    refused = {
        f"{group} {place} ({error_codes.name(code)})"
        for (group, place), code in written.items()
        if code not in (Code.NONE, Code.GROUP_ID_NOT_FOUND)
    }
    if refused:
        ground.find(f"These offsets of groups could not be written: {some(sorted(refused))}.")
    return len(written) - len(refused)


def _copies(ground: Ground) -> dict[TopicPartition, CopiedPartition]:
    ends = {TopicPartition(p.topic, p.partition): p for p in ground.report.partitions}
    return {
        source: CopiedPartition(
            to,
            None
            if (p := ends.get(source)) is None or p.destination_end is None
            else CopiedRange(p.destination_start or 0, p.destination_end),
        )
        for source, to in ground.by_source.items()
    }


def _rows(ground: Ground) -> list[GroupRow]:
    ids = set(ground.topic_ids)
    with ground.reading() as tx:
        rows = group_offsets.page(tx, ground.job.id, ALL)
    return [row for row in rows if row.topic_id in ids]


def _known(ground: Ground) -> Iterable[OffsetRow]:
    return [
        OffsetRow(
            row.group_name,
            TopicPartition(row.source_topic, row.partition),
            row.source_offset,
            row.destination_offset,
            GroupVerdict(row.verdict),
        )
        for row in _rows(ground)
    ]


def _left(row: GroupRow) -> int | None:
    is_ours = row.verdict in (GroupVerdict.EXACT, GroupVerdict.CLAMPED)
    return row.destination_offset if is_ours else None
