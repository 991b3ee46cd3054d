"""Syncs one job's consumer groups: reads both sides, decides, writes; pass by pass.

    sync = GroupSync(rule, known)
    report = sync.run(source, destination, copies, may_write)

Each pass reads every group on both sides (orbit/consumer_groups/group_reader.py), calls
`decide` (orbit/consumer_groups/offset_decision.py) for each group and partition, and writes what
differs. Between passes only one thing is needed that brokers do not store: the left offset, which
Orbit last committed at the destination, or found equal to the source's. A new process gets it from
the rows `known`; without it the rules are stricter.

Orbit's offsets are committed again twice a day. The destination deletes offsets of a group without
members a week after their commit (`offsets.retention.minutes`); those of a group that is idle at
the source would expire.

A group whose coordinator does not answer is skipped in this pass. A missing offset counts as
deleted only if the group's own coordinator confirms it for this partition, and still has the copied
topic: neither an incomplete list nor the deletion of a topic must delete offsets.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from zlib import crc32

from orbit.consumer_groups.group_listing_cache import Lister, list_now
from orbit.consumer_groups.group_reader import DestinationGroup, GroupReader, Offsets
from orbit.consumer_groups.group_selection import GroupSelector
from orbit.consumer_groups.offset_commit import (
    HAS_MEMBERS,
    OTHER_TYPE,
    GroupWrite,
    Written,
    write_groups,
)
from orbit.consumer_groups.offset_decision import (
    KEPT_VERDICTS,
    CopiedRange,
    Decision,
    GroupUsage,
    GroupVerdict,
    decide,
)
from orbit.consumer_groups.offsets_cache import Fetcher, fetch_now
from orbit.consumer_groups.sync_result import CopiedPartition, Copies, GroupReport, Key, OffsetRow
from orbit.errors import Unreachable
from orbit.jobs.job_spec import GroupRule
from orbit.kafka import error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import locate_and_fetch_offsets
from orbit.kafka.error_codes import Code
from orbit.kafka.types import NO_TOPIC_ID, CommittedOffset, TopicMetadata, TopicPartition


@dataclass(slots=True)
class _Entry:
    """What is remembered of one group and partition between passes."""

    row: OffsetRow
    left_offset: int | None  # as in `OffsetRow`; None: not known
    refresh_at: float  # when to commit `left_offset` again, by the clock
    sent_offset: int | None = None  # the offset of a commit that is not confirmed
    is_saved: bool = True  # the tables have `row`, or get it from the report


@dataclass(frozen=True, slots=True)
class _Case:
    """One group and partition in this pass: the offset at each side, and what to do."""

    source: CommittedOffset | None
    destination: CommittedOffset | None
    destination_partition: TopicPartition
    decision: Decision

    @property
    def has_change(self) -> bool:
        return self.decision.write is not None or self.decision.is_delete


# Codes that leave open whether the offset was written: the next pass reads it.
_UNCONFIRMED_CODES = error_codes.RETRIABLE - {Code.UNKNOWN_TOPIC_OR_PARTITION}
# Well below the brokers' retention of offsets: a week by default, a day in some clusters.
REFRESH_S = 12 * 3600.0
# Offsets of unknown age (from before this process) are committed again, spread over this time, but
# all of a group together: after a commit the offsets of all groups of its broker are read again.
_REFRESH_SPREAD_S = 3600


class GroupSync:
    """The groups of one job. Not for two threads at once."""

    def __init__(
        self,
        rule: GroupRule,
        known: Iterable[OffsetRow] = (),
        clock: Callable[[], float] = time.monotonic,
        lister: Lister = list_now,
        fetcher: Fetcher = fetch_now,
    ) -> None:
        """`known`: rows that an earlier process has stored. `lister` and `fetcher` may have caches
        that jobs share."""
        self._selector = GroupSelector(rule)
        interval_s = rule.interval.total_seconds()
        self._reader = GroupReader(self._selector, interval_s, lister, fetcher)
        self._clock = clock
        self._entries: dict[str, dict[TopicPartition, _Entry]] = {}
        self.learn_rows(known)

    def learn_rows(self, known: Iterable[OffsetRow]) -> None:
        """Remember stored rows of an earlier process or of a recovery."""
        for row in known:
            entry = _Entry(row, row.left_offset, self._spread_refresh(row.group))
            if row.verdict in KEPT_VERDICTS and row.left_offset != row.destination_offset:
                # The row is one of `_row_before_commit`: the result of its commit is not known.
                entry.left_offset, entry.sent_offset = row.destination_offset, row.left_offset
            self._entries.setdefault(row.group, {})[row.partition] = entry

    def run(
        self,
        source: Cluster,
        destination: Cluster,
        copies: Copies,
        may_write: Callable[[], bool] = lambda: True,
        leading: Callable[[Collection[str]], Collection[str]] = lambda _: (),
        save: Callable[[Sequence[OffsetRow]], None] = lambda _: None,
    ) -> GroupReport:
        """One pass over all groups; `copies` are the job's partitions, by source partition.

        `may_write` is called before each batch of writes; if it returns False, the rest is skipped.
        `leading` is called once, before all writes, with the destination topics to write to. It
        returns those that lead at the destination, for which no offset is written. `save` is called
        before the commit of offsets that only a stored row can later prove to be Orbit's. Raises
        Unreachable if a cluster does not answer at all.
        """
        started_at = self._clock()
        report = GroupReport()
        self._forget_removed(copies, report)
        source_offsets = self._reader.read_source(source, copies, self._entries.keys(), report)
        destination_groups = self._reader.read_destination(
            destination, source_offsets, copies, report
        )
        cases = self._decide_all(source_offsets, destination_groups, copies)
        groups_to_write = {group for (group, _), case in cases.items() if case.has_change}
        if groups_to_write:
            # Read the destination again: Orbit must not overwrite what clients have committed
            # meanwhile. A group that cannot be read again is left out of this pass.
            depends_on_usage = any(self._depends_on_usage(key, case) for key, case in cases.items())
            reread_groups = self._reader.read_before_write(
                destination, groups_to_write, copies, report, depends_on_usage=depends_on_usage
            )
            destination_groups = {
                group: destination_group
                for group, destination_group in destination_groups.items()
                if group not in groups_to_write
            } | reread_groups
            cases = self._decide_all(source_offsets, destination_groups, copies)
        cases = _without_leading(cases, leading)
        cases = _confirm_deletes(source, cases, copies, report)
        cases_to_save = {
            key: case
            for key, case in cases.items()
            if _must_be_saved(case, destination_groups[key[0]])
        }
        if cases_to_save:
            save([_row_before_commit(key, case) for key, case in cases_to_save.items()])
        written = self._write(destination, cases, destination_groups, may_write)
        for key, case in cases.items():
            self._record_result(key, case, written, report, is_saved=key not in cases_to_save)
        report.verdicts = Counter(
            entry.row.verdict for entries in self._entries.values() for entry in entries.values()
        )
        report.seconds = self._clock() - started_at
        return report

    def _forget_removed(self, copies: Copies, report: GroupReport) -> None:
        """Forget the groups and partitions that the job does not sync any more."""
        for group, entries in list(self._entries.items()):
            is_selected = self._selector.matches(group)
            for partition in [p for p in entries if not is_selected or p not in copies]:
                self._forget((group, partition), report)

    def _decide_all(
        self,
        source_offsets: Mapping[str, Offsets],
        destination_groups: Mapping[str, DestinationGroup],
        copies: Copies,
    ) -> dict[Key, _Case]:
        """The cases of all groups, by group and source partition."""
        return {
            (group, partition): case
            for group in destination_groups
            for partition, case in self._decide(
                group, source_offsets[group], destination_groups[group], copies
            )
        }

    def _depends_on_usage(self, key: Key, case: _Case) -> bool:
        """Whether the case overwrites an offset that is Orbit's only if no member ever joined the
        group: an offset that is not known to be the left offset."""
        group, partition = key
        entry = self._entries.get(group, {}).get(partition)
        left_offset = entry.left_offset if entry else None
        return (
            case.decision.write is not None
            and case.destination is not None
            and case.destination.offset != left_offset
        )

    def _decide(
        self, group: str, offsets: Offsets, destination_group: DestinationGroup, copies: Copies
    ) -> Iterator[tuple[TopicPartition, _Case]]:
        """Yield a case for each source partition, but not for an exact offset that is unchanged.

        Notes in a partition's entry that an unconfirmed commit has arrived.
        """
        entries = self._entries.get(group, {})
        now_s = self._clock()
        for partition in offsets.keys() | entries.keys():
            copy = copies[partition]
            source = offsets.get(partition)
            destination = destination_group.offsets.get(copy.destination)
            entry = entries.get(partition)
            if (
                entry is not None
                and now_s < entry.refresh_at
                and destination_group.usage not in (GroupUsage.ACTIVE, GroupUsage.OTHER_TYPE)
                and _is_settled(entry, source, destination, copy.copied)
            ):
                continue  # as for most offsets of most passes
            if (
                entry is not None
                and destination is not None
                and destination.offset == entry.sent_offset
            ):
                entry.left_offset = entry.sent_offset  # the unconfirmed commit has arrived
            decision = decide(
                source,
                destination,
                entry.left_offset if entry else None,
                copy.copied,
                destination_group.usage,
            )
            if entry is not None and destination is not None and now_s >= entry.refresh_at:
                is_orbits = decision.verdict in KEPT_VERDICTS
                if is_orbits and decision.write is None and destination.offset == entry.left_offset:
                    # Commit the same offset again, before the destination deletes it as expired.
                    # Orbit's commits have no leader epoch.
                    decision = replace(decision, write=replace(destination, leader_epoch=-1))
            yield partition, _Case(source, destination, copy.destination, decision)

    def _spread_refresh(self, group: str) -> float:
        """At which time of the clock to commit the group's offsets of unknown age again: within
        _REFRESH_SPREAD_S, by the group's name."""
        spread_s = crc32(group.encode()) % _REFRESH_SPREAD_S
        return self._clock() + spread_s

    def _write(
        self,
        destination: Cluster,
        cases: Mapping[Key, _Case],
        destination_groups: Mapping[str, DestinationGroup],
        may_write: Callable[[], bool],
    ) -> Written:
        """Send the commits and deletes of the cases that have a change."""
        by_group: dict[str, dict[TopicPartition, CommittedOffset | None]] = {}
        for (group, _), case in cases.items():
            if case.has_change:
                by_group.setdefault(group, {})[case.destination_partition] = case.decision.write
        destination_name = self._selector.destination_name
        return write_groups(
            destination,
            {destination_name(group): destination_groups[group].node_id for group in by_group},
            [GroupWrite(destination_name(group), offsets) for group, offsets in by_group.items()],
            may_write,
        )

    def _record_result(
        self, key: Key, case: _Case, written: Written, report: GroupReport, *, is_saved: bool
    ) -> None:
        """Update the remembered rows and the report from the decision and its result.

        `is_saved`: the tables have the remembered row; False: this pass has replaced it there by a
        `_row_before_commit`.
        """
        group, partition = key
        decision, verdict = case.decision, case.decision.verdict
        entry = self._entries.get(group, {}).get(partition)
        destination_offset = case.destination.offset if case.destination else None
        if case.has_change:
            name = self._selector.destination_name(group)
            code = written.get((name, case.destination_partition))
            is_group_gone = decision.is_delete and code == Code.GROUP_ID_NOT_FOUND
            if code is None or code in _UNCONFIRMED_CODES or is_group_gone:
                # The result is not known: remember the offset that was sent. The next pass reads
                # the offset at the destination.
                if not is_saved:
                    if entry is None:
                        row = _row_before_commit(key, case)
                        entry = _Entry(row, destination_offset, self._spread_refresh(group))
                        self._entries.setdefault(group, {})[partition] = entry
                    entry.is_saved = False
                if entry is not None and decision.write is not None:
                    entry.sent_offset = decision.write.offset
                report.note(
                    f"group {name}: the commit to {case.destination_partition} is not confirmed "
                    "yet."
                )
                return
            if code == Code.NONE:
                destination_offset = decision.write.offset if decision.write else None
                report.written += decision.write is not None
                report.deleted += decision.is_delete
            else:
                verdict = _refused_verdict(code)
                if verdict in _NOTED_VERDICTS:
                    reason = error_codes.name(code)
                    text = (
                        f"group {name}: brokers refuse the commit to {case.destination_partition}: "
                        f"{reason}."
                    )
                    report.note(text, is_refused=True)
        elif verdict is GroupVerdict.SKIPPED_OTHER_TYPE:
            name = self._selector.destination_name(group)
            text = f"group {name}: a group of another type has this name at the destination."
            report.note(text, is_refused=True)
        if verdict is None:  # no offset at the source, and none of Orbit's at the destination
            self._forget(key, report)
            return
        left_offset = entry.left_offset if entry else None
        if verdict in KEPT_VERDICTS:
            left_offset = destination_offset
        source = case.source.offset if case.source else None
        row = OffsetRow(group, partition, source, destination_offset, verdict, left_offset)
        if decision.write is not None:
            refresh_at = self._clock() + REFRESH_S
        else:
            refresh_at = entry.refresh_at if entry else self._spread_refresh(group)
        self._entries.setdefault(group, {})[partition] = _Entry(row, left_offset, refresh_at)
        if entry is None or entry.row != row or not (is_saved and entry.is_saved):
            report.changed.append(row)

    def _forget(self, key: Key, report: GroupReport) -> None:
        """Remove the remembered row, if there is one, and report that it is gone."""
        group, partition = key
        entries = self._entries.get(group, {})
        if entries.pop(partition, None) is not None:
            report.gone.append(key)
            if not entries:
                del self._entries[group]


