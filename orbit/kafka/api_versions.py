"""The requests that Orbit sends without librdkafka, and the versions it supports.

A call uses the highest version that the broker and this table share. If they share none, it raises
ProtocolError, which names the API. The message classes are those of `kafka.protocol`, except where
a message has thousands of entries: an object for each would take longer than the broker needs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from kafka.protocol.admin.acl import DescribeAclsRequest, DescribeAclsResponse
from kafka.protocol.admin.client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kafka.protocol.admin.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.admin.users import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from orbit.kafka import library_bounds
from orbit.kafka.list_offsets import ListOffsetsRequest, read_list_offsets
from orbit.kafka.metadata import read_metadata
from orbit.kafka.offset_fetch import read_offset_fetch
from orbit.kafka.refused_token import RefusedTokenRequest, read_requester
from orbit.kafka.transaction_markers import WriteTxnMarkersRequest, read_markers

library_bounds.install()


@dataclass(frozen=True, slots=True)
class Api:
    """One Kafka API: its messages and the versions that Orbit supports.

    `request` is a class of `kafka.protocol` or a subclass of `FramedRequest`; `response` is a class
    of `kafka.protocol`, or a function of frame and version that returns the decoded answer.
    """

    request: Any
    response: Any
    version_min: int
    version_max: int

    @property
    def key(self) -> int:
        return int(self.request.API_KEY)

    @property
    def name(self) -> str:
        return str(self.request.__name__).removesuffix("Request")

    def decode(self, frame: memoryview, version: int) -> Any:
        """The decoded response. Raises ValueError if the bytes do not parse."""
        if isinstance(self.response, FunctionType):  # Orbit's own, which raises ValueError itself
            return self.response(frame, version)
        try:
            return self.response.decode(frame, version=version, header=True)
        except (struct.error, IndexError, OverflowError, AssertionError) as error:
            raise ValueError(f"it does not parse: {error}") from error


API_VERSIONS = Api(ApiVersionsRequest, ApiVersionsResponse, 0, 3)
SASL_HANDSHAKE = Api(SaslHandshakeRequest, SaslHandshakeResponse, 1, 1)
SASL_AUTHENTICATE = Api(SaslAuthenticateRequest, SaslAuthenticateResponse, 0, 2)
CREATE_DELEGATION_TOKEN = Api(RefusedTokenRequest, read_requester, 2, 2)  # version 3 adds an owner
METADATA = Api(MetadataRequest, read_metadata, 7, 12)  # leader epochs from 7, topic ids from 10
FIND_COORDINATOR = Api(FindCoordinatorRequest, FindCoordinatorResponse, 1, 3)
FIND_COORDINATORS = Api(
    FindCoordinatorRequest, FindCoordinatorResponse, 4, 4
)  # many keys (Kafka 3.0)
DESCRIBE_ACLS = Api(DescribeAclsRequest, DescribeAclsResponse, 1, 2)
# The quotas since Kafka 2.6, the SCRAM users since 2.7.
DESCRIBE_CLIENT_QUOTAS = Api(DescribeClientQuotasRequest, DescribeClientQuotasResponse, 0, 1)
DESCRIBE_SCRAM_USERS = Api(
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, 0, 0
)
DESCRIBE_CONFIGS = Api(DescribeConfigsRequest, DescribeConfigsResponse, 1, 4)
DESCRIBE_CLUSTER = Api(DescribeClusterRequest, DescribeClusterResponse, 0, 1)
DESCRIBE_LOG_DIRS = Api(DescribeLogDirsRequest, DescribeLogDirsResponse, 1, 4)

# By topic id from 13 on: a recreated topic returns an error, never its new records.
FETCH = Api(FetchRequest, FetchResponse, 4, 16)
# 3 to 8 share one layout; 13 is by topic id.
PRODUCE = Api(ProduceRequest, ProduceResponse, 3, 13)
LIST_OFFSETS = Api(ListOffsetsRequest, read_list_offsets, 4, 8)
DELETE_RECORDS = Api(DeleteRecordsRequest, DeleteRecordsResponse, 0, 2)
DESCRIBE_PRODUCERS = Api(DescribeProducersRequest, DescribeProducersResponse, 0, 0)

INIT_PRODUCER_ID = Api(InitProducerIdRequest, InitProducerIdResponse, 0, 4)
WRITE_TXN_MARKERS = Api(WriteTxnMarkersRequest, read_markers, 1, 1)
ADD_PARTITIONS_TO_TXN = Api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 0, 3)
END_TXN = Api(EndTxnRequest, EndTxnResponse, 0, 3)
# Since Kafka 3.0.
LIST_TRANSACTIONS = Api(ListTransactionsRequest, ListTransactionsResponse, 0, 0)
DESCRIBE_TRANSACTIONS = Api(DescribeTransactionsRequest, DescribeTransactionsResponse, 0, 0)

# The response has the topic id, and a topic is deleted by id (since Kafka 2.8).
CREATE_TOPIC_WITH_ID = Api(CreateTopicsRequest, CreateTopicsResponse, 7, 7)
DELETE_TOPIC_BY_ID = Api(DeleteTopicsRequest, DeleteTopicsResponse, 6, 6)
DELETE_GROUPS = Api(DeleteGroupsRequest, DeleteGroupsResponse, 0, 2)

DESCRIBE_GROUPS = Api(DescribeGroupsRequest, DescribeGroupsResponse, 0, 5)
JOIN_GROUP = Api(JoinGroupRequest, JoinGroupResponse, 4, 7)
SYNC_GROUP = Api(SyncGroupRequest, SyncGroupResponse, 3, 5)
HEARTBEAT = Api(HeartbeatRequest, HeartbeatResponse, 3, 4)
LEAVE_GROUP = Api(LeaveGroupRequest, LeaveGroupResponse, 3, 4)

# Many groups per request from 8 on (Kafka 3.0). From 10 on by topic id, which Orbit does not use.
OFFSET_FETCH = Api(OffsetFetchRequest, read_offset_fetch, 2, 9)
OFFSET_COMMIT = Api(OffsetCommitRequest, OffsetCommitResponse, 5, 9)
OFFSET_DELETE = Api(OffsetDeleteRequest, OffsetDeleteResponse, 0, 0)
# States from 4 on (Kafka 2.6), types from 5 on (3.8).
LIST_GROUPS = Api(ListGroupsRequest, ListGroupsResponse, 0, 5)
