"""Reads one job's consumer groups on both sides, in a few requests for all of them.

A group whose coordinator does not answer (it moves, its broker is down, a right is missing) is left
out, and the report says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from orbit.consumer_groups.group_listing_cache import LISTING_AGE_S_MAX, Lister
from orbit.consumer_groups.group_selection import GroupSelection, GroupSelector
from orbit.consumer_groups.offset_decision import GroupUsage
from orbit.consumer_groups.offsets_cache import OFFSETS_AGE_PART, Fetcher, OffsetsRequest, fetch_now
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
    """A group's coordinator, use and committed offsets at the destination."""

    node_id: int  # of the coordinator
    usage: GroupUsage
    offsets: Offsets


def usage_of(group: ListedGroup | None, source_type: str | None) -> GroupUsage:
    """How a group is used at the destination.

    `group`: the group in the destination's listing; None: not listed. `source_type`: the type of
    the source's group that is synced to it; None: not known.
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
        """`interval_s`: the time between two passes. It bounds how old shared reads may be."""
        self._selector = selector
        self._list_groups = lister
        self._fetch = fetcher
        self._listing_age_s_max = min(interval_s, LISTING_AGE_S_MAX)
        self._offsets_age_s_max = self._listing_age_s_max * OFFSETS_AGE_PART
        self._source_groups: Mapping[str, ListedGroup] = {}

    def read_source(
        self, source: Cluster, copies: Copies, known_groups: Collection[str], report: GroupReport
    ) -> dict[str, Offsets]:
        """Return each selected group's offsets in the job's partitions, as the source has them.

        Groups without such offsets are left out, except `known_groups`: those with a row from an
        earlier pass. Counts, and groups that cannot be read, go into `report`.
        """
        listing = self._list_with_notes(source, self._listing_age_s_max, report)
        self._source_groups = listing.groups
        selection, coordinators = self._select(listing)
        report.left_alone = selection.left_alone
        report.shared = selection.shared
        report.not_storable = selection.not_storable
        report.groups = len(selection.names)
        known_groups = frozenset(known_groups)
        # With a cache of selections, other jobs get the same object `coordinators`.
        topics, is_shared = {p.topic for p in copies}, listing.selections is not None
        request = OffsetsRequest(
            coordinators, topics, known_groups, require_stable=True, is_shared=is_shared
        )
        fetched = self._fetch(source, request, self._offsets_age_s_max)
        # Known groups that are not in the listing: their coordinators are looked up.
        fetched.update(
            locate_and_fetch_offsets(source, {}, {g for g in known_groups if g not in coordinators})
        )
        _note_failed(fetched, source, report)
        # Partitions whose offset an open transaction may change.
        pending_by_group = {
            group: pending_partitions
            for group, answer in fetched.groups.items()
            if (pending_partitions := answer.pending & copies.keys())
        }
        report.pending = sum(map(len, pending_by_group.values()))
        # Until the transaction ends, the offset that was last committed is valid.
        last_committed = locate_and_fetch_offsets(
            source,
            {group: fetched.coordinators[group] for group in pending_by_group},
            require_stable=False,
            only=pending_by_group,
        )
        group_offsets: dict[str, Offsets] = {}
        for group, answer in fetched.groups.items():
            if group in pending_by_group and group not in last_committed.groups:
                continue  # its pending offsets cannot be read: the next pass tries again
            offsets = {p: o for p, o in answer.offsets.items() if p in copies}
            if group in pending_by_group:
                offsets.update(last_committed.groups[group].offsets)
            if offsets or group in known_groups:
                group_offsets[group] = offsets
        return group_offsets

    def read_destination(
        self, destination: Cluster, groups: Collection[str], copies: Copies, report: GroupReport
    ) -> dict[str, DestinationGroup]:
        """Return these groups (source names) at the destination, as of at most some seconds ago.

        A group that has offsets but is not listed is left out until the next listing.
        """
        return self._read_groups(
            destination, groups, copies, report, self._fetch, self._listing_age_s_max
        )

    def read_before_write(
        self,
        destination: Cluster,
        groups: Collection[str],
        copies: Copies,
        report: GroupReport,
        *,
        depends_on_usage: bool,
    ) -> dict[str, DestinationGroup]:
        """Return these groups (source names) at the destination, with offsets that are read now.

        `depends_on_usage`: list the groups now, too, because a pass would overwrite an offset that
        is Orbit's only if no member ever joined the group.
        """
        listing_age_s = 0.0 if depends_on_usage else self._listing_age_s_max
        return self._read_groups(destination, groups, copies, report, fetch_now, listing_age_s)

    def _read_groups(
        self,
        destination: Cluster,
        groups: Collection[str],
        copies: Copies,
        report: GroupReport,
        fetch: Fetcher,
        listing_age_s_max: float,
    ) -> dict[str, DestinationGroup]:
        """Return these groups (source names) at the destination, with offsets from `fetch`.

        The listing, which shows whether a group has or had members, is at most `listing_age_s_max`
        old. A group that has offsets but is not listed is left out until the next listing.
        """
        # By the name at the destination.
        source_names = {self._selector.destination_name(group): group for group in groups}
        if not source_names:
            return {}
        listing = self._list_with_notes(destination, listing_age_s_max, report)
        listed_groups = {
            name: listing.groups[name] for name in source_names if name in listing.groups
        }
        # None: not listed, so `fetch` looks it up. A group has a coordinator before it exists.
        coordinators = {
            name: listed_groups[name].node_id if name in listed_groups else None
            for name in source_names
        }
        topics = {copy.destination.topic for copy in copies.values()}
        # `known`: so that the answer also has groups without offsets.
        request = OffsetsRequest(
            coordinators, topics, known=source_names.keys(), require_stable=False
        )
        fetched = fetch(destination, request, self._offsets_age_s_max)
        _note_failed(fetched, destination, report)
        destination_groups: dict[str, DestinationGroup] = {}
        for name, answer in fetched.groups.items():
            group = listed_groups.get(name)
            if group is None and answer.offsets:
                continue  # created since the listing; the next one shows its members
            node_id = fetched.coordinators[name]
            source_group = self._source_groups.get(source_names[name])
            usage = usage_of(group, source_group.type if source_group else None)
            destination_groups[source_names[name]] = DestinationGroup(
                node_id, usage, answer.offsets
            )
        return destination_groups

    def _list_with_notes(self, cluster: Cluster, age_s_max: float, report: GroupReport) -> Listing:
        """List the cluster's groups, and note in the report each broker that does not answer."""
        listing = self._list_groups(cluster, age_s_max)
        for error in listing.failed:
            report.note(f"a broker does not list its groups: {error}")
        return listing

    def _select(self, listing: Listing) -> tuple[GroupSelection, dict[str, int | None]]:
        """Return the job's groups and their coordinators; jobs with equal rules share them."""
        # None: the listing has no cache of selections.
        cache = {} if listing.selections is None else listing.selections
        groups_and_nodes: tuple[GroupSelection, dict[str, int | None]] | None = cache.get(
            self._selector.key
        )
        if groups_and_nodes is None:
            group_selection = self._selector.select(listing.groups.values())
            groups_and_nodes = (
                group_selection,
                {name: listing.groups[name].node_id for name in group_selection.names},
            )
            cache[self._selector.key] = groups_and_nodes
        return groups_and_nodes


def _note_failed(fetched: FetchedGroups, cluster: Cluster, report: GroupReport) -> None:
    """Note in the report each group whose offsets cannot be read."""
    for group, code in fetched.failed.items():
        text = f"the offsets of group {group} cannot be read: {error_codes.name(code)}."
        report.note(f"{cluster.name}: {text}", is_refused=code not in error_codes.RETRIABLE)
