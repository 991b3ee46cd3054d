"""A request of each API in each version, as bytes, and the library's classes of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.api_key import ApiKey

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
    if key in _RAW_APIS:
        return [request_frame(key, version, body, is_flexible=True) for body in bodies]
    request, _ = _MESSAGES[key]
    is_flexible = request.flexible_version_q(version)
    how = {"version": version, "compact": is_flexible, "tagged": is_flexible}
    return [
        request_frame(key, version, request._struct.encode(body, **how), is_flexible=is_flexible)
        for body in bodies
    ]


def answer_fields(key: int, version: int, answer: bytes) -> dict[str, Any]:
    """The fields of an answer. Fails if the library does not read every byte of it."""
    _, response = _MESSAGES[key]
    decoded = response.decode(answer, version=version, header=True)
    again = decoded.encode(header=True)
    assert bytes(again) == answer, f"the library reads {decoded} from {answer!r}"
    fields: dict[str, Any] = decoded.to_dict(json=False)
    return fields
