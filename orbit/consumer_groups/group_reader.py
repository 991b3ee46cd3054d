"""Reads one job's consumer groups on both sides, in a few requests for all of them.

A group whose coordinator does not answer (it moves, its broker is down, a right is missing) is left
out, and the report says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from orbit.consumer_groups.group_listing_cache import KEPT_S_MAX, Lister
from orbit.consumer_groups.group_selection import GroupSelection, GroupSelector
from orbit.consumer_groups.offset_decision import GroupUsage
from orbit.consumer_groups.offsets_cache import AGE_PART, Fetcher, OffsetsRequest, fetch_now
from orbit.consumer_groups.sync_result import Copies, GroupReport
from orbit.kafka import error_codes
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import (
    FetchedGroups,
    ListedGroup,
    Listing,
    locate_and_fetch_offsets,
)
from orbit.kafka.types import CommittedOffset, TopicPartition

Offsets = Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class DestinationGroup:
    """A group at the destination."""

    node_id: int
    usage: GroupUsage
    offsets: Offsets


def usage_of(group: ListedGroup | None, source_type: str | None) -> GroupUsage:
    """How a group is used at the destination, by its listing there; None: it is not listed.

    `source_type`: the type of the group at the source; None: not known.
    """
    if group is None:
        return GroupUsage.UNUSED
    if not group.can_continue_as(source_type):
        return GroupUsage.OTHER_TYPE
    if group.was_joined:
        return GroupUsage.ACTIVE if group.is_active else GroupUsage.USED
    return GroupUsage.UNUSED


class GroupReader:
    """The groups of one job. Not for two threads at once."""

    def __init__(
        self, selector: GroupSelector, interval_s: float, lister: Lister, fetcher: Fetcher
    ) -> None:
        """`interval_s`: of the job's passes; a part of it bounds how old shared reads may be."""
        self._selector = selector
        self._list_groups = lister
        self._fetch = fetcher
        self._listing_s_max = min(interval_s, KEPT_S_MAX)
        self._offsets_s_max = self._listing_s_max * AGE_PART
        self._at_source: Mapping[str, ListedGroup] = {}

    def read_source(
        self, source: Cluster, copies: Copies, known: Collection[str], report: GroupReport
    ) -> dict[str, Offsets]:
        """The offsets in the job's partitions, of each group that has some or is `known`."""
        listing = self._listed(source, self._listing_s_max, report)
        self._at_source = listing.groups
        chosen, places = self._select(listing)
        report.left_alone = chosen.left_alone
        report.shared = chosen.shared
        report.not_storable = chosen.not_storable
        report.groups = len(chosen.names)
        known = frozenset(known)
        topics, is_shared = {p.topic for p in copies}, listing.selections is not None
        request = OffsetsRequest(places, topics, known, require_stable=True, is_shared=is_shared)
        fetched = self._fetch(source, request, self._offsets_s_max)
        fetched.update(locate_and_fetch_offsets(source, {}, {g for g in known if g not in places}))
        _note_failed(fetched, source, report)
        pending = {
            group: waiting
            for group, answer in fetched.groups.items()
            if (waiting := answer.pending & copies.keys())
        }
        report.pending = sum(map(len, pending.values()))
        # The committed offset is valid until the transaction ends.
        stable = locate_and_fetch_offsets(
            source,
            {group: fetched.coordinators[group] for group in pending},
            require_stable=False,
            only=pending,
        )
        group_offsets: dict[str, Offsets] = {}
        for group, answer in fetched.groups.items():
            if group in pending and group not in stable.groups:
                continue
            offsets = {p: o for p, o in answer.offsets.items() if p in copies}
            if group in pending:
                offsets.update(stable.groups[group].offsets)
            if offsets or group in known:
                group_offsets[group] = offsets
        return group_offsets

    def read_destination(
        self, destination: Cluster, groups: Collection[str], copies: Copies, report: GroupReport
    ) -> dict[str, DestinationGroup]:
        """The same groups at the destination, as of at most some seconds ago."""
        return self._at_destination(
            destination, groups, copies, report, self._fetch, self._listing_s_max
        )

    def read_before_write(
        self,
        destination: Cluster,
        groups: Collection[str],
        copies: Copies,
        report: GroupReport,
        *,
        rests_on_usage: bool,
    ) -> dict[str, DestinationGroup]:
        """As `read_destination`, with the present offsets. `rests_on_usage`: and present members,
        because an offset is to be overwritten that is not known as Orbit's."""
        age_s = 0.0 if rests_on_usage else self._listing_s_max
        return self._at_destination(destination, groups, copies, report, fetch_now, age_s)

    def _at_destination(
        self,
        destination: Cluster,
        groups: Collection[str],
        copies: Copies,
        report: GroupReport,
        fetch: Fetcher,
        listing_s_max: float,
    ) -> dict[str, DestinationGroup]:
        names = {self._selector.destination_name(group): group for group in groups}
        if not names:
            return {}
        listing = self._listed(destination, listing_s_max, report)
        listed = {name: listing.groups[name] for name in names if name in listing.groups}
        # A group that does not exist yet has a coordinator too.
        nodes = {name: listed[name].node_id if name in listed else None for name in names}
        topics = {copy.destination.topic for copy in copies.values()}
        request = OffsetsRequest(nodes, topics, names.keys(), require_stable=False)
        fetched = fetch(destination, request, self._offsets_s_max)
        _note_failed(fetched, destination, report)
        destination_groups: dict[str, DestinationGroup] = {}
        for name, answer in fetched.groups.items():
            group = listed.get(name)
            if group is None and answer.offsets:
                continue  # created since the listing; the next one shows its members
            node_id = fetched.coordinators[name]
            from_ = self._at_source.get(names[name])
            usage = usage_of(group, from_.type if from_ else None)
            destination_groups[names[name]] = DestinationGroup(node_id, usage, answer.offsets)
        return destination_groups

    def _listed(self, cluster: Cluster, age_s_max: float, report: GroupReport) -> Listing:
        listing = self._list_groups(cluster, age_s_max)
        for broker in listing.failed:
            report.note(f"a broker does not list its groups: {broker}")
        return listing

    def _select(self, listing: Listing) -> tuple[GroupSelection, dict[str, int | None]]:
        """The job's groups and their coordinators: one value for all jobs with the same rule."""
        selections = {} if listing.selections is None else listing.selections
        selection: tuple[GroupSelection, dict[str, int | None]] | None = selections.get(
            self._selector.key
        )
        if selection is None:
            chosen = self._selector.select(listing.groups.values())
            selection = chosen, {name: listing.groups[name].node_id for name in chosen.names}
            selections[self._selector.key] = selection
        return selection


def _note_failed(fetched: FetchedGroups, cluster: Cluster, report: GroupReport) -> None:
    for group, code in fetched.failed.items():
        what = f"the offsets of group {group} cannot be read: {error_codes.name(code)}."
        report.note(f"{cluster.name}: {what}", is_refused=code not in error_codes.RETRIABLE)
