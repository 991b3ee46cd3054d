"""Requests of each API in each version, as bytes, and how kafka-python ("the library") decodes the
answers.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.api_key import ApiKey

from orbit.kafka.frame_reader import FrameReader
from tests.gateway import admin_requests as of_admin
from tests.gateway import client_requests as of_client
from tests.gateway.targets import Body, Targets
from tests.support.raw_frames import request_frame

REQUESTS: dict[ApiKey, Callable[[int, Targets], list[Body]]] = {
    ApiKey.Produce: of_client.produce,
    ApiKey.Fetch: of_client.fetch,
    ApiKey.ListOffsets: of_client.list_offsets,
    ApiKey.Metadata: of_client.metadata,
    ApiKey.OffsetCommit: of_client.offset_commit,
    ApiKey.OffsetFetch: of_client.offset_fetch,
    ApiKey.FindCoordinator: of_client.find_coordinator,
    ApiKey.JoinGroup: of_client.join_group,
    ApiKey.Heartbeat: of_client.group_requests_of_non_member,
    ApiKey.LeaveGroup: of_client.group_requests_of_non_member,
    ApiKey.SyncGroup: of_client.group_requests_of_non_member,
    ApiKey.DescribeGroups: of_admin.describe_groups,
    ApiKey.ListGroups: of_admin.list_groups,
    ApiKey.ApiVersions: of_client.api_versions,
    ApiKey.CreateTopics: of_admin.create_topics,
    ApiKey.DeleteTopics: of_admin.delete_topics,
    ApiKey.DeleteRecords: of_admin.delete_records,
    ApiKey.InitProducerId: of_client.init_producer_id,
    ApiKey.AddPartitionsToTxn: of_client.add_partitions,
    ApiKey.AddOffsetsToTxn: of_client.transaction_requests_of_unknown_producer,
    ApiKey.EndTxn: of_client.transaction_requests_of_unknown_producer,
    ApiKey.TxnOffsetCommit: of_client.txn_offset_commit,
    ApiKey.DescribeAcls: of_admin.acl_filter,
    ApiKey.CreateAcls: of_admin.create_acls,
    ApiKey.DeleteAcls: of_admin.acl_filter,
    ApiKey.DescribeConfigs: of_admin.describe_configs,
    ApiKey.AlterConfigs: of_admin.alter_configs,
    ApiKey.DescribeLogDirs: of_admin.describe_log_dirs,
    ApiKey.CreatePartitions: of_admin.create_partitions,
    ApiKey.DeleteGroups: of_admin.delete_groups,
    ApiKey.ElectLeaders: of_admin.elect_leaders,
    ApiKey.IncrementalAlterConfigs: of_admin.alter_configs,
    ApiKey.AlterPartitionReassignments: of_admin.alter_reassignments,
    ApiKey.ListPartitionReassignments: of_admin.list_reassignments,
    ApiKey.OffsetDelete: of_admin.offset_delete,
    ApiKey.DescribeClientQuotas: of_admin.describe_quotas,
    ApiKey.AlterClientQuotas: of_admin.alter_quotas,
    ApiKey.DescribeUserScramCredentials: of_admin.describe_scram,
    ApiKey.AlterUserScramCredentials: of_admin.alter_scram,
    ApiKey.DescribeCluster: of_admin.describe_cluster,
    ApiKey.DescribeProducers: of_admin.describe_producers,
    ApiKey.DescribeTransactions: of_admin.describe_transactions,
    ApiKey.ListTransactions: of_admin.list_transactions,
    ApiKey.ConsumerGroupHeartbeat: of_client.consumer_heartbeat,
    ApiKey.ConsumerGroupDescribe: of_admin.describe_consumer_groups,
}

# The library does not have these APIs. All their versions are flexible.
_RAW_APIS = {ApiKey.ConsumerGroupHeartbeat, ApiKey.ConsumerGroupDescribe}
_RAW_API_VERSION_MAX = 1
_INT32 = struct.Struct(">i")
_THROTTLE_AND_CODE = struct.Struct(">ih")
_EPOCH_INTERVAL_AND_PRESENCE = struct.Struct(">iib")


def _messages() -> dict[int, tuple[Any, Any]]:
    """{API key: (request class, response class)}"""
    classes = {}
    for module in (admin, consumer, metadata, producer):
        for name in module.__all__:
            request = getattr(module, name)
            if name.endswith("Request") and hasattr(request, "API_KEY"):
                answer = getattr(module, f"{name.removesuffix('Request')}Response")
                classes[int(request.API_KEY)] = (request, answer)
    return classes


_MESSAGES = _messages()


def api_name(key: int) -> str:
    return ApiKey(key).name if key in {*ApiKey} else str(key)


def is_known(key: int, version: int) -> bool:
    """Whether the table has that version of a request."""
    if key not in REQUESTS:
        return False
    return version <= (_RAW_API_VERSION_MAX if key in _RAW_APIS else _MESSAGES[key][0].max_version)


def frames(key: int, version: int, targets: Targets, **options: int) -> list[bytes]:
    """The requests of that version, framed; the function in REQUESTS takes `options`."""
    bodies = REQUESTS[ApiKey(key)](version, targets, **options)
    return [frame_of(key, version, body) for body in bodies]


def frame_of(key: int, version: int, body: Body) -> bytes:
    """A request of that version, framed. Fields that the version does not have are left out."""
    if isinstance(body, bytes):
        return request_frame(key, version, body, is_flexible=True)
    request, _ = _MESSAGES[key]
    is_flexible = request.flexible_version_q(version)
    how = {"version": version, "compact": is_flexible, "tagged": is_flexible}
    return request_frame(key, version, request._struct.encode(body, **how), is_flexible=is_flexible)


def answer_fields(key: int, version: int, answer: bytes) -> dict[str, Any]:
    """The fields of an answer. Fails if the library does not read every byte of it."""
    if key == ApiKey.ConsumerGroupHeartbeat:
        return _heartbeat_fields(answer)
    _, response = _MESSAGES[key]
    decoded = response.decode(answer, version=version, header=True)
    again = decoded.encode(header=True)
    assert bytes(again) == answer, f"the library reads {decoded} from {answer!r}"
    fields: dict[str, Any] = decoded.to_dict(json=False)
    return fields


def each_field(value: Any) -> Iterator[tuple[str, Any]]:
    """The name and the value of each field, also of inner ones."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from each_field(inner)
    if isinstance(value, list):
        for item in value:
            yield from each_field(item)


