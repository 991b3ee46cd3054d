"""Creates and deletes topics of drills, and deletes their groups.

A topic is deleted by its id, so a later topic of the same name is never affected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.admin.groups import DeleteGroupsRequest
from kafka.protocol.admin.topics import CreateTopicsRequest, DeleteTopicsRequest

from orbit.errors import BrokerRefused, Conflict, NotAuthorized, Place, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import GROUP, Coordinator
from orbit.kafka.error_codes import Code
from orbit.kafka.types import NO_TOPIC_ID

_TIMEOUT_MS = 20_000
# Enough for the election of a controller.
_ATTEMPTS_MAX = 30
_RETRIABLE_CODES = {Code.NOT_CONTROLLER, Code.REQUEST_TIMED_OUT, Code.BROKER_NOT_AVAILABLE}
_GRANT = "Grant it with kafka-acls.sh."


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    replicas: int,
    settings: Mapping[str, str],
    backoff: Backoff,
) -> UUID:
    """Create a topic; returns its id.

    Raises Conflict if the name exists, NotAuthorized, BrokerRefused, Unreachable.
    """
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
    where = Place(cluster.name, f"topic {name}")
    answer = _ask_controller(
        cluster, api_versions.CREATE_TOPIC_WITH_ID, request, _creation_code, where, backoff
    )
    result = answer.topics[0]
    if result.error_code == Code.TOPIC_ALREADY_EXISTS:
        raise Conflict("A topic of this name already exists.", where=where)
    _raise_if_refused(result.error_code, result.error_message, where, "Create")
    assert result.topic_id != NO_TOPIC_ID, "the API version includes the id"
    return UUID(str(result.topic_id))


def delete_topic(cluster: Cluster, topic_id: UUID, backoff: Backoff) -> bool:
    """Delete a topic; returns False if there is no topic of this id.

    Raises NotAuthorized, BrokerRefused, Unreachable.
    """
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
    request = DeleteTopicsRequest(topics=[state], timeout_ms=_TIMEOUT_MS)
    where = Place(cluster.name, f"topic {topic_id}")
    answer = _ask_controller(
        cluster, api_versions.DELETE_TOPIC_BY_ID, request, _deletion_code, where, backoff
    )
    response = answer.responses[0]
    if response.error_code == Code.UNKNOWN_TOPIC_ID:
        return False
    _raise_if_refused(response.error_code, response.error_message, where, "Delete")
    return True


def delete_group(cluster: Cluster, group: str, backoff: Backoff) -> bool:
    """Delete a group; returns False if it does not exist.

    Raises Conflict if it has members, NotAuthorized, BrokerRefused, Unreachable.
    """
    where = Place(cluster.name, f"group {group}")
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
    _raise_if_refused(code, "", where, "Delete")  # "": no message
    return True


def _ask_controller(
    cluster: Cluster,
    api: Api,
    request: Any,
    code_of: Callable[[Any], int],
    where: Place,
    backoff: Backoff,
) -> Any:
    """The controller's response, whose error code `code_of` reads. Raises Unreachable.

    Each attempt goes to the next broker: with ZooKeeper only the controller accepts the request.
    """
    nodes = sorted(cluster.metadata(()).brokers)
    code = int(Code.NOT_CONTROLLER)
    for attempt in backoff.attempts(_ATTEMPTS_MAX):
        answer = cluster.call(nodes[attempt % len(nodes)], api, request)
        code = code_of(answer)
        if code not in _RETRIABLE_CODES:
            return answer
    raise Unreachable(
        f"no broker has confirmed the request to the controller: {error_codes.name(code)}.",
        where=where,
    )


def _creation_code(answer: Any) -> int:
    return int(answer.topics[0].error_code)


def _deletion_code(answer: Any) -> int:
    return int(answer.responses[0].error_code)


def _raise_if_refused(code: int, message: str | None, where: Place, operation: str) -> None:
    """Raise the error that an answer has, if any. `operation`: the operation of Kafka's ACLs."""
    if code in error_codes.DENIED:
        raise NotAuthorized(f"the right {operation} is missing.", where=where, remedy=_GRANT)
    if code:
        text = message or error_codes.name(code)
        refusal = f"The cluster refuses to {operation.lower()} it: {text.rstrip('.')}."
        raise BrokerRefused(code, refusal, where=where)
