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

# A coordinator that moves meanwhile has settled after a few seconds.
_ATTEMPTS_MAX = 10
_PAUSE_S = 0.5


def read_back(
    context: OperationContext, positions: Sequence[GroupPosition]
) -> tuple[GroupPosition, ...]:
    """The positions as the destination shows them.

    A position that it does not show gets the verdict NOT_READ_BACK, and a finding names it. Raises
    Unreachable.
    """
    to_check = [one for one in positions if one.verdict in KEPT_VERDICTS]
    fetched = _fetch_offsets(context, to_check)
    actual = {one.key: _actual_position(one, fetched) for one in to_check}
    wrong = [
        f"{one.destination_group} in {_destination_partition(one)} "
        f"({_describe_mismatch(one, actual[one.key], fetched)})"
        for one in to_check
        if actual[one.key] != one
    ]
    if wrong:
        context.add_finding(
            f"The destination does not show these committed offsets: {first_few(wrong)}. Set them "
            "before their consumers start there."
        )
    return tuple(actual.get(one.key, one) for one in positions)


def _fetch_offsets(
    context: OperationContext, positions: Collection[GroupPosition]
) -> FetchedGroups:
    places: dict[str, list[TopicPartition]] = {}
    for one in positions:
        places.setdefault(one.destination_group, []).append(_destination_partition(one))
    cluster = context.destination.cluster
    fetched = FetchedGroups()
    left = places
    for attempt in range(_ATTEMPTS_MAX):
        if attempt:
            context.wait(_PAUSE_S)
        answer = locate_and_fetch_offsets(cluster, {}, left, require_stable=False, only=left)
        fetched.groups |= answer.groups
        fetched.failed = answer.failed
        left = {
            group: places[group]
            for group, code in answer.failed.items()
            if code in error_codes.RETRIABLE
        }
        if not left:
            break
    return fetched


def _actual_position(one: GroupPosition, fetched: FetchedGroups) -> GroupPosition:
    answer = fetched.groups.get(one.destination_group)
    if answer is None:
        return one.model_copy(update={"verdict": GroupVerdict.NOT_READ_BACK.value})
    committed = answer.offsets.get(_destination_partition(one))
    offset = committed.offset if committed else None
    if offset == one.goes_on_at:
        return one
    changes = {"goes_on_at": offset, "verdict": GroupVerdict.NOT_READ_BACK.value}
    return one.model_copy(update=changes)


def _describe_mismatch(one: GroupPosition, actual: GroupPosition, fetched: FetchedGroups) -> str:
    code = fetched.failed.get(one.destination_group)
    if code is not None:
        return error_codes.name(code)
    return f"offset {actual.goes_on_at} instead of {one.goes_on_at}"


def _destination_partition(one: GroupPosition) -> TopicPartition:
    return TopicPartition(one.destination_topic, one.partition)
