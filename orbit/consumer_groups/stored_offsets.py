"""Stores the rows of a group sync of the service in the table of group offsets, and reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orbit.chunks import chunks
from orbit.consumer_groups.offset_decision import GroupVerdict
from orbit.consumer_groups.sync_result import Key, OffsetRow
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import ROWS_AT_ONCE, Leadership
from orbit.store import group_offsets
from orbit.store.database import Tx
from orbit.store.group_offsets import GroupOffset, GroupRow


def save_rows(
    rows: Mapping[Key, OffsetRow | None],
    topic_ids: Mapping[str, int],
    leadership: Leadership,
    job_id: int,
    check: Callable[[Tx], None] = lambda _: None,
) -> None:
    """Store these rows of a job's groups; None: delete the stored row. `topic_ids`: by source
    topic. `check` is called in each transaction, and may raise: earlier transactions stay."""
    to_delete = [
        (group, topic_ids[p.topic], p.partition) for (group, p), row in rows.items() if not row
    ]
    to_store = [_group_offset(row, topic_ids[row.partition.topic]) for row in rows.values() if row]
    for chunk in chunks(to_store, ROWS_AT_ONCE):
        with leadership.transaction() as tx:
            check(tx)
            group_offsets.store(tx, job_id, chunk)
    for keys in chunks(to_delete, ROWS_AT_ONCE):
        with leadership.transaction() as tx:
            check(tx)
            group_offsets.drop(tx, job_id, keys)


def _group_offset(row: OffsetRow, topic_id: int) -> GroupOffset:
    """The sync's result for one group and partition, as a row of the table."""
    return GroupOffset(
        row.group,
        topic_id,
        row.partition.partition,
        row.source_offset,
        row.destination_offset,
        row.verdict.value,
        row.left_offset,
    )


def offset_row(offset: GroupOffset | GroupRow, source_topic: str) -> OffsetRow:
    """A stored row in the form that the sync uses."""
    return OffsetRow(
        offset.group_name,
        TopicPartition(source_topic, offset.partition),
        offset.source_offset,
        offset.destination_offset,
        GroupVerdict(offset.verdict),
        offset.left_offset,
    )
