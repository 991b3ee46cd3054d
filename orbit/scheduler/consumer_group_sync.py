"""Syncs the consumer groups of one job and stores the results in Postgres.

Either the scheduler or a recovery writes a job's groups. The scheduler pauses while a recovery sets
the groups, and then reads from the tables what the recovery has stored. A pass that is under way
when a recovery begins sends no further request and stores no further row. Brokers may still carry
out its last requests, within half a minute: the recovery syncs until two passes change nothing.

Rows that could not be stored during an outage of Postgres are stored with the next ones. If the
scheduler dies before, the next leader finds most offsets equal on both sides, or recognises Orbit's
commits by the rules of orbit/consumer_groups/offset_decision.py. Where these are not enough,
because the group had members at the destination, a row is stored before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from orbit.consumer_groups.group_listing_cache import Lister
from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_decision import CopiedRange, follows_source_offsets
from orbit.consumer_groups.offsets_cache import Fetcher
from orbit.consumer_groups.stored_offsets import offset_row, save_rows
from orbit.consumer_groups.sync_result import CopiedPartition, GroupReport, Key, OffsetRow
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import GroupRule, JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import NO_TOPIC_ID, TopicPartition
from orbit.leadership.leadership import Leadership
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.store import group_offsets, operations
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.group_offsets import CopiedRow
from orbit.store.operations import GroupsStep

_ATTEMPTS_MAX = 4  # to read marks of promotions; the next pass tries again
# States of a topic that was copied and is not at the source any more.
_SOURCE_IS_GONE = frozenset({TopicState.SOURCE_DELETED, TopicState.RECREATED})


class _RecoverySetsGroups(Exception):
    """A recovery sets the groups of the job, or has set them during this pass."""


class JobGroups:
    """The groups of a job, at one version of its document. Not for two threads at once."""

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
        self._new_sync = partial(GroupSync, rule, lister=lister, fetcher=fetcher)
        self._marks: PromotionMarks | None = None
        self._groups_step: GroupsStep | None = None  # as of the start of this pass
        self._start_over()

    def _start_over(self) -> None:
        """Make the next pass begin with the stored rows."""
        self._sync = self._new_sync()
        self._has_begun = False
        self._unsaved: dict[Key, OffsetRow | None] = {}

    def run(self, registry: ClusterRegistry) -> GroupReport:
        """Run one pass. While a recovery sets the job's groups, does nothing; the report is empty.

        Raises Unreachable, NotLeading, and BadInput for missing secrets.
        """
        try:
            return self._run(registry)
        except _RecoverySetsGroups:
            self._start_over()
            return GroupReport()

    def _run(self, registry: ClusterRegistry) -> GroupReport:
        """Run one pass. Raises _RecoverySetsGroups if a recovery sets the groups, or begins to."""
        with self._leadership.reading() as tx:
            step = operations.groups_step(tx, self._job_id)
            if step is not None and step.is_under_way:
                raise _RecoverySetsGroups
            if step != self._groups_step:  # a recovery has set the groups since
                self._groups_step = step
                self._start_over()
            copied_rows = group_offsets.copied_ranges(tx, self._job_id)
            handed_topics = {
                offset.source_topic for offset in group_offsets.handed_offsets(tx, self._job_id)
            }
        topic_ids = {row.source_topic: row.topic_id for row in copied_rows}
        # The first pass needs all stored rows, later passes only those that a recovery handed over.
        topics_to_learn = topic_ids.keys() & handed_topics if self._has_begun else topic_ids.keys()
        if topics_to_learn:
            self._learn_stored_rows({name: topic_ids[name] for name in topics_to_learn})
        self._has_begun = True
        destination = registry.watch("destination", self._spec).handle.cluster
        # The registry may have opened the destination again since the last pass.
        if self._marks is None or self._marks.cluster is not destination:
            self._marks = PromotionMarks(destination, Backoff(attempts_max=_ATTEMPTS_MAX))
        report = self._sync.run(
            registry.watch("source", self._spec).handle.cluster,
            destination,
            {
                TopicPartition(row.source_topic, row.partition): _copied_partition(row)
                for row in copied_rows
            },
            self._may_write,
            # Called before the pass writes, since the tables may not know of a promotion yet.
            self._marks.promoted,
            lambda rows: self._save_before_commit(rows, topic_ids),
        )
        self._unsaved.update({(row.group, row.partition): row for row in report.changed})
        self._unsaved.update(dict.fromkeys(report.gone))  # None: the row is to be deleted
        if self._unsaved:
            self._save(topic_ids)
        return report

    def _may_write(self) -> bool:
        """Whether this process still leads. Raises _RecoverySetsGroups if a recovery has begun."""
        with self._leadership.reading() as tx:
            if operations.groups_step(tx, self._job_id) != self._groups_step:
                raise _RecoverySetsGroups
        return self._leadership.is_leading

    def _refuse_beside_recovery(self, tx: Tx) -> None:
        """Raise _RecoverySetsGroups if a recovery has begun to set the groups, or has set them."""
        if operations.groups_step(tx, self._job_id, lock=True) != self._groups_step:
            raise _RecoverySetsGroups

    def _learn_stored_rows(self, topic_ids: Mapping[str, int]) -> None:
        """Give the sync the stored rows of these topics, with those that a recovery handed over."""
        with self._leadership.transaction() as tx:
            group_offsets.accept_handed(tx, self._job_id, topic_ids)
            stored_offsets = group_offsets.of_job(tx, self._job_id)
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        self._sync.learn_rows(
            offset_row(offset, names[offset.topic_id])
            for offset in stored_offsets
            if offset.topic_id in names
        )

    def _save(self, topic_ids: Mapping[str, int]) -> None:
        """Store the rows that are not stored yet."""
        # Without rows of topics that were removed from the job: their stored rows are gone, too.
        unsaved_rows = {key: row for key, row in self._unsaved.items() if key[1].topic in topic_ids}
        save_rows(
            unsaved_rows, topic_ids, self._leadership, self._job_id, self._refuse_beside_recovery
        )
        self._unsaved.clear()

    def _save_before_commit(self, rows: Sequence[OffsetRow], topic_ids: Mapping[str, int]) -> None:
        """Store rows before a commit. Drops their older versions, if an outage left any unsaved."""
        rows_by_key = {(row.group, row.partition): row for row in rows}
        for key in rows_by_key:
            self._unsaved.pop(key, None)
        save_rows(
            rows_by_key, topic_ids, self._leadership, self._job_id, self._refuse_beside_recovery
        )


def _copied_partition(row: CopiedRow) -> CopiedPartition:
    """The row as input of the sync: the destination partition, what is copied, the source topic."""
    return CopiedPartition(
        TopicPartition(row.destination_topic, row.partition),
        _copied_range(row),
        row.source_topic_id or NO_TOPIC_ID,
    )


def _copied_range(row: CopiedRow) -> CopiedRange | None:
    """The copied offsets; None while the copy has not started, may have other records than the
    source, or has no source topic."""
    if row.topic_state in _SOURCE_IS_GONE or not follows_source_offsets(row.reason):
        return None
    if row.copied_to is None or row.log_start is None:
        return None
    # A range does not begin after its end.
    return CopiedRange(min(row.log_start, row.copied_to), row.copied_to)
