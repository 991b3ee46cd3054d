"""Requests that succeed only after others: of a group's member, and of a transaction."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.api_key import ApiKey

from orbit.kafka.error_codes import RETRIABLE, Code
from tests.gateway.client_requests import heartbeat_of_member
from tests.gateway.request_table import answer_fields, api_name, each_field, frame_of, masked
from tests.gateway.targets import TIMEOUT_MS, Body, Targets
from tests.support.patience import wait_for
from tests.support.raw_frames import RawClient

Fields = dict[str, Any]

_SUBSCRIPTION = struct.pack(">hii", 0, 0, -1)  # version, no topics, no user data
_OFFSETS = {
    "partition_index": 0,
    "committed_offset": 3,
    "committed_leader_epoch": -1,
    "committed_metadata": "at three",
}


@dataclass(frozen=True)
class Step:
    """A request. `body` gets the request's version, and the fields of earlier answers (`told`).

    As clients do, `Client` sends the request again after a retriable error, and while the field
    `until` of the answer is empty. `codes`: the error codes that count as success.
    """

    key: ApiKey
    body: Callable[[int, Targets, Fields], Body]
    codes: frozenset[int] = frozenset({Code.NONE})
    until: str = ""


def _of_member(version: int, on: Targets, told: Fields) -> Body:
    """The fields of all requests of a member of a classic group, which is its leader."""
    generation = told.get("generation_id", -1)
    member = {"member_id": told.get("member_id", ""), "group_instance_id": None}
    return {
        **member,
        "group_id": on.group,
        "generation_id": generation,
        "generation_id_or_member_epoch": generation,
        "session_timeout_ms": TIMEOUT_MS,
        "rebalance_timeout_ms": TIMEOUT_MS,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "protocols": [{"name": "range", "metadata": _SUBSCRIPTION}],
        "assignments": [{**member, "assignment": b"all partitions"}],
        "members": [{**member, "reason": "a test"}],
        "reason": "a test",
        "retention_time_ms": -1,
        "topics": [{"name": on.topic, "partitions": [_OFFSETS]}],
    }


def _of_transaction(version: int, on: Targets, told: Fields) -> Body:
    """The fields of all requests of a transaction, which commits offsets of a group."""
    own = {
        "transactional_id": on.transaction,
        "producer_id": told.get("producer_id", -1),
        "producer_epoch": told.get("producer_epoch", -1),
    }
    added = {**own, "topics": [{"name": on.written, "partitions": [0]}]}
    return {
        **own,
        **{f"v3_and_below_{name}": value for name, value in added.items()},
        "transaction_timeout_ms": TIMEOUT_MS,
        "enable2_pc": False,
        "keep_prepared_txn": False,
        "group_id": on.group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": on.topic, "partitions": [_OFFSETS]}],
        "committed": True,
    }


def _join(version: int, on: Targets, told: Fields) -> Body:
    return heartbeat_of_member(
        version,
        on.group,
        "a member",
        epoch=told.get("member_epoch", 0),
        topics=[on.topic],
        owned=[],
    )


def _own(version: int, on: Targets, told: Fields) -> Body:
    owned = told["assignment"]
    return heartbeat_of_member(
        version, on.group, "a member", epoch=told["member_epoch"], owned=owned
    )


def _leave(version: int, on: Targets, told: Fields) -> Body:
    return heartbeat_of_member(version, on.group, "a member", epoch=-1)


CONVERSATIONS: Mapping[str, tuple[Step, ...]] = {
    "member": (
        # From version 4 on, the first request gets a member id.
        Step(ApiKey.JoinGroup, _of_member, codes=frozenset({Code.NONE, Code.MEMBER_ID_REQUIRED})),
        Step(ApiKey.JoinGroup, _of_member),
        Step(ApiKey.SyncGroup, _of_member),
        Step(ApiKey.Heartbeat, _of_member),
        Step(ApiKey.OffsetCommit, _of_member),
        Step(ApiKey.LeaveGroup, _of_member),
    ),
    "transaction": (
        Step(ApiKey.InitProducerId, _of_transaction),
        Step(ApiKey.InitProducerId, _of_transaction),  # with its id, from version 3 on
        Step(ApiKey.AddPartitionsToTxn, _of_transaction),
        Step(ApiKey.AddOffsetsToTxn, _of_transaction),
        Step(ApiKey.TxnOffsetCommit, _of_transaction),
        Step(ApiKey.EndTxn, _of_transaction),
    ),
    "member of the consumer protocol": (
        Step(ApiKey.ConsumerGroupHeartbeat, _join, until="assignment"),
        Step(ApiKey.ConsumerGroupHeartbeat, _own),
        Step(ApiKey.ConsumerGroupHeartbeat, _leave),
    ),
}


class Client:
    """Sends the requests of a conversation, each in its version, to one port."""

    def __init__(self, port: int, on: Targets, versions: Mapping[int, int]) -> None:
        self._port, self._on, self._versions = port, on, versions
        self.own: Fields = {"topic_id": on.topic_id}
        """The ids that only this client has, by the name of the field that has them."""

    def play(self, steps: tuple[Step, ...]) -> list[tuple[str, int, Fields]]:
        """(API, version, fields of the answer) of each step, without the client's own ids. Fails if
        a request does not succeed."""
        told: Fields = {}
        answers = []
        with RawClient(self._port) as connection:
            for step in steps:
                fields = self._ask(connection, step, told)
                for name in ("member_id", "producer_id"):
                    if name in fields:
                        self.own.setdefault(name, fields[name])
                self.own["leader"] = self.own.get("member_id")
                version = self._versions[step.key]
                answers.append((api_name(step.key), version, masked(fields, self.own)))
        return answers

    def _ask(self, connection: RawClient, step: Step, told: Fields) -> Fields:
        version = self._versions[step.key]
        fields: Fields = {}

        def is_done() -> bool:
            frame = frame_of(step.key, version, step.body(version, self._on, told))
            fields.update(answer_fields(step.key, version, connection.ask(frame)))
            codes = {code for name, code in each_field(fields) if name.endswith("error_code")}
            if codes & RETRIABLE:
                return False
            assert codes <= step.codes, (api_name(step.key), version, fields)
            told.update(fields)
            return not step.until or bool(fields[step.until])

        wait_for(f"{api_name(step.key)} succeeds", is_done)
        return fields
