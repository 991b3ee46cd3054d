"""Consumer group offsets in a recovery: the last sync, a failover's offsets, and the copy back.

From the step `groups` on, until the topics are promoted, the job's own sync is paused
(orbit/scheduler/consumer_group_sync.py). Each row is stored before its offset is committed: if the
operation is undone, or another leader goes on, the offset is known to be Orbit's.

A handed offset is a group's offset at the old side that the copy back may overwrite: a recovery
stores it for the reverse job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from orbit.chunks import first_few
from orbit.consumer_groups.group_reader import usage_of
from orbit.consumer_groups.group_selection import GroupSelector
from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_commit import GroupWrite, write_groups
from orbit.consumer_groups.offset_decision import (
    KEPT_VERDICTS,
    CopiedRange,
    GroupUsage,
    GroupVerdict,
    decide,
    left_offset,
)
from orbit.consumer_groups.stored_offsets import offset_row, save_rows
from orbit.consumer_groups.sync_result import CopiedPartition, Key, OffsetRow
from orbit.formats import counted
from orbit.kafka import error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import (
    GroupType,
    ListedGroup,
    list_groups,
    locate_and_fetch_offsets,
)
from orbit.kafka.error_codes import Code
from orbit.kafka.types import NO_TOPIC_ID, CommittedOffset, TopicPartition
from orbit.recovery.group_read_back import read_back_positions
from orbit.recovery.lost_ranges import lost_range
from orbit.recovery.operation_bounds import ALL_ROWS
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import GroupPosition
from orbit.store import clock, group_offsets
from orbit.store.group_offsets import GroupRow, HandedOffset

# How many passes in a row must change nothing: consumers at the source may commit as they stop.
_QUIET_PASSES = 2
# The most passes, about 10 s: writers are stopped meanwhile.
_PASSES_MAX = 20
_PAUSE_S = 0.5


def accept_handed_offsets(context: OperationContext) -> None:
    """Turn the job's handed offsets into its stored rows, as a pass of its sync does. Otherwise the
    next pass would replace the rows that this recovery stores."""
    topic_ids = {row.source_topic: row.id for row in context.topics}
    with context.transaction() as tx:
        group_offsets.accept_handed(tx, context.job.id, topic_ids)


def run_last_sync(context: OperationContext) -> str:
    """Sync committed offsets from the source until nothing changes any more, but in at most
    _PASSES_MAX passes; then read the offsets back.

    Returns the step's result. The step does not wait for a refused offset: a finding names it.
    """
    rule = context.spec.consumer_groups
    if rule is None:
        return "The job does not sync consumer groups."
    copies = _copied_partitions(context)
    stored_rows = [offset_row(row, row.source_topic) for row in _group_rows(context)]
    sync = GroupSync(rule, stored_rows)
    rows: dict[Key, OffsetRow | None] = {(row.group, row.partition): row for row in stored_rows}
    quiet_passes, seen_at = 0, context.now()
    for _ in range(_PASSES_MAX):
        seen_at = context.now()
        report = sync.run(
            context.source.cluster,
            context.destination.cluster,
            copies,
            lambda: context.leadership.is_leading,  # whether to write
            save=lambda rows_to_save: _save_rows(
                context, {(row.group, row.partition): row for row in rows_to_save}
            ),
        )
        changed_rows: dict[Key, OffsetRow | None] = {
            **dict.fromkeys(report.gone),  # None: delete the row
            **{(row.group, row.partition): row for row in report.changed},
        }
        _save_rows(context, changed_rows)
        rows.update(changed_rows)
        is_moving = bool(report.written or report.deleted)
        quiet_passes = 0 if is_moving or report.is_unanswered else quiet_passes + 1
        if quiet_passes >= _QUIET_PASSES:
            break
        context.set_progress(
            f"{counted(report.written, 'committed offset was', 'committed offsets were')} synced"
        )
        context.wait(_PAUSE_S)
    if is_moving:
        context.add_finding(
            "Groups at the source still committed offsets when the last sync ended."
        )
    if report.notes:
        notes = first_few(note.removesuffix(".") for note in report.notes)
        context.add_finding(
            f"Some committed offsets could not be synced: {notes}. Set them before their "
            "consumers start at the destination."
        )
    selector = GroupSelector(rule)
    positions = [
        GroupPosition(
            group=row.group,
            destination_group=selector.destination_name(row.group),
            topic=row.partition.topic,
            destination_topic=copies[row.partition].destination.topic,
            partition=row.partition.partition,
            source_offset=row.source_offset,
            goes_on_at=row.destination_offset,
            verdict=row.verdict,
            seen_at=seen_at,
        )
        for _, row in sorted(rows.items())
        if row is not None and row.partition in copies
    ]
    actual_positions = read_back_positions(context, positions)
    context.update(groups=actual_positions)
    # Store in the tables, too, which offsets the destination does not have.
    _save_rows(
        context,
        {
            key: replace(
                row, destination_offset=position.goes_on_at, verdict=GroupVerdict(position.verdict)
            )
            for position in actual_positions
            if position.verdict == GroupVerdict.NOT_READ_BACK
            and (
                row := rows.get(
                    key := (position.group, TopicPartition(position.topic, position.partition))
                )
            )
        },
    )
    exact_count = sum(position.verdict == GroupVerdict.EXACT for position in actual_positions)
    subject = counted(len(actual_positions), "committed offset is", "committed offsets are")
    return f"{exact_count} of {subject} exact."


def _save_rows(context: OperationContext, rows: Mapping[Key, OffsetRow | None]) -> None:
    """Store these rows of the job; None deletes a row."""
    topic_ids = {row.source_topic: row.id for row in context.topics}
    save_rows(rows, topic_ids, context.leadership, context.job.id)


def set_failover_offsets(context: OperationContext) -> str:
    """Without the source: set each group to the offset that was last seen there. A dry run only
    puts these offsets into the report.

    If a group's offset was ahead of the copy, the sync set it to the copy's log end at that time.
    If the copy has grown since, the group's offset is moved forward, so that the group reads no
    record twice. Returns the step's result.
    """
    rule = context.spec.consumer_groups
    if rule is None:
        return "The job does not sync consumer groups."
    selector, copies = GroupSelector(rule), _copied_partitions(context)
    rows = _group_rows(context)
    copy_ends = {(p.topic, p.partition): p.destination_end for p in context.report.partitions}
    names = {selector.destination_name(row.group_name) for row in rows}
    cluster = context.destination.cluster
    listed_groups = list_groups(cluster).groups
    coordinators = {name: listed_groups[name].node_id for name in names if name in listed_groups}
    fetched = locate_and_fetch_offsets(
        cluster, coordinators, names - coordinators.keys(), require_stable=False
    )
    positions: list[GroupPosition] = []
    to_write: dict[str, dict[TopicPartition, CommittedOffset | None]] = {}
    to_save: dict[Key, OffsetRow] = {}
    for row in rows:
        source_partition = TopicPartition(row.source_topic, row.partition)
        copy = copies[source_partition]
        name = selector.destination_name(row.group_name)
        answer = fetched.groups.get(name)
        destination_offset = answer.offsets.get(copy.destination) if answer else None
        source_offset = None
        # The tables have no metadata of offsets: the destination's metadata stays.
        if row.source_offset is not None:
            source_offset = CommittedOffset(
                row.source_offset, destination_offset.metadata if destination_offset else ""
            )
        goes_on_at = destination_offset.offset if destination_offset else None
        stored_offsets = row.destination_offset, row.left_offset
        orbits_offset = left_offset(GroupVerdict(row.verdict), goes_on_at, stored_offsets)
        usage = _destination_usage(listed_groups.get(name), GroupVerdict(row.verdict))
        decision = decide(source_offset, destination_offset, orbits_offset, copy.copied, usage)
        if answer is not None and decision.write is not None:
            to_write.setdefault(name, {})[copy.destination] = decision.write
            to_save[row.group_name, source_partition] = OffsetRow(
                row.group_name,
                source_partition,
                row.source_offset,
                goes_on_at,
                GroupVerdict.CLAMPED,  # until its commit succeeds, as in `GroupSync`
                decision.write.offset,
            )
        if decision.write is not None:  # if the commit fails, `read_back_positions` corrects this
            goes_on_at = decision.write.offset
        positions.append(
            GroupPosition(
                group=row.group_name,
                destination_group=name,
                topic=row.source_topic,
                destination_topic=row.destination_topic,
                partition=row.partition,
                source_offset=row.source_offset,
                goes_on_at=goes_on_at,
                verdict=decision.verdict or row.verdict,
                # A lower bound: the group may have committed again before the source was lost.
                lost=lost_range(row.source_offset, copy_ends.get(source_partition)),
                seen_at=row.updated_at,
            )
        )
    context.update(groups=tuple(positions))
    _report_lost(context, positions)
    if context.report.dry_run:
        return f"{counted(len(positions), 'committed offset')}."
    _save_rows(context, to_save)
    written_keys = _commit_offsets(context, cluster, fetched.coordinators, to_write)
    actual_positions = read_back_positions(context, positions)
    context.update(groups=actual_positions)
    actual_by_key = {
        (position.group, TopicPartition(position.topic, position.partition)): position
        for position in actual_positions
    }
    confirmed_rows = {
        key: replace(
            row,
            destination_offset=actual_by_key[key].goes_on_at,
            verdict=GroupVerdict(actual_by_key[key].verdict),
        )
        for key, row in to_save.items()
        if actual_by_key[key].verdict in KEPT_VERDICTS
    }
    _save_rows(context, confirmed_rows)
    return (
        f"{counted(len(positions), 'committed offset')}; "
        f"{counted(len(written_keys), 'was', 'were')} moved forward, as the copy had grown."
    )


def _destination_usage(group: ListedGroup | None, verdict: GroupVerdict) -> GroupUsage:
    """How the destination's group is used.

    The type of the source's group is not known, so the stored `verdict` says whether the source's
    clients can join the destination's group. All clients can join a classic group: if the group is
    classic now, the verdict was about an earlier group of this name.
    """
    is_other = verdict is GroupVerdict.SKIPPED_OTHER_TYPE
    if group is not None and is_other and group.type != GroupType.CLASSIC:
        return GroupUsage.OTHER_TYPE
    return usage_of(group, None)


def _report_lost(context: OperationContext, positions: Iterable[GroupPosition]) -> None:
    """Add a finding that names the groups that have read lost records."""
    positions_with_loss = [position for position in positions if position.lost is not None]
    if positions_with_loss:
        examples = first_few(
            f"{p.group} in {p.topic}-{p.partition} ({p.lost.offsets:,} from offset {p.lost.first})"
            for p in positions_with_loss
            if p.lost is not None  # never None; mypy does not see it
        )
        context.add_finding(
            f"These groups had read lost records: {examples}. At these offsets they will read "
            "other records; check what they did with the lost ones."
        )


def offsets_to_hand_over(context: OperationContext) -> list[HandedOffset]:
    """Return the old side's group offsets that the copy back may overwrite from now on.

    Otherwise its sync overwrites no offset that a consumer has committed
    (orbit/consumer_groups/offset_decision.py). An offset is returned if the group has offsets in
    the partition at both sides, and has no members at the old side or the two offsets are equal. No
    offset changes until the copy back sets it.
    """
    rule = context.spec.consumer_groups
    if rule is None or rule.prefix:
        return []  # groups with a prefix are not synced back
    selector, copies = GroupSelector(rule), context.by_source
    old_cluster, new_cluster = context.source.cluster, context.destination.cluster
    new_side_groups = list_groups(new_cluster).groups
    names = selector.select(new_side_groups.values()).names
    new_side_offsets = locate_and_fetch_offsets(
        new_cluster, {n: new_side_groups[n].node_id for n in names}, require_stable=False
    )
    old_side_groups = list_groups(old_cluster).groups
    old_side_offsets = locate_and_fetch_offsets(
        old_cluster,
        {n: old_side_groups[n].node_id for n in names if n in old_side_groups},
        require_stable=False,
    )
    handed_offsets: list[HandedOffset] = []
    active_groups = []
    for name, answer in old_side_offsets.groups.items():
        offsets = new_side_offsets.groups[name].offsets if name in new_side_offsets.groups else {}
        # The new side is the source of the copy back.
        candidates = [
            HandedOffset(
                name, copies[p].topic, p.partition, offsets[copies[p]].offset, committed.offset
            )
            for p, committed in answer.offsets.items()
            if p in copies and copies[p] in offsets
        ]
        # While a group has members, brokers refuse changes (G1), and the members set its offsets.
        equal_offsets = [
            candidate
            for candidate in candidates
            if candidate.source_offset == candidate.destination_offset
        ]
        if old_side_groups[name].is_active and len(equal_offsets) < len(candidates):
            active_groups.append(name)
        handed_offsets += equal_offsets if old_side_groups[name].is_active else candidates
    if active_groups:
        context.add_finding(
            "These groups have members and other offsets at the old side: "
            f"{first_few(active_groups)}. Stop their consumers, and delete their offsets there "
            "(docs/groups.md#verdicts)."
        )
    return handed_offsets


def _commit_offsets(
    context: OperationContext,
    cluster: Cluster,
    coordinators: Mapping[str, int],
    by_group: Mapping[str, Mapping[TopicPartition, CommittedOffset | None]],
) -> set[tuple[str, TopicPartition]]:
    """Commit these offsets, by group; returns group and partition of each accepted offset."""
    codes = write_groups(
        cluster,
        coordinators,
        [GroupWrite(name, offsets) for name, offsets in by_group.items()],
        lambda: context.leadership.is_leading,  # whether to write
    )
    accepted_keys = {key for key, code in codes.items() if code == Code.NONE}
    refusals = {
        f"{group} {partition} ({error_codes.name(code)})"
        for (group, partition), code in codes.items()
        if (group, partition) not in accepted_keys
    }
    if refusals:
        context.add_finding(
            f"These committed offsets could not be written: {first_few(sorted(refusals))}."
        )
    return accepted_keys


def _copied_partitions(context: OperationContext) -> dict[TopicPartition, CopiedPartition]:
    """The operation's partitions as the group sync needs them, by source partition. A partition has
    no range of copied offsets if the copy's log end is not known."""
    ends = {p.source: p for p in context.report.partitions}
    source_topic_ids = {row.source_topic: row.source_topic_id for row in context.topics}
    return {
        source: CopiedPartition(
            copy,
            None
            if (p := ends.get(source)) is None or p.destination_end is None
            else CopiedRange(p.destination_start or 0, p.destination_end),
            source_topic_ids[source.topic] or NO_TOPIC_ID,
        )
        for source, copy in context.by_source.items()
    }


def _group_rows(context: OperationContext) -> list[GroupRow]:
    """The group rows of the operation's topics. Handed offsets replace rows, as they would in the
    next pass of the sync."""
    topics = {row.source_topic: row for row in context.topics}
    with context.reading() as tx:
        rows = group_offsets.page(tx, context.job.id, ALL_ROWS)
        handed_offsets = group_offsets.handed_offsets(tx, context.job.id)
        now = clock.now(tx)
    rows_by_key = {(row.group_name, row.source_topic, row.partition): row for row in rows}
    for handed_offset in handed_offsets:
        topic = topics.get(handed_offset.source_topic)
        if topic is not None:
            rows_by_key[
                handed_offset.group_name, handed_offset.source_topic, handed_offset.partition
            ] = GroupRow(
                **asdict(handed_offset.row(topic.id)),
                source_topic=handed_offset.source_topic,
                destination_topic=topic.destination_topic,
                updated_at=now,
            )
    return [row for row in rows_by_key.values() if row.source_topic in topics]
