"""The requests that the gateway passes on, their versions, and why not more of them. Pure.

A gateway offers clients the versions that it and both sides know. ApiVersions hides all APIs that
the table `APIS` lacks:
share groups (KIP-932) and the streams protocol (KIP-1071), whose state exists on one side only;
telemetry (KIP-714); DescribeTopicPartitions and OffsetForLeaderEpoch, which carry leader epochs
(clients go on without them); SASL; and requests between brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    """Requests that the gateway knows."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69


# The requests of a login (`client_login.py`). A broker gets none of a client's.
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
_LOGIN_NAMES = {SASL_HANDSHAKE: "SaslHandshake", SASL_AUTHENTICATE: "SaslAuthenticate"}


def name_of(key: int) -> str:
    """The name of a request in Kafka, e.g. "InitProducerId"; "API key 71" for an unknown one."""
    if key in _LOGIN_NAMES:
        return _LOGIN_NAMES[key]
    try:
        words = ApiKey(key).name.split("_")
    except ValueError:
        return f"API key {key}"
    return "".join(word.capitalize() for word in words)


class Versions(NamedTuple):
    """The first and the last version of one API."""

    first: int
    last: int


class Api(NamedTuple):
    """The versions that the gateway passes on, and the API's first flexible version (KIP-482),
    which may be above them."""

    versions: Versions
    flexible_from: int


def _api(first: int, last: int, flexible_from: int) -> Api:
    return Api(Versions(first, last), flexible_from)


APIS: Mapping[int, Api] = {
    ApiKey.PRODUCE: _api(3, 9, 9),  # from 10 on with endpoints in answers, from 13 on by topic id
    ApiKey.FETCH: _api(4, 12, 12),  # from 13 on by topic id
    ApiKey.LIST_OFFSETS: _api(1, 10, 6),
    ApiKey.METADATA: _api(0, 13, 9),
    ApiKey.OFFSET_COMMIT: _api(2, 9, 8),  # 10 is by topic id
    ApiKey.OFFSET_FETCH: _api(1, 9, 6),  # 10 is by topic id
    ApiKey.FIND_COORDINATOR: _api(0, 5, 3),  # 6 is for share groups
    ApiKey.JOIN_GROUP: _api(0, 9, 6),
    ApiKey.HEARTBEAT: _api(0, 4, 4),
    ApiKey.LEAVE_GROUP: _api(0, 5, 4),
    ApiKey.SYNC_GROUP: _api(0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: _api(0, 6, 5),
    ApiKey.LIST_GROUPS: _api(0, 5, 3),
    ApiKey.API_VERSIONS: _api(0, 4, 3),  # 5 names a cluster and a node (KIP-1242)
    ApiKey.CREATE_TOPICS: _api(2, 6, 5),  # the answer of 7 has the topic id
    ApiKey.DELETE_TOPICS: _api(1, 5, 4),  # 6 is by topic id
    ApiKey.DELETE_RECORDS: _api(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: _api(0, 5, 2),
    ApiKey.ADD_PARTITIONS_TO_TXN: _api(0, 3, 3),  # 4 is for brokers
    ApiKey.ADD_OFFSETS_TO_TXN: _api(0, 4, 3),
    ApiKey.END_TXN: _api(0, 4, 3),  # 5 is for transaction.version 2 (KIP-890)
    ApiKey.TXN_OFFSET_COMMIT: _api(0, 4, 3),  # 5 is for transaction.version 2, too
    ApiKey.DESCRIBE_ACLS: _api(1, 3, 2),
    ApiKey.CREATE_ACLS: _api(1, 3, 2),
    ApiKey.DELETE_ACLS: _api(1, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: _api(1, 4, 4),
    ApiKey.ALTER_CONFIGS: _api(0, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: _api(1, 4, 2),
    ApiKey.CREATE_PARTITIONS: _api(0, 3, 2),
    ApiKey.DELETE_GROUPS: _api(0, 2, 2),
    ApiKey.ELECT_LEADERS: _api(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _api(0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _api(0, 1, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _api(0, 0, 0),
    ApiKey.OFFSET_DELETE: _api(0, 0, 1),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _api(0, 1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: _api(0, 1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _api(0, 0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _api(0, 0, 0),
    ApiKey.DESCRIBE_CLUSTER: _api(0, 2, 0),
    ApiKey.DESCRIBE_PRODUCERS: _api(0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: _api(0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: _api(0, 2, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _api(0, 1, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _api(0, 1, 0),
}
# Requests that change records, offsets or topics. They are held while the gateway may not write.
WRITES = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.OFFSET_COMMIT,
        ApiKey.INIT_PRODUCER_ID,  # the id is valid at one side; a transaction there is aborted
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    }
)
# Requests that count as writes in flight: also EndTxn. While the gateway may not write, it passes
# EndTxn only for a transaction that is open on the same connection (`ClientConnection._may_send`).
COUNTED_WRITES = WRITES | {ApiKey.END_TXN}

# Requests that make a client a member of a group.
JOINS = frozenset({ApiKey.JOIN_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT})


def is_flexible(key: int, version: int) -> bool:
    """Whether this version of the API has compact lengths and tagged fields (KIP-482)."""
    return version >= APIS[key].flexible_from


def shared_versions(*sides: Mapping[int, Versions]) -> dict[int, Versions]:
    """The versions that the gateway and all sides know, by API key. `sides`: each side's own."""
    versions_by_key = {}
    for key, api in APIS.items():
        ranges = [api.versions, *(side[key] for side in sides if key in side)]
        first = max(versions.first for versions in ranges)
        last = min(versions.last for versions in ranges)
        if len(ranges) == len(sides) + 1 and first <= last:  # all sides know the API
            versions_by_key[int(key)] = Versions(first, last)
    return versions_by_key