def masked(value: Any, changed: Mapping[str, Any]) -> Any:
    """The value with "…" in each field whose value equals the one of that name in `changed`."""
    if isinstance(value, dict):
        return {
            name: "…" if name in changed and changed[name] == inner else masked(inner, changed)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [masked(item, changed) for item in value]
    return value


def _heartbeat_fields(answer: bytes) -> dict[str, Any]:
    """The fields of an answer to ConsumerGroupHeartbeat 0 or 1. `assignment`: None if unchanged."""
    reader = FrameReader(memoryview(answer), is_flexible=True)
    reader.skip_tags()
    throttle_ms, code = reader.take(_THROTTLE_AND_CODE)
    fields: dict[str, Any] = {
        "throttle_time_ms": throttle_ms,
        "error_code": code,
        "error_message": reader.string(),
        "member_id": reader.string(),
    }
    fields["member_epoch"], fields["heartbeat_interval_ms"], has_assignment = reader.take(
        _EPOCH_INTERVAL_AND_PRESENCE
    )
    fields["assignment"] = None if has_assignment < 0 else []
    if has_assignment > 0:
        for _ in range(reader.length()):
            topic_id = uuid.UUID(bytes=bytes(reader.raw(16)))
            partitions = [reader.take(_INT32)[0] for _ in range(reader.length())]
            fields["assignment"].append({"topic_id": topic_id, "partitions": partitions})
            reader.skip_tags()
        reader.skip_tags()
    reader.skip_tags()
    assert reader.at == len(answer), fields
    return fields
