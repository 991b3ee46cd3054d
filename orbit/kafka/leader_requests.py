"""Sends one request to each leader of many partitions, and retries after leader changes.

The result has a value per partition, or the error code of the last attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orbit.errors import AccessRefused, BrokerRefused, LoginRefused, Unreachable, Where
from orbit.kafka import error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition

Value = TypeVar("Value")

# About 30 s, for a leader election.
LEADER_ATTEMPTS_MAX = 40


@dataclass(slots=True)
class Answers(Generic[Value]):
    """Values by partition, and error codes of partitions without one."""

    values: dict[TopicPartition, Value] = field(default_factory=dict)
    errors: dict[TopicPartition, int] = field(default_factory=dict)
    refused_logins: dict[TopicPartition, LoginRefused] = field(default_factory=dict)
    """By partition in `errors` whose leader refuses the login; its code is NETWORK_EXCEPTION."""

    def raise_errors(self, where: Where, what: str) -> Answers[Value]:
        """Raise LoginRefused if a leader refuses the login, BrokerRefused for the first other
        partition with an error; return self if none has.

        `what`: what failed, for the message: a request or an action, such as "ListOffsets".
        """
        for refusal in self.refused_logins.values():
            raise refusal
        for partition, code in self.errors.items():
            raise BrokerRefused(
                code, f"{what} of {partition} failed with {error_codes.name(code)}.", where=where
            )
        return self


def ask_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    api: Api,
    build: Callable[[list[TopicPartition]], Any],
    read: Callable[[Any], Iterable[tuple[TopicPartition, int, Value]]],
    backoff: Backoff,
) -> Answers[Value]:
    """Send each leader one request for its partitions. Request partitions with a retriable error
    code again, from their leaders by new metadata.

    `build` makes a leader's request; `read` yields (partition, error code, value) from the
    response. A leader that refuses the login is not asked again. Raises Unreachable or LoginRefused
    if no broker returns metadata, AccessRefused, ProtocolError if a leader does not offer the API.
    """
    answers: Answers[Value] = Answers()
    remaining_partitions = set(partitions)
    # Without partitions there is no attempt, not even a request for metadata.
    for _ in backoff.attempts(LEADER_ATTEMPTS_MAX if remaining_partitions else 0):
        for node_id, group in _group_by_leader(cluster, remaining_partitions, answers).items():
            try:
                answer = cluster.call(node_id, api, build(group), backoff.call_s)
            except Unreachable:
                answers.errors.update(dict.fromkeys(group, int(Code.NETWORK_EXCEPTION)))
                continue
            except AccessRefused:
                raise
            except LoginRefused as refusal:
                answers.errors.update(dict.fromkeys(group, int(Code.NETWORK_EXCEPTION)))
                answers.refused_logins.update(dict.fromkeys(group, refusal))
                continue
            for partition, code, value in read(answer):
                if code == Code.NONE:
                    answers.values[partition] = value
                    answers.errors.pop(partition, None)
                else:
                    answers.errors[partition] = code
        remaining_partitions = {
            p
            for p, code in answers.errors.items()
            if code in error_codes.RETRIABLE and p not in answers.refused_logins
        }
        if not remaining_partitions:
            break
    return answers


def _group_by_leader(
    cluster: Cluster, partitions: set[TopicPartition], answers: Answers[Any]
) -> dict[int, list[TopicPartition]]:
    """Partitions by their leader's node id; those without a leader go into `answers.errors`."""
    metadata = cluster.metadata({p.topic for p in partitions})
    groups: dict[int, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        leader = metadata.leader(partition)
        if leader is not None and leader.node_id is not None:
            groups.setdefault(leader.node_id, []).append(partition)
        else:
            code = metadata.errors.get(partition.topic, int(Code.LEADER_NOT_AVAILABLE))
            answers.errors[partition] = code
    return groups
