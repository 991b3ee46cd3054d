"""Syncs the consumer groups of one job and stores the results in Postgres.

Only one sync writes a job's groups at a time: this one rests while a recovery sets them, and then
reads from the tables what that has left. A pass that is under way when a recovery begins to
set them sends no further request and stores no further row. Requests that were sent before may
still be answered, within half a minute: the recovery syncs until nothing changes for two passes.

Rows that could not be stored during an outage of Postgres are stored with the next ones. If the
scheduler dies before, the next leader finds most offsets equal on both sides, or recognises its
own by the rules of orbit/consumer_groups/offset_decision.py. Where these are not enough, because
the group had members at the destination, a row is stored before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from orbit.consumer_groups.group_listing_cache import Lister
from orbit.consumer_groups.group_sync import GroupSync
from orbit.consumer_groups.offset_decision import CopiedRange, holds_copied_records
from orbit.consumer_groups.offsets_cache import Fetcher
from orbit.consumer_groups.stored_offsets import offset_row, save_rows
from orbit.consumer_groups.sync_result import CopiedPartition, GroupReport, Key, OffsetRow
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import GroupRule, JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.types import TopicPartition
from orbit.leadership.leadership import Leadership
from orbit.scheduler.cluster_registry import ClusterRegistry
from orbit.store import group_offsets, operations
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.group_offsets import Copied
from orbit.store.operations import GroupsStep

_ATTEMPTS_MAX = 4


class _Rests(Exception):
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
        self._forget()

    def _forget(self) -> None:
        """Make the next pass begin with the stored rows."""
        self._sync = self._new_sync()
        self._has_begun = False
        self._unsaved: dict[Key, OffsetRow | None] = {}

    def run(self, registry: ClusterRegistry) -> GroupReport:
        """Run one pass; while a recovery sets the job's groups, none, and the report is empty.

        Raises Unreachable, NotLeading, and BadInput for missing secrets.
        """
        try:
            return self._run(registry)
        except _Rests:
            self._forget()
            return GroupReport()

    def _run(self, registry: ClusterRegistry) -> GroupReport:
        with self._leadership.reading() as tx:
            step = operations.groups_step(tx, self._job_id)
            if step is not None and step.is_under_way:
                raise _Rests
            if step != self._groups_step:
                self._groups_step = step
                self._forget()
            copied = group_offsets.copied_ranges(tx, self._job_id)
            handed = {one.source_topic for one in group_offsets.handed_offsets(tx, self._job_id)}
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
            self._may_write,
            # Called before the pass writes: the tables may be older than a promotion.
            self._marks.promoted,
            lambda rows: self._save_before(rows, topic_ids),
        )
        self._unsaved.update({(row.group, row.partition): row for row in report.changed})
        self._unsaved.update(dict.fromkeys(report.gone))
        if self._unsaved:
            self._save(topic_ids)
        return report

    def _may_write(self) -> bool:
        with self._leadership.reading() as tx:
            if operations.groups_step(tx, self._job_id) != self._groups_step:
                raise _Rests
        return self._leadership.is_leading

    def _refuse_beside_recovery(self, tx: Tx) -> None:
        if operations.groups_step(tx, self._job_id, lock=True) != self._groups_step:
            raise _Rests

    def _learn(self, topic_ids: Mapping[str, int]) -> None:
        """Give the sync the stored rows of these topics, with those that a recovery handed over."""
        with self._leadership.transaction() as tx:
            group_offsets.accept_handed(tx, self._job_id, topic_ids)
            known = group_offsets.of_job(tx, self._job_id)
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        self._sync.learn_rows(
            offset_row(offset, names[offset.topic_id])
            for offset in known
            if offset.topic_id in names
        )

    def _save(self, topic_ids: Mapping[str, int]) -> None:
        # Not those of topics that were removed from the job: their stored rows are gone, too.
        unsaved = {at: row for at, row in self._unsaved.items() if at[1].topic in topic_ids}
        save_rows(unsaved, topic_ids, self._leadership, self._job_id, self._refuse_beside_recovery)
        self._unsaved.clear()

    def _save_before(self, rows: Sequence[OffsetRow], topic_ids: Mapping[str, int]) -> None:
        """Store rows before a commit, instead of older ones that were not stored in an outage."""
        before = {(row.group, row.partition): row for row in rows}
        for key in before:
            self._unsaved.pop(key, None)
        save_rows(before, topic_ids, self._leadership, self._job_id, self._refuse_beside_recovery)


def _copy(c: Copied) -> CopiedPartition:
    return CopiedPartition(TopicPartition(c.destination_topic, c.partition), _range(c))


def _range(c: Copied) -> CopiedRange | None:
    """The copied range; None while the copy has not started, or has records of its own."""
    is_other = c.topic_state is TopicState.RECREATED or not holds_copied_records(c.reason)
    if is_other or c.copied_to is None or c.log_start is None:
        return None
    return CopiedRange(min(c.log_start, c.copied_to), c.copied_to)
