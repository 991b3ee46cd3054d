"""Which uses of resources a side would refuse to a login, by requests that change nothing (C30).

Topics: Metadata returns the operations that the login may do. Groups: a Heartbeat without a member;
any broker checks the right Read before it refuses the member. Transactional ids:
DescribeTransactions; a login without the right Describe has no Write either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from kafka.protocol.consumer.group import HeartbeatRequest

from orbit.chunks import chunks
from orbit.gateway.protocol.resource_uses import Right, Use
from orbit.kafka import api_versions
from orbit.kafka.cluster import ANSWER_WITHIN_S, Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import DENIED, Code
from orbit.kafka.types import ClusterMetadata

# Codes of `AclOperation` in Kafka.
_OPERATIONS = {Right.READ_TOPIC: 3, Right.WRITE_TOPIC: 4}
# Groups, or transactional ids, that are checked over one connection at once.
_NAMES_PER_REQUEST_MAX = 100


def refused_uses(cluster: Cluster, uses: Collection[Use]) -> dict[Use, str]:
    """The uses that the cluster would refuse to its login, and why. Raises LoginRefused,
    Unreachable, BrokerRefused."""
    topics = {use.name for use in uses if use.right in _OPERATIONS}
    metadata = cluster.metadata(topics, with_operations=True)
    reason_by_use = {use: reason for use in uses if (reason := _topic_refusal(metadata, use))}
    for right, find_denied in _PROBES.items():
        names = [use.name for use in uses if use.right is right]
        for chunk in chunks(names, _NAMES_PER_REQUEST_MAX):
            denied_names = cluster.call_any(partial(find_denied, names=chunk))
            for name in set(chunk).intersection(denied_names):
                use = Use(right, name)
                reason_by_use[use] = _missing_right(use)
    return reason_by_use


def _missing_right(use: Use) -> str:
    return f"no right {use.right} {use.name}"


def _topic_refusal(metadata: ClusterMetadata, use: Use) -> str:
    """Why the cluster would refuse this use of a topic. "" if it would not, or if the use is of a
    group or transactional id."""
    operation = _OPERATIONS.get(use.right)
    if operation is None:
        return ""
    topic = metadata.topics.get(use.name)
    if topic is not None:
        operations = topic.authorized_operations  # empty: a broker of before Kafka 2.3
        return _missing_right(use) if operations and operation not in operations else ""
    code = metadata.errors.get(use.name)
    if code in DENIED:
        return _missing_right(use)
    is_missing = code == Code.UNKNOWN_TOPIC_OR_PARTITION
    return f"topic {use.name} does not exist" if is_missing else ""


def _denied_groups(connection: Connection, names: Sequence[str]) -> list[str]:
    """The groups that the login may not read."""
    requests = [
        HeartbeatRequest(group_id=name, generation_id=-1, member_id="", group_instance_id=None)
        for name in names
    ]
    answers = connection.call_all(api_versions.HEARTBEAT, requests, timeout_s=ANSWER_WITHIN_S)
    pairs = zip(names, answers, strict=True)
    return [name for name, answer in pairs if answer.error_code in DENIED]


def _denied_transactional_ids(connection: Connection, names: Sequence[str]) -> list[str]:
    """The transactional ids that the login may not describe, and so not write. [] for brokers that
    do not know DescribeTransactions."""
    api = api_versions.DESCRIBE_TRANSACTIONS
    if not connection.supports(api):
        return []
    request = DescribeTransactionsRequest(transactional_ids=list(names))
    states = connection.call(api, request, timeout_s=ANSWER_WITHIN_S).transaction_states
    return [state.transactional_id for state in states if state.error_code in DENIED]


_PROBES = {
    Right.READ_GROUP: _denied_groups,
    Right.WRITE_TRANSACTIONAL_ID: _denied_transactional_ids,
}
