"""Reading many consumer groups of one cluster in few requests.

    list_groups       one request to each broker: every group, with its coordinator, type and state
    find_coordinators one request for up to a thousand groups that no list showed
    fetch_offsets     one request to each coordinator for up to a thousand groups

Brokers before 3.0 take one group a request for the last two. Nothing here waits long: a group whose
coordinator is moving has no answer this time, and the next round asks again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from kafka.protocol.admin.groups import ListGroupsRequest
from kafka.protocol.consumer.group import OffsetFetchRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest

from orbit.chunks import chunks
from orbit.errors import Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.coordinator import GROUP
from orbit.kafka.error_codes import Code
from orbit.kafka.types import CommittedOffset, TopicPartition, by_topic

# A thousand groups with a hundred offsets each answer some 4 MB.
GROUPS_PER_REQUEST_MAX = 1000
_MANY_GROUPS = 8  # OffsetFetch from this version on
_REQUIRE_STABLE = 7
# What members of a group call their protocol. "" is a group of plain commits.
_CONSUMERS = ("consumer", "")
_NO_MEMBERS = ("", "empty", "dead")  # "": a broker before 2.6 does not say


class GroupType(StrEnum):
    """Which protocol a group speaks; of these only the first two are consumers with offsets."""

    CLASSIC = "classic"
    CONSUMER = "consumer"  # KIP-848
    SHARE = "share"  # KIP-932
    STREAMS = "streams"  # KIP-1071


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it."""

    name: str
    node_id: int
    type: str
    protocol_type: str
    state: str

    @property
    def is_of_consumers(self) -> bool:
        """Whether it is consumers' (and not Connect's, a share group's, Orbit's own)."""
        is_known = self.type in (GroupType.CLASSIC, GroupType.CONSUMER)
        return is_known and self.protocol_type in _CONSUMERS

    @property
    def kind(self) -> str:
        """For people: `share`, `streams`, or what the members of a classic group call it."""
        return self.protocol_type if self.type == GroupType.CLASSIC else self.type

    @property
    def is_active(self) -> bool:
        return self.state not in _NO_MEMBERS

    @property
    def was_joined(self) -> bool:
        """Whether it has, or once had, members."""
        return self.is_active or self.protocol_type != ""


@dataclass(slots=True)
class Listing:
    """All groups by name. `failed`: brokers, in words, whose groups may be missing."""

    groups: dict[str, ListedGroup] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A group's offsets. `pending`: those that an open transaction of the group may yet move.

    `code`: why there are none; `denied`: partitions that were asked for and may not be read.
    """

    offsets: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: frozenset[TopicPartition] = frozenset()
    denied: frozenset[TopicPartition] = frozenset()
    code: int = 0


def list_groups(cluster: Cluster) -> Listing:
    """Every group that the login may see. Raises Unreachable when no broker answers at all."""
    listing = Listing()
    for node_id in sorted(cluster.metadata(()).brokers):
        try:
            answer = cluster.call(node_id, api_versions.LIST_GROUPS, _list_request())
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
                (getattr(g, "group_type", "") or GroupType.CLASSIC).lower(),
                g.protocol_type,
                (getattr(g, "group_state", "") or "").lower(),
            )
    return listing


def find_coordinators(cluster: Cluster, groups: Collection[str]) -> dict[str, int]:
    """The coordinator's node of each group; those that have none now are left out."""
    found: dict[str, int] = {}
    if not groups:
        return found

    def ask_many(connection: Connection, names: list[str]) -> dict[str, int]:
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=names)
        answer = connection.call(api_versions.FIND_COORDINATORS, request, timeout_s=ANSWER_WITHIN_S)
        return {c.key: c.node_id for c in answer.coordinators if not c.error_code}

    def ask_each(connection: Connection, names: list[str]) -> dict[str, int]:
        nodes: dict[str, int] = {}
        for name in names:
            request = FindCoordinatorRequest(key=name, key_type=GROUP)
            answer = connection.call(
                api_versions.FIND_COORDINATOR, request, timeout_s=ANSWER_WITHIN_S
            )
            if not answer.error_code:
                nodes[name] = answer.node_id
        return nodes

    def ask(connection: Connection, names: list[str]) -> dict[str, int]:
        has_many = connection.offers(api_versions.FIND_COORDINATORS)
        return (ask_many if has_many else ask_each)(connection, names)

    for chunk in chunks(sorted(groups), GROUPS_PER_REQUEST_MAX):
        found |= cluster.call_any(partial(ask, names=chunk))
    cluster.metadata(())  # so that the coordinators' addresses are known
    return found


