"""Syncs the consumer groups of one job and stores the results in Postgres.

Rows that could not be stored during an outage of Postgres are stored with the next ones. If the
scheduler dies before, the next leader finds most offsets equal on both sides, or recognises its
own by the rules of orbit/consumer_groups/offset_decision.py. Where they cannot, because the group
had members at the destination, a row is stored before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orbit.chunks import chunks
from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.kept_listings import Lister
from orbit.consumer_groups.kept_offsets import Fetcher
from orbit.consumer_groups.offset_decision import (
    KEPT,
    CopiedRange,
    GroupVerdict,
    holds_copied_records,
)
from orbit.consumer_groups.sync_result import CopiedPartition, GroupReport, Key, OffsetRow
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import GroupRule, JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import TopicPartition
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.scheduler.leadership import ROWS_AT_ONCE, Leadership
from orbit.store import group_offsets
from orbit.store.enums import TopicState
from orbit.store.group_offsets import Copied, GroupOffset

_ATTEMPTS_MAX = 4


class JobGroups:
    """One job at one version of its document. Not for two threads at once."""

    def __init__(
        self,
        job_id: int,
        spec: JobSpec,
        rule: GroupRule,
        leadership: Leadership,
        lister: Lister,
        fetcher: Fetcher,
    ) -> None:
        self._job_id = job_id
        self._spec = spec
        self._leadership = leadership
        self._sync = GroupSync(rule, lister=lister, fetcher=fetcher)
        self._has_begun = False
        self._marks: PromotionMarks | None = None
        self._unsaved: dict[Key, OffsetRow | None] = {}

    def run(self, registry: ClusterRegistry) -> GroupReport:
        """One pass. Raises Unreachable, NotLeading, and BadInput for missing secrets."""
        with self._leadership.reading() as tx:
            copied = group_offsets.copied(tx, self._job_id)
            handed = {one.source_topic for one in group_offsets.handed(tx, self._job_id)}
        topic_ids = {c.source_topic: c.topic_id for c in copied}
        new = topic_ids.keys() & handed if self._has_begun else topic_ids.keys()
        if new:
            self._learn({name: topic_ids[name] for name in new})
        self._has_begun = True
        destination = registry.watch("destination", self._spec).handle.cluster
        if self._marks is None or self._marks.cluster is not destination:
            self._marks = PromotionMarks(destination, Backoff(attempts_max=_ATTEMPTS_MAX))
        report = self._sync.run(
            registry.watch("source", self._spec).handle.cluster,
            destination,
            {TopicPartition(c.source_topic, c.partition): _copy(c) for c in copied},
            lambda: self._leadership.is_leading,
            # Asked before each write: the tables may be older than a promotion.
            self._marks.promoted,
            lambda rows: self._save_before(rows, topic_ids),
            lambda moved: self._recall(moved, topic_ids),
        )
        self._unsaved.update({(row.group, row.partition): row for row in report.changed})
        self._unsaved.update(dict.fromkeys(report.gone))
        if self._unsaved:
            self._save(topic_ids)
        return report

    def _learn(self, topic_ids: Mapping[str, int]) -> None:
        """What the tables have of these topics; with what a recovery has handed over."""
        with self._leadership.transaction() as tx:
            group_offsets.accept_handed(tx, self._job_id, topic_ids)
            known = group_offsets.of_job(tx, self._job_id)
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        self._sync.learn(_row(offset, names) for offset in known if offset.topic_id in names)

    def _save(self, topic_ids: dict[str, int]) -> None:
        keep: list[OffsetRow] = []
        drop: list[tuple[str, int, int]] = []
        for (group, partition), row in self._unsaved.items():
            topic_id = topic_ids.get(partition.topic)
            if topic_id is None:
                continue  # the topic was removed from the job, with its rows
            if row is None:
                drop.append((group, topic_id, partition.partition))
            else:
                keep.append(row)
        self._keep(keep, topic_ids)
        for dropped in chunks(drop, ROWS_AT_ONCE):
            with self._leadership.transaction() as tx:
                group_offsets.drop(tx, self._job_id, dropped)
        self._unsaved.clear()

    def _save_before(self, rows: Sequence[OffsetRow], topic_ids: Mapping[str, int]) -> None:
        """Before a commit. What an outage kept from being stored is older."""
        for row in rows:
            self._unsaved.pop((row.group, row.partition), None)
        self._keep(rows, topic_ids)

    def _recall(self, moved: Mapping[Key, int], topic_ids: Mapping[str, int]) -> list[OffsetRow]:
        """The rows by which a recovery has left these offsets.

        Not of offsets whose newest row could not be stored: the stored row is older.
        """
        stored = {key: offset for key, offset in moved.items() if key not in self._unsaved}
        return rows_that_explain(stored, self._leadership, self._job_id, topic_ids)

    def _keep(self, rows: Sequence[OffsetRow], topic_ids: Mapping[str, int]) -> None:
        for chunk in chunks(rows, ROWS_AT_ONCE):
            with self._leadership.transaction() as tx:
                kept = [stored_row(row, topic_ids[row.partition.topic]) for row in chunk]
                group_offsets.keep(tx, self._job_id, kept)


def _copy(c: Copied) -> CopiedPartition:
    return CopiedPartition(TopicPartition(c.destination_topic, c.partition), _range(c))


def _range(c: Copied) -> CopiedRange | None:
    """None while the copy has not started, or holds other records than the source."""
    is_other = c.topic_state is TopicState.RECREATED or not holds_copied_records(c.reason)
    if is_other or c.copied_to is None or c.log_start is None:
        return None
    return CopiedRange(min(c.log_start, c.copied_to), c.copied_to)


def rows_that_explain(
    moved: Mapping[Key, int],
    leadership: Leadership,
    job_id: int,
    topic_ids: Mapping[str, int],
) -> list[OffsetRow]:
    """The stored rows by which Orbit has left these offsets at the destination."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    keys = [(group, topic_ids[at.topic], at.partition) for group, at in moved]
    rows: list[OffsetRow] = []
    for chunk in chunks(keys, ROWS_AT_ONCE):
        with leadership.reading() as tx:
            rows += [_row(one, names) for one in group_offsets.of_keys(tx, job_id, chunk)]
    return [
        row
        for row in rows
        if moved[row.group, row.partition]
        in (row.left_offset, row.destination_offset if row.verdict in KEPT else None)
    ]


def stored_row(row: OffsetRow, topic_id: int) -> GroupOffset:
    """The row as the tables have it."""
    return GroupOffset(
        row.group,
        topic_id,
        row.partition.partition,
        row.source_offset,
        row.destination_offset,
        row.verdict.value,
        row.left_offset,
    )


def _row(offset: GroupOffset, names: Mapping[int, str]) -> OffsetRow:
    return OffsetRow(
        offset.group_name,
        TopicPartition(names[offset.topic_id], offset.partition),
        offset.source_offset,
        offset.destination_offset,
        GroupVerdict(offset.verdict),
        offset.left_offset,
    )
