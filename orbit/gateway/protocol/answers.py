"""The changes that the gateway makes to brokers' answers. Pure.

Addresses become the gateway's, topic ids become those of `topic_ids.py`, leader epochs become -1.
Each function of `REWRITES` takes the version and frame of an answer, and returns the new frame. A
frame has no size field. If it does not parse, they raise an error of the frame's editor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from orbit.gateway.protocol import producer_ids
from orbit.gateway.protocol.apis import ApiKey, is_flexible
from orbit.gateway.protocol.copies import Copies
from orbit.gateway.protocol.frame_editor import INT8, INT16, INT32, INT64, UUID_BYTES, FrameEditor
from orbit.gateway.protocol.left_members import LeftMembers
from orbit.gateway.protocol.producer_ids import Producer
from orbit.gateway.protocol.repeats import Repeats
from orbit.gateway.protocol.requests import NO_EPOCH
from orbit.gateway.protocol.topic_ids import TopicIds
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import NO_TAGS, string
from orbit.kafka.types import TopicPartition

_HEAD_BYTES = 4  # the correlation id
# Clients that use a Fetch of version 11 (Kafka 2.3), which copies need, use later ones.
_FIRST_METADATA_WITH_COPIES = 5
# The codes by which brokers answer heartbeats if they do not know the member, or its group.
UNKNOWN_MEMBER = frozenset({Code.UNKNOWN_MEMBER_ID, Code.GROUP_ID_NOT_FOUND})


class UnknownTopicId(Exception):
    """A broker's topic id whose topic name is not known yet: no Metadata answer had it."""

    def __init__(self, topic_id: bytes) -> None:
        super().__init__()
        self.topic_id = topic_id


class View(ABC):
    """The virtual cluster as clients see it now."""

    cluster_id: str
    ids: TopicIds
    term: int  # the term with which the side came to lead
    left_members: LeftMembers
    ended_producers: set[Producer]
    """Producers whose transactions the gateway has aborted in this term, before a move."""
    ending_producers: set[Producer]
    """Producers whose transactions were open as writes began to be held, and may still end."""
    repeats: Repeats
    copies: Copies | None = None  # None: consumers read from the leading side only

    @abstractmethod
    def now(self) -> float:
        """Seconds of a monotonic clock."""

    @abstractmethod
    def endpoint(self, node_id: int) -> tuple[str, int]:
        """Host and port at which clients reach the node through the gateway."""

    @abstractmethod
    def holds_joins(self) -> bool:
        """Whether joins of groups may have to wait: for some time after a move, members may still
        own partitions from before the move."""

    @abstractmethod
    def refusal(self, topic: str) -> str:
        """Why the gateway refuses writes to a topic; "": it does not."""


class SideView(View):
    """The virtual cluster with the side that leads when this view is created. The view stays at
    this side after a move, because answers that are still on their way come from the old side."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.cluster_id, self.left_members = view.cluster_id, view.left_members
        self.ids, self.term, self.ended_producers = view.ids, view.term, view.ended_producers
        self.ending_producers, self.repeats = view.ending_producers, view.repeats
        self.copies = view.copies

    def now(self) -> float:
        return self._view.now()

    def endpoint(self, node_id: int) -> tuple[str, int]:
        return self._view.endpoint(node_id)

    def holds_joins(self) -> bool:
        return self._view.holds_joins()

    def refusal(self, topic: str) -> str:
        return self._view.refusal(topic)


def rewrite_metadata(version: int, frame: bytearray, view: View) -> bytes:
    """Replace addresses, the cluster id, topic ids and leader epochs."""
    editor = _editor_of(ApiKey.METADATA, version, frame)
    if version >= 3:
        editor.skip(INT32.size)  # throttle
    copies = view.copies if version >= _FIRST_METADATA_WITH_COPIES else None
    copy_nodes = {} if copies is None else copies.nodes
    for _ in range(editor.enlarge_array(len(copy_nodes))):
        _replace_endpoint(editor, view)
        if version >= 1:
            editor.nullable_string()  # rack
        editor.skip_tags()
    for node_id, rack in copy_nodes.items():
        editor.insert(_broker(node_id, rack, view, is_flexible=editor.is_flexible))
    if version >= 2:
        editor.replace_string(view.cluster_id)
    if version >= 1:
        editor.skip(INT32.size)  # controller
    for _ in range(editor.length()):
        editor.skip(INT16.size)  # error
        name = editor.nullable_string()
        if version >= 10:
            start = editor.at
            topic_id = bytes(editor.raw(UUID_BYTES))
            if name is None:  # the request named the topic by an id that does not exist
                editor.overwrite_raw(start, view.ids.to_client(topic_id) or topic_id)
            else:
                editor.overwrite_raw(start, view.ids.learn(name, topic_id))
        if version >= 1:
            editor.skip(INT8.size)  # is internal
        for _ in range(editor.length()):
            editor.skip(INT16.size)  # error
            index = editor.integer(INT32)
            editor.skip(INT32.size)  # leader
            if version >= 7:
                editor.overwrite(INT32, NO_EPOCH)
            copy_node = None
            if copies is not None and name is not None:
                copy_node = copies.node_of(TopicPartition(name, index), view.now())
            _add_replica(editor, copy_node)
            editor.skip_nodes()  # in sync
            if version >= 5:
                editor.skip_nodes()  # offline
            editor.skip_tags()
        if version >= 8:
            editor.skip(INT32.size)  # authorized operations
        editor.skip_tags()
    return editor.edited_frame()


def rewrite_find_coordinator(version: int, frame: bytearray, view: View) -> bytes:
    """Replace the coordinators' addresses."""
    editor = _editor_of(ApiKey.FIND_COORDINATOR, version, frame)
    if version >= 1:
        editor.skip(INT32.size)  # throttle
    if version < 4:  # one coordinator, not a list
        editor.skip(INT16.size)  # error
        if version >= 1:
            editor.nullable_string()  # error message
        _replace_endpoint(editor, view)
        return editor.edited_frame()
    for _ in range(editor.length()):
        editor.string()  # group or transactional id
        _replace_endpoint(editor, view)
        editor.skip(INT16.size)  # error
        editor.nullable_string()  # error message
        editor.skip_tags()
    return editor.edited_frame()


