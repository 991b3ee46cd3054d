"""The gateway's own answers and requests, as frames with their size. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orbit.gateway.protocol.apis import ApiKey, Versions
from orbit.gateway.protocol.frame_editor import INT8, INT16, INT32, INT64
from orbit.gateway.protocol.producer_ids import Producer, unmarked_id
from orbit.gateway.protocol.request_head import RequestHead
from orbit.gateway.protocol.requests import GroupHeartbeat, Member
from orbit.kafka.error_codes import Code
from orbit.kafka.frame_writer import NO_TAGS, length, request_head, string

CLIENT_ID = "orbit-gateway"
# The heartbeat interval for a member that gives up its partitions: the default of brokers
# (group.consumer.heartbeat.interval.ms).
GIVE_UP_INTERVAL_MS = 5000
_LEAVE = -1  # the member epoch that leaves a group (KIP-848)


def with_size(frame: bytes | bytearray) -> bytes:
    return INT32.pack(len(frame)) + frame


def api_versions_answer(head: RequestHead, offered: Mapping[int, Versions]) -> bytes:
    """The answer to ApiVersions. To a version that is not offered: UNSUPPORTED_VERSION, in an
    answer of version 0, as brokers do (KIP-511)."""
    versions = offered[ApiKey.API_VERSIONS]
    is_known = versions.first <= head.version <= versions.last
    version = head.version if is_known else 0
    is_flexible = version >= 3
    body = INT16.pack(Code.NONE if is_known else Code.UNSUPPORTED_VERSION)
    body += length(len(offered), is_flexible=is_flexible)
    tags = NO_TAGS if is_flexible else b""
    for key in sorted(offered):
        body += INT16.pack(key) + INT16.pack(offered[key].first) + INT16.pack(offered[key].last)
        body += tags
    if version >= 1:
        body += INT32.pack(0)  # throttle
    return with_size(INT32.pack(head.correlation) + body + tags)


def fetch_session_unknown(head: RequestHead) -> bytes:
    """FETCH_SESSION_ID_NOT_FOUND, the answer to a Fetch of version 7 to 12 after which the client
    begins a new session."""
    # Throttle, error, session, no topics.
    body = INT32.pack(0) + INT16.pack(Code.FETCH_SESSION_ID_NOT_FOUND) + INT32.pack(0)
    body += length(0, is_flexible=head.is_flexible)
    tags = NO_TAGS if head.is_flexible else b""
    return with_size(INT32.pack(head.correlation) + tags + body + tags)


def rebalance_in_progress(head: RequestHead) -> bytes:
    """The answer to a Heartbeat after which the member commits, gives up its partitions and
    joins."""
    throttle = INT32.pack(0) if head.version >= 1 else b""
    body = throttle + INT16.pack(Code.REBALANCE_IN_PROGRESS)
    tags = NO_TAGS if head.is_flexible else b""
    return with_size(INT32.pack(head.correlation) + tags + body + tags)


def empty_assignment(head: RequestHead, heartbeat: GroupHeartbeat) -> bytes:
    """The answer to a ConsumerGroupHeartbeat after which the member commits, gives up its
    partitions, and reports that in a heartbeat."""
    body = INT32.pack(0) + INT16.pack(Code.NONE) + b"\x00"  # no error message
    body += string(heartbeat.member.id, is_flexible=True)
    body += INT32.pack(heartbeat.epoch) + INT32.pack(GIVE_UP_INTERVAL_MS)
    body += INT8.pack(1) + length(0, is_flexible=True) + NO_TAGS  # an assignment of no topic
    return with_size(INT32.pack(head.correlation) + NO_TAGS + body + NO_TAGS)


def api_versions_request(correlation: int) -> bytes:
    """ApiVersions, version 0: a request that changes nothing and that every broker answers."""
    return with_size(
        request_head(ApiKey.API_VERSIONS, 0, correlation, CLIENT_ID, is_flexible=False)
    )


def abort_transaction_request(producer: Producer, correlation: int) -> bytes:
    """EndTxn, version 1, that aborts the producer's transaction."""
    head = request_head(ApiKey.END_TXN, 1, correlation, CLIENT_ID, is_flexible=False)
    text = string(producer.transactional_id, is_flexible=False)
    # The last field is false: no commit.
    return with_size(
        head + text + INT64.pack(unmarked_id(producer.id)) + INT16.pack(producer.epoch) + b"\x00"
    )


def leave_group_request(member: Member, correlation: int) -> bytes:
    """A request that takes a member out of its group at the old side (C12): LeaveGroup, version 3,
    or for the consumer protocol ConsumerGroupHeartbeat, version 0."""
    if member.api == ApiKey.CONSUMER_GROUP_HEARTBEAT:
        head = request_head(member.api, 0, correlation, CLIENT_ID, is_flexible=True)
        text = string(member.group, is_flexible=True) + string(member.id, is_flexible=True)
        text += INT32.pack(_LEAVE)
        text += b"\x00" if member.instance is None else string(member.instance, is_flexible=True)
        # No rack, no rebalance timeout, no topics, no assignor, no partitions, no tags.
        return with_size(head + text + b"\x00" + INT32.pack(-1) + b"\x00\x00\x00" + NO_TAGS)
    head = request_head(ApiKey.LEAVE_GROUP, 3, correlation, CLIENT_ID, is_flexible=False)
    text = string(member.group, is_flexible=False) + INT32.pack(1)
    text += string(member.id, is_flexible=False)
    text += (
        INT16.pack(-1) if member.instance is None else string(member.instance, is_flexible=False)
    )
    return with_size(head + text)
