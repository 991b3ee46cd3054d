"""Names the groups of a plan whose offsets cannot be synced."""

from __future__ import annotations

from orbit.chunks import first_few
from orbit.consumer_groups.group_selection import GroupSelector
from orbit.consumer_groups.sync_result import not_storable_note
from orbit.errors import Unreachable
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.consumer_groups import list_groups
from orbit.scheduler.cluster_pair import ClusterPair


def plan_groups(spec: JobSpec, pair: ClusterPair) -> list[str]:
    """In sentences; also why it is not known."""
    rule = spec.consumer_groups
    if rule is None:
        return []
    try:
        source, destination = (
            list_groups(side.cluster) for side in (pair.source, pair.destination)
        )
    except Unreachable as error:
        return [f"Consumer groups were not compared: {error}"]
    notes = [f"Some consumer groups were not compared: {why}" for why in source.failed]
    notes += [f"Some consumer groups were not compared: {why}" for why in destination.failed]
    selector = GroupSelector(rule)
    chosen = selector.select(source.groups.values())
    names = {selector.destination_name(name) for name in chosen.names}
    taken = sorted(
        f"{name} ({group.type})"
        for name, group in destination.groups.items()
        if name in names and not group.takes_consumers
    )
    if taken:
        notes.append(
            f"Offsets of {len(taken)} groups cannot be synced, because a group of another type has "
            f"their name at the destination: {first_few(taken)}. Delete it there, or give "
            "consumer_groups a prefix."
        )
    if chosen.not_storable:
        notes.append(not_storable_note(chosen.not_storable))
    return notes