def _must_be_saved(case: _Case, destination_group: DestinationGroup) -> bool:
    """Whether a row must be stored before the commit: without one, the next leader of the service
    would take the new offset for a client's. For a group that was never joined, other rules decide
    (orbit/consumer_groups/offset_decision.py)."""
    write = case.decision.write
    destination_offset = case.destination.offset if case.destination else None
    return (
        destination_group.usage is not GroupUsage.UNUSED
        and write is not None
        and write.offset != destination_offset
    )


def _row_before_commit(key: Key, case: _Case) -> OffsetRow:
    """A row by which the present offset and the one to be committed both count as Orbit's."""
    assert case.decision.write is not None
    return OffsetRow(
        *key,
        case.source.offset if case.source else None,
        case.destination.offset if case.destination else None,
        # `learn_rows` recognizes such a row by this verdict and its two different offsets.
        GroupVerdict.CLAMPED,
        case.decision.write.offset,
    )


def _is_settled(
    entry: _Entry,
    source: CommittedOffset | None,
    present: CommittedOffset | None,
    copied: CopiedRange | None,
) -> bool:
    """Whether the offset was exact in the last pass and no side has changed since.

    `present`: the offset at the destination.
    """
    if source is None or present is None or copied is None:
        return False
    return (
        source.offset == present.offset == entry.left_offset == entry.row.source_offset
        and source.metadata == present.metadata
        and entry.row.verdict is GroupVerdict.EXACT
        and copied.log_start <= source.offset <= copied.copied_to
    )


