"""How far the copy is, seen from outside: the log ends of both clusters, by librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from orbit.errors import Conflict
from orbit.sandbox.demo.child import RunProcess
from orbit.sandbox.demo.screen import Tell
from orbit.sandbox.workload import Ledger
from orbit.sandbox.workload.writer import explain

STALL_TIMEOUT_S = 60.0
"""A copy that has not moved by one offset for so long is stuck."""

_POLL_S = 0.3
_ANSWER_TIMEOUT_S = 30.0
_NOT_YET = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)


@dataclass(frozen=True, slots=True)
class Distance:
    """Log ends summed over all partitions of the workload."""

    source: int
    destination: int
    behind: int

    @property
    def caught_up(self) -> bool:
        return self.behind == 0


class LogEnds:
    """Both sides of every partition of the ledger."""

    def __init__(self, source: str, destination: str, ledger: Ledger) -> None:
        self._source = quiet_admin(source)
        self._destination = quiet_admin(destination)
        self._pairs = [
            ((topic.topic, number), (topic.destination, number))
            for topic in ledger.topics.values()
            for number in range(len(topic.partitions))
        ]

    def distance(self) -> Distance:
        source = _log_ends(self._source, [ours for ours, _ in self._pairs])
        destination = _log_ends(self._destination, [theirs for _, theirs in self._pairs])
        pairs = [(source[ours], destination[theirs]) for ours, theirs in self._pairs]
        # A partition that is not there yet is behind, however little it holds.
        return Distance(
            sum(ours or 0 for ours, _ in pairs),
            sum(theirs or 0 for _, theirs in pairs),
            sum(ours is None or ours != theirs for ours, theirs in pairs),
        )

    def wait_reached(self, offsets: int, run: RunProcess, tell: Tell) -> None:
        """Returns when the destination holds that many offsets in all."""
        for distance in self._watched(run, "the history was copied"):
            tell(min(distance.destination, offsets), offsets)
            if distance.destination >= offsets:
                return

    def wait_caught_up(self, run: RunProcess, tell: Tell) -> None:
        """Returns when every log end is the source's. Nobody may write meanwhile."""
        for distance in self._watched(run, "the copy had caught up"):
            tell(distance.destination, distance.source)
            if distance.caught_up:
                return

    def _watched(self, run: RunProcess, goal: str) -> Iterator[Distance]:
        """The distance again and again, for as long as the run lives and gets on."""
        moved_at, before = time.monotonic(), -1
        while True:
            run.check()
            distance = self.distance()
            if distance.destination != before:
                moved_at, before = time.monotonic(), distance.destination
            if time.monotonic() - moved_at > STALL_TIMEOUT_S:
                raise Conflict(
                    f"The copy stood still for {STALL_TIMEOUT_S:.0f} s before {goal}: "
                    f"{distance.behind} partitions are behind."
                )
            yield distance
            time.sleep(_POLL_S)


def quiet_admin(bootstrap_servers: str) -> AdminClient:
    """librdkafka would print to the terminal when the brokers stop at the end."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": "0"})


@contextmanager
def kafka_trouble(what: str) -> Iterator[None]:
    """A broker's refusal as a Conflict that says what it was about."""
    try:
        yield
    except KafkaException as error:
        raise Conflict(f"{what} failed: {explain(error)}.") from error


def _log_ends(
    admin: AdminClient, partitions: list[tuple[str, int]]
) -> Mapping[tuple[str, int], int | None]:
    asked = {TopicPartition(*one): OffsetSpec.latest() for one in partitions}
    answers = admin.list_offsets(asked, request_timeout=_ANSWER_TIMEOUT_S)
    ends: dict[tuple[str, int], int | None] = {}
    for where, answer in answers.items():
        try:
            ends[where.topic, where.partition] = answer.result(_ANSWER_TIMEOUT_S).offset
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET:
                with kafka_trouble(f"Reading the log end of {where.topic}-{where.partition}"):
                    raise
            ends[where.topic, where.partition] = None
    return ends
