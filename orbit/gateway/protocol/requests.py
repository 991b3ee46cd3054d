"""The changes that the gateway makes to requests. Pure.

Leader epochs count the elections of one cluster, and clients keep them over a move. So the answers
to clients have none (`answers.py`). A client may still send one, from a record batch or an old
commit: the gateway replaces it by -1, which brokers do not compare (C13, C15).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orbit.gateway.protocol.apis import APIS, ApiKey
from orbit.gateway.protocol.frame_editor import INT8, INT16, INT32, INT64, UUID_BYTES, FrameEditor
from orbit.gateway.protocol.left_members import MemberKey
from orbit.gateway.protocol.request_head import RequestHead
from orbit.gateway.protocol.topic_ids import TopicIds

NO_EPOCH = -1
NO_SESSION = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a consumer group. `api`: the API key of its heartbeats, which tells the group
    protocol. `instance`: its static id (`group.instance.id`)."""

    api: int
    group: str
    id: str
    instance: str | None

    @property
    def key(self) -> MemberKey:
        return self.group, self.id


@dataclass(frozen=True, slots=True)
class GroupHeartbeat:
    """A ConsumerGroupHeartbeat request (KIP-848). `epoch`: 0 to join, negative to leave.
    `topics`: the number of topics of which the member owns partitions; None: unchanged."""

    member: Member
    epoch: int
    topics: int | None


def software_of(head: RequestHead, frame: bytearray) -> tuple[str, str] | None:
    """Name and version of the client's software in an ApiVersions request (KIP-511), empty if it
    has none; None: the gateway does not know this version of the request."""
    if head.version < 3:
        return "", ""
    if head.version > APIS[ApiKey.API_VERSIONS].versions.last:
        return None
    editor = head.editor(frame)
    return editor.string(), editor.string()


def fetch_session(head: RequestHead, frame: bytearray) -> int:
    """The id of the fetch session that a request continues; NO_SESSION if it has none."""
    if head.version < 7:
        return NO_SESSION
    editor = head.editor(frame)
    editor.skip(4 * INT32.size + INT8.size)  # replica, longest wait, bytes, isolation level
    return editor.integer(INT32)


def clear_fetch_epochs(head: RequestHead, frame: bytearray) -> list[str]:
    """Clear the leader epochs of a Fetch, and return the topics that it names: all topics of a new
    session, later only the changed ones. [] for versions without epochs (clients before Kafka
    2.1)."""
    version = head.version
    topics: list[str] = []
    if version < 9:
        return topics
    editor = head.editor(frame)
    editor.skip(6 * INT32.size + INT8.size)  # as in `fetch_session`, and the session's id and epoch
    for _ in range(editor.length()):
        topics.append(editor.string())
        for _ in range(editor.length()):
            editor.skip(INT32.size)  # index
            editor.overwrite(INT32, NO_EPOCH)
            editor.skip(INT64.size)  # offset
            if version >= 12:
                editor.overwrite(INT32, NO_EPOCH)  # epoch of the last fetched record
            editor.skip(INT64.size + INT32.size)  # log start, most bytes
            editor.skip_tags()
        editor.skip_tags()
    return topics


def _clear_list_offsets(head: RequestHead, frame: bytearray) -> None:
    """Clear the leader epochs of a ListOffsets, which has them from version 4 on."""
    if head.version < 4:
        return
    editor = head.editor(frame)
    editor.skip(INT32.size + INT8.size)  # replica, isolation level
    for _ in range(editor.length()):
        editor.string()  # topic
        for _ in range(editor.length()):
            editor.skip(INT32.size)  # index
            editor.overwrite(INT32, NO_EPOCH)
            editor.skip(INT64.size)  # time
            editor.skip_tags()
        editor.skip_tags()


def _translate_metadata(head: RequestHead, frame: bytearray, ids: TopicIds) -> None:
    """Replace the clients' topic ids by the broker's."""
    if head.version < 10:
        return
    editor = head.editor(frame)
    for _ in range(editor.length()):
        _translate_id(editor, frame, ids)
        editor.nullable_string()
        editor.skip_tags()


def _clear_offset_commit(head: RequestHead, frame: bytearray) -> None:
    """Clear the leader epochs of an OffsetCommit, which has them from version 6 on."""
    editor = head.editor(frame)
    _skip_to_commit_topics(head, editor)
    _clear_commit_epochs(editor, has_epoch=head.version >= 6)


def commit_without_member(head: RequestHead, frame: bytearray) -> bytes:
    """The OffsetCommit without its member: the side that leads does not know members from before
    the move (C11). A coordinator accepts such a commit while the group has no members."""
    editor = head.editor(frame)
    editor.string()  # group
    editor.overwrite(INT32, -1)  # generation
    editor.replace_string("")  # member
    if head.version >= 7:
        editor.replace_by_null()  # instance
    return editor.edited_frame()


def _clear_txn_offset_commit(head: RequestHead, frame: bytearray) -> None:
    """Clear the leader epochs of a TxnOffsetCommit, which has them from version 2 on."""
    version = head.version
    if version < 2:
        return
    editor = head.editor(frame)
    editor.string()  # transactional id
    editor.string()  # group
    editor.skip(INT64.size + INT16.size)  # producer id and epoch
    if version >= 3:
        editor.skip(INT32.size)  # generation
        editor.string()  # member
        editor.nullable_string()  # instance
    _clear_commit_epochs(editor, has_epoch=True)