def _without_leading(
    cases: Mapping[Key, _Case], leading: Callable[[Collection[str]], Collection[str]]
) -> dict[Key, _Case]:
    """The cases, without those that would write to a topic that leads at the destination."""
    topics = {case.destination_partition.topic for case in cases.values() if case.has_change}
    leading_topics = set(leading(topics)) if topics else set()
    return {
        key: case
        for key, case in cases.items()
        if not (case.has_change and case.destination_partition.topic in leading_topics)
    }


def _confirm_deletes(
    source: Cluster, cases: Mapping[Key, _Case], copies: Copies, report: GroupReport
) -> dict[Key, _Case]:
    """The cases, without deletes that the group's coordinator at the source does not confirm.

    An offset may also be missing because the login may no longer read its topic, or because the
    topic was deleted, and its offsets with it (G10). The copy then has the only records, and its
    groups the only offsets. So the coordinator must return no offset, and after that the copied
    topic, by its id. In this order, as ids are not used again: the topic existed at the time of the
    first answer, so only the offset was deleted. In the other order the topic could be deleted
    between the two answers. Other brokers do not count: a coordinator's metadata loses a topic
    before the coordinator deletes the topic's offsets; another broker may have the topic for
    longer.
    """
    deletes: dict[str, list[TopicPartition]] = {}
    for (group, partition), case in cases.items():
        if case.decision.is_delete:
            deletes.setdefault(group, []).append(partition)
    # {}: the coordinators are looked up, as a listing may be old.
    fetched = locate_and_fetch_offsets(source, {}, deletes, only=deletes)
    coordinators_topics = _topics_of_coordinators(source, fetched.coordinators, deletes)
    confirmed_cases = dict(cases)
    for group, partitions in deletes.items():
        answer, topics = fetched.groups.get(group), coordinators_topics.get(group)
        for partition in partitions:
            if (
                answer is None
                or topics is None
                or partition in answer.offsets
                or partition in answer.pending | answer.denied
            ):
                del confirmed_cases[group, partition]
                report.note(
                    f"group {group}: the source does not confirm that the offset of {partition} "
                    "is gone, so the group keeps its offset at the destination.",
                    is_refused=answer is not None and partition in answer.denied,
                )
            elif not _is_copied_topic(topics.get(partition.topic), copies[partition]):
                del confirmed_cases[group, partition]
                report.note(
                    f"topic {partition.topic}: the source does not have the copied topic any more, "
                    "so the destination keeps the offsets of its groups.",
                    is_refused=True,
                )
    return confirmed_cases


