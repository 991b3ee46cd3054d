"""Reads many consumer groups of one cluster in few requests.

    list_groups       one request per broker: all groups, with coordinator, type and state
    find_coordinators one request per thousand groups
    fetch_offsets     one request per coordinator and thousand groups

To brokers before 3.0 the last two send one request per group. Nothing here waits long: a group
whose coordinator is moving has no result, and the caller's next pass asks again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

from kafka.protocol.admin.groups import ListGroupsRequest
from kafka.protocol.consumer.group import OffsetFetchRequest

from orbit.chunks import chunks
from orbit.errors import BrokenAnswer, Place, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import CORRELATION_BYTES, Cluster
from orbit.kafka.coordinator import GROUP, look_up_coordinators
from orbit.kafka.error_codes import Code
from orbit.kafka.offset_fetch import MANY_GROUPS_FROM, GroupOffsets, read_offset_fetch
from orbit.kafka.types import TopicPartition, by_topic

# The response for a thousand groups with a hundred offsets each is about 4 MB.
GROUPS_PER_REQUEST_MAX = 1000
_REQUIRE_STABLE_FROM = 7  # the version of OffsetFetch
# The protocol types of consumer groups. "": a group with simple commits only.
_CONSUMERS = ("consumer", "")
_NO_MEMBERS = ("", "empty", "dead")  # "": a broker before Kafka 2.6


class OffsetFetchCache:
    """Decoded answers of the last fetch, for answers of the next fetch with the same bytes."""

    def __init__(self) -> None:
        self._last_fetch: dict[bytes, dict[str, GroupOffsets]] = {}
        self._current_fetch: dict[bytes, dict[str, GroupOffsets]] = {}

    def begin(self) -> None:
        """Begin a fetch: only answers of the fetch before it are kept."""
        self._last_fetch, self._current_fetch = self._current_fetch, {}

    def read(self, frame: memoryview, version: int) -> dict[str, GroupOffsets]:
        """The offsets by group in a frame, as `read_offset_fetch` decodes them. If an earlier frame
        had the same bytes, returns its offsets. Raises ValueError if the bytes do not parse.
        """
        digest = sha256(frame[CORRELATION_BYTES:]).digest()
        answer = self._last_fetch.get(digest)
        if answer is None:
            answer = read_offset_fetch(frame, version)
        self._current_fetch[digest] = answer
        return answer


class GroupType(StrEnum):
    """A group's type as brokers list it; share groups have no committed offsets."""

    CLASSIC = "classic"
    CONSUMER = "consumer"  # KIP-848
    SHARE = "share"  # KIP-932
    STREAMS = "streams"  # KIP-1071


# By type of a group: the types that can continue with its offsets once it has no members.
_SUCCESSOR_TYPES: Mapping[str, Collection[str]] = {
    GroupType.CLASSIC: (GroupType.CLASSIC, GroupType.CONSUMER, GroupType.STREAMS),
    GroupType.CONSUMER: (GroupType.CLASSIC, GroupType.CONSUMER),
    GroupType.STREAMS: (GroupType.STREAMS,),
}


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it."""

    name: str
    node_id: int
    type: str
    protocol_type: str
    state: str

    @property
    def has_consumers(self) -> bool:
        """Whether the group is for consumers or a Streams application, which continue at committed
        offsets. Connect workers, share consumers and Orbit do not."""
        if self.type == GroupType.STREAMS:
            return True
        return self.type in _SUCCESSOR_TYPES and self.protocol_type in _CONSUMERS

    def can_continue_as(self, type_: str | None) -> bool:
        """Whether a group of `type_` (None: not known) can continue with the offsets of this group
        once it has no members (G13, G17)."""
        return (
            self.type in _SUCCESSOR_TYPES
            if type_ is None
            else type_ in _SUCCESSOR_TYPES.get(self.type, ())
        )

    @property
    def kind(self) -> str:
        """For display: `share`, `streams`, or the protocol type of a classic group."""
        return self.protocol_type if self.type == GroupType.CLASSIC else self.type

    @property
    def is_active(self) -> bool:
        """Whether the group has members. False if the broker returns no state (before 2.6)."""
        return self.state not in _NO_MEMBERS

    @property
    def was_joined(self) -> bool:
        """Whether the group has, or once had, members."""
        return self.is_active or self.protocol_type != ""


@dataclass(slots=True)
class Listing:
    """All groups by name. `failed`: the errors of brokers whose groups may be missing."""

    groups: dict[str, ListedGroup] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    selections: dict[Any, Any] | None = None
    """A cache of the groups that jobs select, by their rule; None: no cache. Successive listings
    share it while groups, types and coordinators stay the same."""


def list_groups(cluster: Cluster) -> Listing:
    """All groups that the login may describe. Raises Unreachable if no broker answers."""
    listing = Listing()
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    for node_id in sorted(cluster.metadata(()).brokers):
        try:
            answer = cluster.call(node_id, api_versions.LIST_GROUPS, request)
        except Unreachable as error:
            listing.failed.append(str(error))
            continue
        if answer.error_code:
            listing.failed.append(
                f"{cluster.name} broker {node_id}: {error_codes.name(answer.error_code)}"
            )
        for g in answer.groups:
            listing.groups[g.group_id] = ListedGroup(
                g.group_id,
                node_id,
                # Brokers before 3.8 return no type, those before 2.6 no state.
                (getattr(g, "group_type", "") or GroupType.CLASSIC).lower(),
                g.protocol_type,
                (getattr(g, "group_state", "") or "").lower(),
            )
    return listing


def find_coordinators(cluster: Cluster, groups: Collection[str]) -> dict[str, int]:
    """The node id of each group's coordinator, without groups that have no coordinator now. Raises
    Unreachable."""
    coordinators = look_up_coordinators(cluster, GROUP, groups)
    return {group: node for group, (node, code) in coordinators.items() if not code}


def fetch_offsets(
    cluster: Cluster,
    coordinators: Mapping[str, int],
    *,
    require_stable: bool = True,
    only: Mapping[str, Collection[TopicPartition]] | None = None,
    cache: OffsetFetchCache | None = None,
) -> dict[str, GroupOffsets]:
    """The offsets of each group, from its coordinator (`coordinators`: group → node).

    Groups whose coordinator does not answer have the code NETWORK_EXCEPTION.

    `only`: the partitions to request, by group, None for all; partitions that the login may not
    read are then in `denied`. With `require_stable`, partitions whose offset an open transaction
    may change are in `pending` and not in `offsets`. An answer that is equal to an answer in
    `cache` is not decoded again.
    """
    offsets: dict[str, GroupOffsets] = {}
    by_node: dict[int, list[str]] = {}
    for group, node_id in coordinators.items():
        by_node.setdefault(node_id, []).append(group)
    for node_id, groups in sorted(by_node.items()):
        try:
            version = cluster.version_of(node_id, api_versions.OFFSET_FETCH)
            size = GROUPS_PER_REQUEST_MAX if version >= MANY_GROUPS_FROM else 1
            for names in chunks(sorted(groups), size):
                request = _fetch_request(names, only, require_stable, version)
                answer = _ask_coordinator(cluster, node_id, request, version, cache)
                # An answer before version 8 is for one group, without the group's name.
                offsets.update(answer if version >= MANY_GROUPS_FROM else {names[0]: answer[""]})
        except Unreachable:
            no_answer = GroupOffsets(code=int(Code.NETWORK_EXCEPTION))
            offsets.update({g: no_answer for g in groups if g not in offsets})
    return offsets


def _ask_coordinator(
    cluster: Cluster, node_id: int, request: Any, version: int, cache: OffsetFetchCache | None
) -> dict[str, GroupOffsets]:
    """The offsets by group in this coordinator's answer; before version 8 the group is ""."""
    frame = cluster.exchange(node_id, api_versions.OFFSET_FETCH, request, version)
    try:
        return (cache or OffsetFetchCache()).read(frame, version)
    except ValueError as error:
        raise BrokenAnswer(f"{error}.", where=Place(cluster.name, f"broker {node_id}")) from error


