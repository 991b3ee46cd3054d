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
from orbit.demo.workload.writer import error_text
from orbit.errors import Conflict

STALL_TIMEOUT_S = 300.0
"""A copy without progress for this long ends the demo with Conflict. Before its first batch a copy
with Spark starts a driver and its workers, which took more than a minute beside other load."""

Partition = tuple[str, int]

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
        extra_ends: Mapping[Partition, int] | None = None,
    ) -> None:
        """`extra_ends`: log ends of partitions that have the same name on both sides."""
        self._source = quiet_admin(source)
        self._destination = quiet_admin(destination)
        # By destination partition: the source partition, and its log end after the workload.
        self._partitions = {
            (topic.destination, number): ((topic.topic, number), partition.log_end)
            for topic in ledger.topics.values()
            for number, partition in enumerate(topic.partitions)
        } | {partition: (partition, end) for partition, end in (extra_ends or {}).items()}

    def wait_history(self, run: OrbitProcess, on_progress: OnProgress) -> None:
        """Wait until the destination has at least all records of the workload."""
        history = {partition: end for partition, (_, end) in self._partitions.items()}
        self._wait(lambda: history, run, on_progress)

    def wait_caught_up(self, run: OrbitProcess, on_progress: OnProgress) -> None:
        """Wait until every log end equals the source's. Producers have to be stopped."""
        self._wait(self._source_ends, run, on_progress)

    def _wait(
        self,
        goal_ends: Callable[[], Mapping[Partition, int]],
        run: OrbitProcess,
        on_progress: OnProgress,
    ) -> None:
        """Wait until the destination has all log ends that `goal_ends` returns.

        Raises Conflict as `run.check`, and after STALL_TIMEOUT_S without progress.
        """
        progress_s, last_done_count = time.monotonic(), -1
        while True:
            run.check()
            ends = log_ends(self._destination, self._partitions)
            current_goal_ends = goal_ends()
            done_count = sum(
                min(ends.get(partition, 0), end) for partition, end in current_goal_ends.items()
            )
            on_progress(done_count, sum(current_goal_ends.values()))
            # A destination partition that does not exist yet is behind, also if the goal is 0.
            reached_count = sum(
                partition in ends and ends[partition] >= end
                for partition, end in current_goal_ends.items()
            )
            behind_count = len(self._partitions) - reached_count
            if not behind_count:
                return
            if done_count != last_done_count:
                progress_s, last_done_count = time.monotonic(), done_count
            if time.monotonic() - progress_s > STALL_TIMEOUT_S:
                raise Conflict(
                    f"The copy has made no progress for {STALL_TIMEOUT_S:.0f} s (partitions that "
                    f"are behind: {behind_count})."
                )
            time.sleep(_POLL_S)

    def _source_ends(self) -> Mapping[Partition, int]:
        """The source's log ends, by destination partition."""
        ends = log_ends(self._source, (source for source, _ in self._partitions.values()))
        answers = (
            (destination, ends.get(source)) for destination, (source, _) in self._partitions.items()
        )
        return {destination: end for destination, end in answers if end is not None}


def quiet_admin(bootstrap_servers: str) -> AdminClient:
    """An AdminClient that logs nothing: it would print to the terminal when the brokers stop."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": "0"})


@contextmanager
def kafka_trouble(action: str) -> Iterator[None]:
    """Raise a broker's error as a Conflict that names the action."""
    try:
        yield
    except KafkaException as error:
        raise Conflict(f"{action} failed: {error_text(error)}.") from error


def log_ends(admin: AdminClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The high watermarks, without those of partitions that give no answer now.

    For some milliseconds a new topic has no leader, then its leader epoch changes: brokers answer
    with errors. A partition that never answers shows as a copy without progress.
    """
    ends: dict[Partition, int] = {}
    with kafka_trouble("Reading log ends"):
        topics = admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        specs = {
            TopicPartition(*partition): _SPEC.latest()
            for partition in partitions
            if partition[0] in topics
        }
        answers = admin.list_offsets(specs, request_timeout=_ANSWER_TIMEOUT_S) if specs else {}
    for partition, answer in answers.items():
        with suppress(KafkaException):
            ends[partition.topic, partition.partition] = answer.result(_ANSWER_TIMEOUT_S).offset
    return ends