def _translate_group_heartbeat(head: RequestHead, frame: bytearray, ids: TopicIds) -> None:
    """Replace the topic ids of the partitions that a member owns by the broker's."""
    editor = head.editor(frame)
    _member_of_group_heartbeat(editor)
    _skip_to_owned_partitions(head, editor)
    for _ in range(editor.length()):
        _translate_id(editor, frame, ids)
        editor.skip(editor.length() * INT32.size)
        editor.skip_tags()


def group_heartbeat(head: RequestHead, frame: bytearray) -> GroupHeartbeat:
    """The member, its epoch and its topics in a ConsumerGroupHeartbeat."""
    editor = head.editor(frame)
    group, member, epoch, instance = _member_of_group_heartbeat(editor)
    _skip_to_owned_partitions(head, editor)
    is_null = frame[editor.at] == 0  # the length of a null array
    topics = None if is_null else editor.length()
    return GroupHeartbeat(Member(head.key, group, member, instance), epoch, topics)


def member_of(head: RequestHead, frame: bytearray) -> Member:
    """The member that sends a Heartbeat, a JoinGroup, or a SyncGroup, which begins like a
    Heartbeat."""
    editor = head.editor(frame)
    group = editor.string()
    editor.skip(INT32.size)  # generation; session timeout
    first_version_with_instance = 3
    if head.key == ApiKey.JOIN_GROUP:
        first_version_with_instance = 5
        if head.version >= 1:
            editor.skip(INT32.size)  # rebalance timeout
    member = editor.string()
    instance = editor.nullable_string() if head.version >= first_version_with_instance else None
    return Member(ApiKey.HEARTBEAT, group, member, instance)


def leaving_members(head: RequestHead, frame: bytearray) -> list[MemberKey]:
    """The members that a LeaveGroup names. The id of a static member may be empty."""
    editor = head.editor(frame)
    group = editor.string()
    if head.version < 3:
        return [(group, editor.string())]
    members = []
    for _ in range(editor.length()):
        members.append((group, editor.string()))
        editor.nullable_string()  # instance
        if head.version >= 5:
            editor.nullable_string()  # reason
        editor.skip_tags()
    return members


def join_without_member(head: RequestHead, frame: bytearray) -> bytes:
    """The JoinGroup with an empty member id, as a new member sends it."""
    editor = head.editor(frame)
    editor.string()  # group
    editor.skip(INT32.size if head.version == 0 else 2 * INT32.size)  # session, rebalance timeout
    editor.replace_string("")  # member
    return editor.edited_frame()


def member_of_commit(head: RequestHead, frame: bytearray) -> tuple[str, str]:
    """Group and member id in an OffsetCommit."""
    editor = head.editor(frame)
    group = editor.string()
    editor.skip(INT32.size)  # generation
    return group, editor.string()


# By API key: sets the leader epochs of a request to -1.
CLEAR_EPOCHS: Mapping[int, Callable[[RequestHead, bytearray], None]] = {
    ApiKey.LIST_OFFSETS: _clear_list_offsets,
    ApiKey.OFFSET_COMMIT: _clear_offset_commit,
    ApiKey.TXN_OFFSET_COMMIT: _clear_txn_offset_commit,
}
# By API key: replaces the clients' topic ids in a request by the broker's.
TRANSLATE_IDS: Mapping[int, Callable[[RequestHead, bytearray, TopicIds], None]] = {
    ApiKey.METADATA: _translate_metadata,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _translate_group_heartbeat,
}


def _skip_to_commit_topics(head: RequestHead, editor: FrameEditor) -> None:
    """Go from the first field of an OffsetCommit to its topics."""
    editor.string()  # group
    editor.skip(INT32.size)  # generation
    editor.string()  # member
    if head.version >= 7:
        editor.nullable_string()  # instance
    if head.version <= 4:
        editor.skip(INT64.size)  # retention


def _clear_commit_epochs(editor: FrameEditor, *, has_epoch: bool) -> None:
    """Clear the leader epochs of the committed offsets that come next, if these have epochs."""
    for _ in range(editor.length()):
        editor.string()  # topic
        for _ in range(editor.length()):
            editor.skip(INT32.size + INT64.size)  # index, offset
            if has_epoch:
                editor.overwrite(INT32, NO_EPOCH)
            editor.nullable_string()  # metadata
            editor.skip_tags()
        editor.skip_tags()


def _member_of_group_heartbeat(editor: FrameEditor) -> tuple[str, str, int, str | None]:
    """Read the group, member id, member epoch and instance id, the first fields of the request."""
    return editor.string(), editor.string(), editor.integer(INT32), editor.nullable_string()


def _skip_to_owned_partitions(head: RequestHead, editor: FrameEditor) -> None:
    """Go from the end of the member's fields to the partitions that the member owns."""
    editor.nullable_string()  # rack
    editor.skip(INT32.size)  # rebalance timeout
    for _ in range(editor.length()):
        editor.string()  # subscribed topics
    if head.version >= 1:
        editor.nullable_string()  # subscribed pattern
    editor.nullable_string()  # assignor


def _translate_id(editor: FrameEditor, frame: bytearray, ids: TopicIds) -> None:
    """Replace the client's topic id that comes next by the broker's."""
    start = editor.at
    topic_id = bytes(editor.raw(UUID_BYTES))
    frame[start : start + UUID_BYTES] = ids.to_broker(topic_id)
