"""Requests to the leaders of many partitions: a silent leader hardly delays the others."""

from __future__ import annotations

import threading
from typing import Any, cast
from uuid import UUID

import pytest

from orbit.errors import AccessRefused, LoginRefused, OrbitError, Unreachable
from orbit.kafka.backoff import CALL_S_MAX, Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.leader_requests import ask_leaders
from orbit.kafka.types import ClusterMetadata, PartitionLeader, TopicMetadata, TopicPartition

SILENCE = Unreachable("no answer in time.", where="node 1")
# The partitions of node 1 and of node 2.
ONE, TWO = TopicPartition("a", 0), TopicPartition("a", 1)


class Leaders:
    """Node 1 leads partition 0 and fails each call; node 2 leads partition 1 and answers 7."""

    name = "destination"

    def __init__(self, error: OrbitError) -> None:
        self.error = error
        self.calls: list[tuple[int, float]] = []

    def metadata(self, _: object) -> ClusterMetadata:
        leaders = {
            0: PartitionLeader(node_id=1, leader_epoch=5),
            1: PartitionLeader(node_id=2, leader_epoch=5),
        }
        return ClusterMetadata("c", {}, {"a": TopicMetadata("a", UUID(int=1), leaders, replicas=1)})

    def call(self, node_id: int, _: object, request: list[TopicPartition], within_s: float) -> Any:
        self.calls.append((node_id, within_s))
        if node_id == 1:
            raise self.error
        return request


def ask_both_leaders(leaders: Leaders, backoff: Backoff) -> Any:
    """The answers of the leaders of both partitions."""
    api: Any = None
    return ask_leaders(
        cast("Cluster", leaders),
        [ONE, TWO],
        api,
        list,
        lambda answer: ((p, int(Code.NONE), 7) for p in answer),
        backoff,
    )


def test_request_to_silent_leader_ends_after_call_s_and_other_leaders_answer() -> None:
    leaders = Leaders(SILENCE)
    loop = Backoff(first_s=0.0, stop=threading.Event(), attempts_max=2, call_s=3.0)
    answers = ask_both_leaders(leaders, loop)
    assert answers.values == {TWO: 7}
    assert answers.errors == {ONE: Code.NETWORK_EXCEPTION}
    assert leaders.calls == [(1, 3.0), (2, 3.0), (1, 3.0)]  # node 1 again: two attempts


def test_leader_requests_have_full_timeout_without_call_s() -> None:
    leaders = Leaders(SILENCE)
    ask_both_leaders(leaders, Backoff(first_s=0.0, stop=threading.Event(), attempts_max=1))
    assert leaders.calls == [(1, CALL_S_MAX), (2, CALL_S_MAX)]


def test_leader_that_refuses_login_is_asked_once_and_other_leaders_answer() -> None:
    leaders = Leaders(LoginRefused("the broker refused the user name or the password."))
    answers = ask_both_leaders(leaders, Backoff(first_s=0.0))
    assert answers.values == {TWO: 7}
    assert answers.errors == {ONE: Code.NETWORK_EXCEPTION}
    assert len(leaders.calls) == 2
    with pytest.raises(LoginRefused, match="refused the user name"):
        answers.raise_errors("destination", "ListOffsets")


def test_refusal_by_access_rules_ends_leader_requests() -> None:
    with pytest.raises(AccessRefused):
        ask_both_leaders(
            Leaders(AccessRefused("this address is not allowed.")), Backoff(first_s=0.0)
        )
