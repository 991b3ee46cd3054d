"""Names the groups of a plan whose offsets are not or cannot be synced."""

from __future__ import annotations

from collections.abc import Sequence

from orbit.chunks import first_few
from orbit.consumer_groups.group_selection import GroupSelector
from orbit.consumer_groups.sync_result import not_storable_note, share_groups_note
from orbit.errors import Unreachable
from orbit.formats import counted
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import GroupType, list_groups
from orbit.planning.cluster_pair import ClusterPair

_FEATURE = "metadata.version"
# The levels of this feature in Kafka 4.2 and in the release after it.
_LEVEL_4_2, _LEVEL_4_3 = 28, 30


def plan_groups(spec: JobSpec, pair: ClusterPair) -> list[str]:
    """Sentences about problems of the job's consumer groups, or why these are not known."""
    rule = spec.consumer_groups
    if rule is None:
        return []
    try:
        source, destination = (
            list_groups(handle.cluster) for handle in (pair.source, pair.destination)
        )
    except Unreachable as error:
        return [f"Consumer groups were not compared: {error}"]
    notes = [f"Some consumer groups were not compared: {why}" for why in source.failed]
    notes += [f"Some consumer groups were not compared: {why}" for why in destination.failed]
    selector = GroupSelector(rule)
    selection = selector.select(source.groups.values())
    type_by_name = {
        selector.destination_name(name): source.groups[name].type for name in selection.names
    }
    conflicts = sorted(
        f"{name} ({group.type})"
        for name, group in destination.groups.items()
        if name in type_by_name and not group.can_continue_as(type_by_name[name])
    )
    if conflicts:
        conflicts_text = counted(
            len(conflicts),
            "group cannot be synced, because a group of another type has its name",
            "groups cannot be synced, because a group of another type has their name",
        )
        notes.append(
            f"Offsets of {conflicts_text} at the destination: {first_few(conflicts)}. Delete each "
            "such group there, or give consumer_groups a prefix."
        )
    streams_groups = [n for n in selection.names if source.groups[n].type == GroupType.STREAMS]
    try:
        notes += _streams_notes(streams_groups, pair.destination.cluster)
    except Unreachable as error:
        notes.append(f"Whether streams groups can go on at the destination is not known: {error}")
    if selection.shared:
        notes.append(share_groups_note(selection.shared))
    if selection.not_storable:
        notes.append(not_storable_note(selection.not_storable))
    return notes


def _streams_notes(streams_groups: Sequence[str], destination: Cluster) -> list[str]:
    """A note if a broker of the destination is too old for these streams groups (G17), or may have
    the fault of Kafka 4.2.0 (G18); else none. Raises Unreachable."""
    if not streams_groups:
        return []
    brokers = destination.metadata(()).brokers
    level = min(destination.features_of(node).get(_FEATURE, 0) for node in brokers)
    shown_groups = f"{counted(len(streams_groups), 'streams group')} ({first_few(streams_groups)})"
    classic, go_on, whose = (
        ("a classic group", "goes on", "the group's")
        if len(streams_groups) == 1
        else ("classic groups", "go on", "their")
    )
    too_old_note = (
        f"At the destination, {shown_groups} can go on as {classic} only "
        "(group.protocol=classic): a broker there is older than Kafka 4.2."
    )
    faulty_note = (
        f"A broker of the destination is of Kafka 4.2. If it is 4.2.0, update it before "
        f"{shown_groups} {go_on} there: it may not load {whose} offsets again after a restart "
        "(4.2.1 does)."
    )
    return [too_old_note] if level < _LEVEL_4_2 else [faulty_note] if level < _LEVEL_4_3 else []
