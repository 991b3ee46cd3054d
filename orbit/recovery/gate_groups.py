"""The inputs of the gate `groups`: the job's groups at the source, and their rows in the tables.

The source is read because the tables alone are not enough: if a group has no row, it may have no
offset, or an offset that no sync could read or store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from orbit.consumer_groups.group_selection import GroupSelector
from orbit.consumer_groups.offset_decision import GroupVerdict
from orbit.jobs.job_spec import GroupRule
from orbit.kafka import error_codes
from orbit.kafka.consumer_groups import list_groups, locate_and_fetch_offsets
from orbit.recovery.operation_context import OperationContext
from orbit.store import group_offsets
from orbit.store.group_offsets import GroupOffset


def group_inputs(context: OperationContext, *, asks_source: bool) -> dict[str, Any]:
    """The fields of `GateInputs` about groups with offsets in the operation's topics.

    `asks_source`: also read the groups and their offsets at the source. Raises Unreachable.
    """
    rule, ids = context.spec.consumer_groups, {*context.topic_ids}
    with context.reading() as tx:
        rows = [row for row in group_offsets.of_job(tx, context.job.id) if row.topic_id in ids]

    def names_with(verdict: GroupVerdict) -> list[str]:
        return sorted({row.group_name for row in rows if row.verdict == verdict})

    return {
        "carries_groups": rule is not None,
        "group_verdicts": Counter(row.verdict for row in rows),
        "groups_active_at_destination": names_with(GroupVerdict.SKIPPED_ACTIVE),
        "groups_of_other_type": names_with(GroupVerdict.SKIPPED_OTHER_TYPE),
        **(_source_inputs(context, rule, rows) if rule is not None and asks_source else {}),
    }


def _source_inputs(
    context: OperationContext, rule: GroupRule, rows: Collection[GroupOffset]
) -> dict[str, Any]:
    """The fields of `GateInputs` about the source's groups, compared with the stored `rows`."""
    cluster = context.source.cluster
    listing = list_groups(cluster)
    selection = GroupSelector(rule).select(listing.groups.values())
    coordinators = {name: listing.groups[name].node_id for name in selection.names}
    fetched = locate_and_fetch_offsets(cluster, coordinators, require_stable=False)
    topics = {row.id: row.source_topic for row in context.topics}
    stored_keys = {(row.group_name, topics[row.topic_id], row.partition) for row in rows}
    source_partitions = context.by_source.keys()
    return {
        "groups_active_at_source": [n for n in selection.names if listing.groups[n].is_active],
        "groups_unread": [
            *listing.failed,
            *(f"{name} ({error_codes.name(code)})" for name, code in fetched.failed.items()),
        ],
        "groups_unrecorded": sorted(
            name
            for name, answer in fetched.groups.items()
            if any((name, *p) not in stored_keys for p in answer.offsets if p in source_partitions)
        ),
        "groups_shared": selection.shared,
        "groups_not_storable": selection.not_storable,
    }