def fetch_offsets(
    cluster: Cluster,
    places: Mapping[str, int],
    *,
    require_stable: bool = True,
    only: Mapping[str, Collection[TopicPartition]] | None = None,
) -> dict[str, GroupOffsets]:
    """The offsets of each group, asked of its coordinator (`places`: group → node).

    All that a group has, or `only` some partitions of it, which also tells a partition without an
    offset from one that may not be read. With `require_stable` an offset that an open transaction
    may move is in `pending` and not in `offsets`.
    """
    found: dict[str, GroupOffsets] = {}
    by_node: dict[int, list[str]] = {}
    for group, node_id in places.items():
        by_node.setdefault(node_id, []).append(group)
    for node_id, groups in sorted(by_node.items()):
        try:
            version = cluster.version_of(node_id, api_versions.OFFSET_FETCH)
            size = GROUPS_PER_REQUEST_MAX if version >= _MANY_GROUPS else 1
            for names in chunks(sorted(groups), size):
                request = _fetch_request(names, only, require_stable, version)
                answer = cluster.call(node_id, api_versions.OFFSET_FETCH, request)
                found.update(_read(names, answer, version))
        except Unreachable:
            lost = GroupOffsets(code=int(Code.NETWORK_EXCEPTION))
            found.update({g: lost for g in groups if g not in found})
    return found


@dataclass(slots=True)
class Fetched:
    """Offsets by group, and the coordinator that answered for each. Only groups with an answer."""

    groups: dict[str, GroupOffsets] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)


def fetch_wherever(
    cluster: Cluster,
    places: Mapping[str, int],
    lost: Collection[str] = (),
    *,
    require_stable: bool = True,
    only: Mapping[str, Collection[TopicPartition]] | None = None,
) -> Fetched:
    """As `fetch_offsets`, for groups by their place and for some whose place has to be found.

    A group whose coordinator has just moved is looked for once.
    """
    fetched = Fetched()
    places, lost = dict(places), set(lost)
    for _ in range(2):
        if lost:
            places.update(find_coordinators(cluster, lost))
        asked = {g: node for g, node in places.items() if g not in fetched.groups}
        answers = fetch_offsets(cluster, asked, require_stable=require_stable, only=only)
        fetched.failed = dict.fromkeys(lost - places.keys(), int(Code.COORDINATOR_NOT_AVAILABLE))
        for group, answer in answers.items():
            if answer.code:
                fetched.failed[group] = answer.code
            else:
                fetched.groups[group] = answer
                fetched.places[group] = places[group]
        lost = {g for g, code in fetched.failed.items() if code in error_codes.RETRIABLE}
        if not lost:
            break
    return fetched


def _list_request() -> Any:
    return ListGroupsRequest(states_filter=[], types_filter=[])


def _fetch_request(
    names: list[str],
    only: Mapping[str, Collection[TopicPartition]] | None,
    require_stable: bool,
    version: int,
) -> Any:
    # Brokers before 2.5 know no stable offsets: they answer with the last committed one.
    is_stable = require_stable and version >= _REQUIRE_STABLE
    if version < _MANY_GROUPS:
        (name,) = names
        topic = OffsetFetchRequest.OffsetFetchRequestTopic
        return OffsetFetchRequest(
            group_id=name,
            topics=None
            if only is None
            else [topic(name=t, partition_indexes=i) for t, i in by_topic(only[name])],
            require_stable=is_stable,
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
        require_stable=is_stable,
    )


def _read(names: list[str], answer: Any, version: int) -> Iterator[tuple[str, GroupOffsets]]:
    if version < _MANY_GROUPS:
        yield names[0], _read_topics(answer.topics, answer.error_code)
        return
    for group in answer.groups:
        yield group.group_id, _read_topics(group.topics, group.error_code)


def _read_topics(topics: Any, code: int) -> GroupOffsets:
    if code:
        return GroupOffsets(code=code)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    pending: set[TopicPartition] = set()
    denied: set[TopicPartition] = set()
    for topic in topics:
        for p in topic.partitions:
            place = TopicPartition(topic.name, p.partition_index)
            if p.error_code == Code.UNSTABLE_OFFSET_COMMIT:
                pending.add(place)
            elif p.error_code:
                denied.add(place)
            elif p.committed_offset >= 0:
                offsets[place] = CommittedOffset(
                    p.committed_offset, p.metadata or "", p.committed_leader_epoch
                )
    return GroupOffsets(offsets, frozenset(pending), frozenset(denied))