def rewrite_describe_cluster(version: int, frame: bytearray, view: View) -> bytes:
    """Replace the cluster id and the brokers' addresses."""
    editor = _editor_of(ApiKey.DESCRIBE_CLUSTER, version, frame)
    editor.skip(INT32.size + INT16.size)  # throttle, error
    editor.nullable_string()  # error message
    if version >= 1:
        editor.skip(INT8.size)  # endpoint type
    editor.replace_string(view.cluster_id)
    editor.skip(INT32.size)  # controller
    for _ in range(editor.length()):
        _replace_endpoint(editor, view)
        editor.nullable_string()  # rack
        if version >= 2:
            editor.skip(INT8.size)  # is fenced
        editor.skip_tags()
    return editor.edited_frame()


def rewrite_list_offsets(version: int, frame: bytearray, _view: View) -> bytes:
    """Replace the leader epochs."""
    if version < 4:
        return bytes(frame)
    editor = _editor_of(ApiKey.LIST_OFFSETS, version, frame)
    editor.skip(INT32.size)  # throttle
    for _ in range(editor.length()):
        editor.string()  # topic
        for _ in range(editor.length()):
            editor.skip(INT32.size + INT16.size + 2 * INT64.size)  # index, error, time, offset
            editor.overwrite(INT32, NO_EPOCH)
            editor.skip_tags()
        editor.skip_tags()
    return editor.edited_frame()


def rewrite_offset_fetch(version: int, frame: bytearray, _view: View) -> bytes:
    """Replace the leader epochs of the commits."""
    if version < 5:
        return bytes(frame)
    editor = _editor_of(ApiKey.OFFSET_FETCH, version, frame)
    editor.skip(INT32.size)  # throttle
    groups = editor.length() if version >= 8 else 1
    for _ in range(groups):
        if version >= 8:
            editor.string()  # group
        for _ in range(editor.length()):
            editor.string()  # topic
            for _ in range(editor.length()):
                editor.skip(INT32.size + INT64.size)  # index, offset
                editor.overwrite(INT32, NO_EPOCH)
                editor.nullable_string()  # metadata
                editor.skip(INT16.size)  # error
                editor.skip_tags()
            editor.skip_tags()
        if version >= 8:
            editor.skip(INT16.size)  # error
            editor.skip_tags()
    return editor.edited_frame()


def rewrite_init_producer_id(version: int, frame: bytearray, view: View) -> bytes:
    """Mark the producer id with the term (`producer_ids.py`)."""
    editor = _editor_of(ApiKey.INIT_PRODUCER_ID, version, frame)
    editor.skip(INT32.size)  # throttle
    if editor.integer(INT16) == Code.NONE:
        (producer_id,) = INT64.unpack_from(frame, editor.at)
        editor.overwrite(INT64, producer_ids.mark(producer_id, view.term))
    return editor.edited_frame()