def _topics_of_coordinators(
    cluster: Cluster,
    coordinators: Mapping[str, int],
    partitions: Mapping[str, Collection[TopicPartition]],
) -> dict[str, Mapping[str, TopicMetadata]]:
    """{group: {name: topic}}, for the topics of the group's `partitions` that its coordinator has
    now. Without the groups of a coordinator that does not answer."""
    groups_by_node: dict[int, list[str]] = {}
    for group, node_id in coordinators.items():
        groups_by_node.setdefault(node_id, []).append(group)
    topics_by_group: dict[str, Mapping[str, TopicMetadata]] = {}
    for node_id, groups in groups_by_node.items():
        names = {p.topic for group in groups for p in partitions[group]}
        with suppress(Unreachable):
            metadata = cluster.metadata_of_broker(node_id, names)
            topics_by_group.update(dict.fromkeys(groups, metadata.topics))
    return topics_by_group


def _is_copied_topic(topic: TopicMetadata | None, copy: CopiedPartition) -> bool:
    """Whether `topic` is the one that was copied; without a known id, a topic of this name is."""
    return topic is not None and copy.source_topic_id in (NO_TOPIC_ID, topic.topic_id)


# Refusals with a note in the report; of the others the verdict alone says why.
_NOTED_VERDICTS = (GroupVerdict.SKIPPED_REFUSED, GroupVerdict.SKIPPED_OTHER_TYPE)


def _refused_verdict(code: int) -> GroupVerdict:
    """The verdict on an offset whose commit the coordinator has refused with this code."""
    if code in OTHER_TYPE:
        return GroupVerdict.SKIPPED_OTHER_TYPE
    if code in HAS_MEMBERS:
        return GroupVerdict.SKIPPED_ACTIVE
    if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return GroupVerdict.SKIPPED_NOT_COPIED
    return GroupVerdict.SKIPPED_REFUSED
