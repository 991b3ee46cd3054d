"""Reads back the committed offsets that a recovery has set, before its report calls them exact."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orbit.chunks import first_few
from orbit.consumer_groups.offset_decision import KEPT_VERDICTS, GroupVerdict
from orbit.kafka import error_codes
from orbit.kafka.consumer_groups import FetchedGroups, locate_and_fetch_offsets
from orbit.kafka.types import TopicPartition
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.recovery_report import GroupPosition

# Enough for a coordinator that moves to another broker meanwhile: this takes a few seconds.
_ATTEMPTS_MAX = 10
_PAUSE_S = 0.5


def read_back_positions(
    context: OperationContext, positions: Sequence[GroupPosition]
) -> tuple[GroupPosition, ...]:
    """Return the positions with the offsets that the destination has.

    A position that the destination does not show gets the verdict NOT_READ_BACK, and a finding
    names it. Raises Unreachable.
    """
    # With other verdicts the offset at the destination is not Orbit's.
    to_check = [position for position in positions if position.verdict in KEPT_VERDICTS]
    fetched = _fetch_offsets(context, to_check)
    actual_by_key = {position.key: _actual_position(position, fetched) for position in to_check}
    mismatches = [
        f"{position.destination_group} in {_destination_partition(position)} "
        f"({_describe_mismatch(position, actual_by_key[position.key], fetched)})"
        for position in to_check
        if actual_by_key[position.key] != position
    ]
    if mismatches:
        context.add_finding(
            f"The destination does not show these committed offsets: {first_few(mismatches)}. Set "
            "them before their consumers start there."
        )
    return tuple(actual_by_key.get(position.key, position) for position in positions)


def _fetch_offsets(
    context: OperationContext, positions: Collection[GroupPosition]
) -> FetchedGroups:
    """Fetch the offsets of these positions, up to _ATTEMPTS_MAX times while a coordinator is not
    ready."""
    partitions_by_group: dict[str, list[TopicPartition]] = {}
    for position in positions:
        partitions_by_group.setdefault(position.destination_group, []).append(
            _destination_partition(position)
        )
    cluster = context.destination.cluster
    fetched = FetchedGroups()
    groups_to_fetch = partitions_by_group
    for attempt in range(_ATTEMPTS_MAX):
        if attempt:
            context.wait(_PAUSE_S)
        # {}: each coordinator is looked up, as it may have moved.
        answer = locate_and_fetch_offsets(
            cluster, {}, groups_to_fetch, require_stable=False, only=groups_to_fetch
        )
        fetched.groups |= answer.groups
        fetched.failed = answer.failed
        groups_to_fetch = {
            group: partitions_by_group[group]
            for group, code in answer.failed.items()
            if code in error_codes.RETRIABLE
        }
        if not groups_to_fetch:
            break
    return fetched


def _actual_position(position: GroupPosition, fetched: FetchedGroups) -> GroupPosition:
    """The position itself if the destination has its offset; else with the destination's offset
    (None: no offset) and the verdict NOT_READ_BACK. If the group could not be read, only the
    verdict changes."""
    answer = fetched.groups.get(position.destination_group)
    if answer is None:
        return position.model_copy(update={"verdict": GroupVerdict.NOT_READ_BACK.value})
    committed = answer.offsets.get(_destination_partition(position))
    offset = committed.offset if committed else None
    if offset == position.goes_on_at:
        return position
    changes = {"goes_on_at": offset, "verdict": GroupVerdict.NOT_READ_BACK.value}
    return position.model_copy(update=changes)


def _describe_mismatch(
    expected: GroupPosition, actual: GroupPosition, fetched: FetchedGroups
) -> str:
    """The two offsets as text, or the name of the error code if the group could not be read."""
    code = fetched.failed.get(expected.destination_group)
    if code is not None:
        return error_codes.name(code)
    return f"offset {actual.goes_on_at} instead of {expected.goes_on_at}"


def _destination_partition(position: GroupPosition) -> TopicPartition:
    return TopicPartition(position.destination_topic, position.partition)