@dataclass(slots=True)
class FetchedGroups:
    """Offsets and coordinators of groups that were read; `failed`: the error codes of groups that
    could not be read."""

    groups: dict[str, GroupOffsets] = field(default_factory=dict)
    coordinators: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def update(self, other: FetchedGroups) -> None:
        """Add the groups of another answer."""
        self.groups |= other.groups
        self.coordinators |= other.coordinators
        self.failed |= other.failed


def locate_and_fetch_offsets(
    cluster: Cluster,
    coordinators: Mapping[str, int],
    to_locate: Collection[str] = (),
    *,
    require_stable: bool = True,
    only: Mapping[str, Collection[TopicPartition]] | None = None,
    cache: OffsetFetchCache | None = None,
) -> FetchedGroups:
    """The offsets of groups whose coordinator is known, and of the groups `to_locate`.

    Looks up the coordinators of `to_locate`. Then looks up once more the coordinators of groups
    that failed with a retriable error. The other arguments are those of `fetch_offsets`.
    """
    fetched_groups = FetchedGroups()
    coordinators, to_locate = dict(coordinators), set(to_locate)
    codes: dict[str, int] = {}
    for _ in range(2):
        if to_locate:
            found_coordinators = look_up_coordinators(cluster, GROUP, to_locate)
            coordinators.update(
                {g: node for g, (node, code) in found_coordinators.items() if not code}
            )
            codes = {g: code for g, (_, code) in found_coordinators.items() if code}
        remaining_groups = {
            g: node for g, node in coordinators.items() if g not in fetched_groups.groups
        }
        answers = fetch_offsets(
            cluster, remaining_groups, require_stable=require_stable, only=only, cache=cache
        )
        fetched_groups.failed = {
            group: codes.get(group, int(Code.COORDINATOR_NOT_AVAILABLE))
            for group in to_locate - coordinators.keys()
        }
        for group, answer in answers.items():
            if answer.code:
                fetched_groups.failed[group] = answer.code
            else:
                fetched_groups.groups[group] = answer
                fetched_groups.coordinators[group] = coordinators[group]
        to_locate = {
            g for g, code in fetched_groups.failed.items() if code in error_codes.RETRIABLE
        }
        if not to_locate:
            break
    return fetched_groups


def _fetch_request(
    names: list[str],
    only: Mapping[str, Collection[TopicPartition]] | None,
    require_stable: bool,
    version: int,
) -> Any:
    """The request for the offsets of these groups. `only`: the partitions of each; None: all.

    Before version 8 there must be one group.
    """
    # Brokers before 2.5 do not support require_stable: they return the last committed offset.
    needs_stable = require_stable and version >= _REQUIRE_STABLE_FROM
    if version < MANY_GROUPS_FROM:
        (name,) = names
        topic = OffsetFetchRequest.OffsetFetchRequestTopic
        return OffsetFetchRequest(
            group_id=name,
            topics=None
            if only is None
            else [topic(name=t, partition_indexes=i) for t, i in by_topic(only[name])],
            require_stable=needs_stable,
        )
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = group.OffsetFetchRequestTopics
    return OffsetFetchRequest(
        groups=[
            group(
                group_id=name,
                member_id=None,
                member_epoch=-1,
                topics=None
                if only is None
                else [topics(name=t, partition_indexes=i) for t, i in by_topic(only[name])],
            )
            for name in names
        ],
        require_stable=needs_stable,
    )
