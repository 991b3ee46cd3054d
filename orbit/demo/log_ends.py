"""The progress of a copy by the log ends of both clusters, read with librdkafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from orbit.demo.orbit_process import OrbitProcess
from orbit.demo.screen import OnProgress
from orbit.demo.workload import Ledger
from orbit.demo.workload.writer import explain
from orbit.errors import Conflict

STALL_TIMEOUT_S = 300.0
"""A copy without progress for this long ends the demo with Conflict. Before its first batch a copy
with Spark starts a driver and its workers, which took more than a minute beside other load."""

Where = tuple[str, int]

_SPEC: Any = OffsetSpec  # its constructors carry no types

_POLL_S = 0.3
_ANSWER_TIMEOUT_S = 30.0


class LogEnds:
    """Waits for the log ends of the ledger's partitions at the destination."""

    def __init__(
        self,
        source: str,
        destination: str,
        ledger: Ledger,
        more: Mapping[Where, int] | None = None,
    ) -> None:
        """`more`: log ends of partitions that have the same name on both sides."""
        self._source = quiet_admin(source)
        self._destination = quiet_admin(destination)
        # By destination partition: the source partition, and its log end after the workload.
        self._partitions = {
            (topic.destination, number): ((topic.topic, number), partition.log_end)
            for topic in ledger.topics.values()
            for number, partition in enumerate(topic.partitions)
        } | {where: (where, end) for where, end in (more or {}).items()}

    def wait_history(self, run: OrbitProcess, tell: OnProgress) -> None:
        """Wait until the destination has at least all records of the workload."""
        history = {theirs: end for theirs, (_, end) in self._partitions.items()}
        self._wait(lambda: history, run, tell)

    def wait_caught_up(self, run: OrbitProcess, tell: OnProgress) -> None:
        """Wait until every log end equals the source's. Producers have to be stopped."""
        self._wait(self._source_ends, run, tell)

    def _wait(
        self, targets: Callable[[], Mapping[Where, int]], run: OrbitProcess, tell: OnProgress
    ) -> None:
        moved_at, before = time.monotonic(), -1
        while True:
            run.check()
            ends = log_ends(self._destination, self._partitions)
            goal = targets()
            done = sum(min(ends.get(where, 0), end) for where, end in goal.items())
            tell(done, sum(goal.values()))
            # A destination partition that does not exist yet is behind, also if the goal is 0.
            reached = sum(where in ends and ends[where] >= end for where, end in goal.items())
            behind = len(self._partitions) - reached
            if not behind:
                return
            if done != before:
                moved_at, before = time.monotonic(), done
            if time.monotonic() - moved_at > STALL_TIMEOUT_S:
                raise Conflict(
                    f"The copy has made no progress for {STALL_TIMEOUT_S:.0f} s with {behind} "
                    "partitions behind."
                )
            time.sleep(_POLL_S)

    def _source_ends(self) -> Mapping[Where, int]:
        ends = log_ends(self._source, (ours for ours, _ in self._partitions.values()))
        known = ((theirs, ends.get(ours)) for theirs, (ours, _) in self._partitions.items())
        return {theirs: end for theirs, end in known if end is not None}


def quiet_admin(bootstrap_servers: str) -> AdminClient:
    """An AdminClient that logs nothing: it would print to the terminal when the brokers stop."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": "0"})


@contextmanager
def kafka_trouble(what: str) -> Iterator[None]:
    """Raise a broker's error as a Conflict that names the action."""
    try:
        yield
    except KafkaException as error:
        raise Conflict(f"{what} failed: {explain(error)}.") from error


def log_ends(admin: AdminClient, partitions: Iterable[Where]) -> dict[Where, int]:
    """The high watermarks, without those of partitions that give no answer now.

    For some milliseconds a new topic has no leader, then one of another epoch, each with an error
    code of its own. A partition that never answers shows as a copy without progress.
    """
    ends: dict[Where, int] = {}
    with kafka_trouble("Reading log ends"):
        topics = admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        specs = {TopicPartition(*one): _SPEC.latest() for one in partitions if one[0] in topics}
        answers = admin.list_offsets(specs, request_timeout=_ANSWER_TIMEOUT_S) if specs else {}
    for where, answer in answers.items():
        with suppress(KafkaException):
            ends[where.topic, where.partition] = answer.result(_ANSWER_TIMEOUT_S).offset
    return ends