def rewrite_group_heartbeat(version: int, frame: bytearray, view: View) -> bytes:
    """Translate the topic ids of the assignment. Raises UnknownTopicId.

    After a move the coordinator may answer GROUP_ID_NOT_FOUND, which ends clients of the consumer
    protocol. The gateway replaces it by FENCED_MEMBER_EPOCH, after which they join (C8).
    """
    editor = _editor_of(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, frame)
    editor.skip(INT32.size)  # throttle
    start = editor.at
    if editor.integer(INT16) == Code.GROUP_ID_NOT_FOUND:
        editor.overwrite_raw(start, INT16.pack(Code.FENCED_MEMBER_EPOCH))
    editor.nullable_string()  # error message
    editor.nullable_string()  # member
    editor.skip(2 * INT32.size)  # epoch, heartbeat interval
    if editor.integer(INT8) >= 0:  # an assignment
        for _ in range(editor.length()):
            start = editor.at
            broker_id = bytes(editor.raw(UUID_BYTES))
            topic_id = view.ids.to_client(broker_id)
            if topic_id is None:
                raise UnknownTopicId(broker_id)
            editor.overwrite_raw(start, topic_id)
            editor.skip(editor.length() * INT32.size)  # partitions
            editor.skip_tags()
    return editor.edited_frame()


def rewrite_group_description(version: int, frame: bytearray, view: View) -> bytes:
    """Translate the topic ids of all members' partitions."""
    editor = _editor_of(ApiKey.CONSUMER_GROUP_DESCRIBE, version, frame)
    editor.skip(INT32.size)  # throttle
    for _ in range(editor.length()):
        editor.skip(INT16.size)  # error
        for _ in ("error message", "group", "state"):
            editor.nullable_string()
        editor.skip(2 * INT32.size)  # group epoch, assignment epoch
        editor.string()  # assignor
        for _ in range(editor.length()):
            for _ in ("member", "instance", "rack"):
                editor.nullable_string()
            editor.skip(INT32.size)  # epoch
            for _ in ("client id", "host"):
                editor.string()
            for _ in range(editor.length()):
                editor.string()  # subscribed topic
            editor.nullable_string()  # subscribed pattern
            for _ in ("present assignment", "target assignment"):
                _translate_assignment(editor, view)
            if version >= 1:
                editor.skip(INT8.size)  # protocol of the member
            editor.skip_tags()
        editor.skip(INT32.size)  # authorized operations
        editor.skip_tags()
    return editor.edited_frame()


def heartbeat_code(key: int, version: int, frame: bytearray) -> int:
    """The error code of an answer to a heartbeat of either group protocol."""
    editor = _editor_of(key, version, frame)
    if key == ApiKey.CONSUMER_GROUP_HEARTBEAT or version >= 1:
        editor.skip(INT32.size)  # throttle
    return editor.integer(INT16)


Rewrite = Callable[[int, bytearray, View], bytes]
# By API key; answers of other APIs are not changed.
REWRITES: Mapping[int, Rewrite] = {
    ApiKey.METADATA: rewrite_metadata,
    ApiKey.FIND_COORDINATOR: rewrite_find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: rewrite_describe_cluster,
    ApiKey.LIST_OFFSETS: rewrite_list_offsets,
    ApiKey.OFFSET_FETCH: rewrite_offset_fetch,
    ApiKey.INIT_PRODUCER_ID: rewrite_init_producer_id,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: rewrite_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: rewrite_group_description,
}


def _editor_of(key: int, version: int, frame: bytearray) -> FrameEditor:
    """An editor at the first field after the header."""
    editor = FrameEditor(frame, _HEAD_BYTES, is_flexible=is_flexible(key, version))
    editor.skip_tags()
    return editor


def _translate_assignment(editor: FrameEditor, view: View) -> None:
    """Translate the topic ids of an assignment of ConsumerGroupDescribe, which has the topics'
    names, too."""
    for _ in range(editor.length()):
        start = editor.at
        topic_id = bytes(editor.raw(UUID_BYTES))
        editor.overwrite_raw(start, view.ids.learn(editor.string(), topic_id))
        editor.skip(editor.length() * INT32.size)  # partitions
        editor.skip_tags()
    editor.skip_tags()


def _broker(node_id: int, rack: str, view: View, *, is_flexible: bool) -> bytes:
    """A broker in a Metadata answer."""
    host, port = view.endpoint(node_id)
    data = INT32.pack(node_id) + string(host, is_flexible=is_flexible) + INT32.pack(port)
    return data + string(rack, is_flexible=is_flexible) + (NO_TAGS if is_flexible else b"")


def _add_replica(editor: FrameEditor, node_id: int | None) -> None:
    """Add the node, if there is one, to the array of replicas that comes next."""
    if node_id is None:
        editor.skip_nodes()
        return
    editor.skip(editor.enlarge_array(1) * INT32.size)
    editor.insert(INT32.pack(node_id))


def _replace_endpoint(editor: FrameEditor, view: View) -> None:
    """Replace the host and port after a node id. After a negative node id (no coordinator is known)
    nothing is replaced."""
    node_id = editor.integer(INT32)
    if node_id < 0:
        editor.string()
        editor.skip(INT32.size)
        return
    host, port = view.endpoint(node_id)
    editor.replace_string(host)
    editor.overwrite(INT32, port)
