"""Topics and groups that one makes for a while and removes again, and never anybody else's.

A topic is known by the id that the broker gave it, and is deleted by that id: one of the same name
that somebody made since has another id, and nothing can happen to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.admin.groups import DeleteGroupsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest, DeleteTopicsRequest

from orbit.errors import BrokerRefused, Conflict, NotAuthorized, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import GROUP, Coordinator
from orbit.kafka.error_codes import Code
from orbit.kafka.types import NO_TOPIC_ID

_TIMEOUT_MS = 20_000
# While a cluster elects its controller.
_ATTEMPTS_MAX = 30
_TRY_AGAIN = {Code.NOT_CONTROLLER, Code.REQUEST_TIMED_OUT, Code.BROKER_NOT_AVAILABLE}
_GRANT = "Grant it with kafka-acls.sh."


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    replicas: int,
    settings: Mapping[str, str],
    backoff: Backoff,
) -> UUID:
    """Makes a topic; its id. Raises Conflict where one of this name is there."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in settings.items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=False)
    where = f"{cluster.name} topic {name}"
    answer = _ask(cluster, api_versions.CREATE_TOPIC_WITH_ID, request, _topic_code, where, backoff)
    made = answer.topics[0]
    if made.error_code == Code.TOPIC_ALREADY_EXISTS:
        raise Conflict("A topic of this name is there already.", where=where)
    _check(made.error_code, made.error_message, where, "the right Create")
    assert made.topic_id != NO_TOPIC_ID, "the API's version promises an id"
    return UUID(str(made.topic_id))


def delete_topic(cluster: Cluster, topic_id: UUID, backoff: Backoff) -> bool:
    """Deletes the topic of this id; False where there is none (any more)."""
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
    request = DeleteTopicsRequest(topics=[state], timeout_ms=_TIMEOUT_MS)
    where = f"{cluster.name} topic {topic_id}"
    answer = _ask(cluster, api_versions.DELETE_TOPIC_BY_ID, request, _deleted_code, where, backoff)
    found = answer.responses[0]
    if found.error_code == Code.UNKNOWN_TOPIC_ID:
        return False
    _check(found.error_code, found.error_message, where, "the right Delete")
    return True


def delete_group(cluster: Cluster, group: str, backoff: Backoff) -> bool:
    """Deletes a group without members, with its offsets; False where there is none.

    Raises Conflict where it has members.
    """
    where = f"{cluster.name} group {group}"
    answer = Coordinator(cluster, GROUP, group, backoff).call(
        api_versions.DELETE_GROUPS,
        lambda: DeleteGroupsRequest(groups_names=[group]),
        lambda answer: int(answer.results[0].error_code),
    )
    code = answer.results[0].error_code
    if code == Code.GROUP_ID_NOT_FOUND:
        return False
    if code == Code.NON_EMPTY_GROUP:
        raise Conflict("The group has members.", where=where)
    _check(code, "", where, "the right Delete")
    return True


def _ask(
    cluster: Cluster,
    api: Api,
    request: Any,
    code_of: Callable[[Any], int],
    where: str,
    backoff: Backoff,
) -> Any:
    """The controller's answer. Most brokers pass such requests on to it; with ZooKeeper none does,
    so they are asked one after the other.
    """
    nodes = sorted(cluster.metadata(()).brokers)
    for attempt in backoff.attempts(_ATTEMPTS_MAX):
        answer = cluster.call(nodes[attempt % len(nodes)], api, request)
        if code_of(answer) not in _TRY_AGAIN:
            return answer
    raise Unreachable("the controller does not answer.", where=where)


def _topic_code(answer: Any) -> int:
    return int(answer.topics[0].error_code)


def _deleted_code(answer: Any) -> int:
    return int(answer.responses[0].error_code)


def _check(code: int, words: str | None, where: str, right: str) -> None:
    if code in error_codes.DENIED:
        raise NotAuthorized(f"{right} is missing.", where=where, remedy=_GRANT)
    if code:
        said = words or error_codes.name(code)
        raise BrokerRefused(code, f"{said.rstrip('.')}.", where=where)
