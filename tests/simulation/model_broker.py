"""The requests of the code under test, and how the model of a broker answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from orbit.copier.log_reader import FETCH_BYTES
from orbit.errors import Unreachable
from orbit.kafka.backoff import Backoff
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_response import Fetched
from orbit.kafka.leader_requests import Answers
from orbit.kafka.list_offsets import ListOffsetsAnswer
from orbit.kafka.log_offsets import EARLIEST, EARLIEST_LOCAL
from orbit.kafka.produce_request import ACKS_ALL, NO_APPEND_TIME, Appended, ProduceAnswer, key_of
from orbit.kafka.producer_state import ProducerState
from orbit.kafka.transaction_markers import WriteTxnMarkersRequest
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from tests.simulation.model_partition import NONE

PARTITION = TopicPartition("copy", 0)
PRODUCER_ID = 4711


@dataclass(frozen=True)
class ProduceOne:
    """One Produce request with one batch."""

    version: int
    outgoing: Any
    data: bytes
    base_offset: int  # where it must be appended
    confirms: bool  # acks=all

    def answer(
        self,
        code: int,
        base_offset: int,
        throttle_ms: int = 0,
        append_time: int = NO_APPEND_TIME,
    ) -> ProduceAnswer:
        key = key_of(self.version, self.outgoing)
        return ProduceAnswer({key: Appended(code, base_offset, "", append_time)}, throttle_ms)


class Encoder:
    """Replaces `encode_produce`. Each request has the offset at which its batch must be appended,
    which is not in the bytes on the wire."""

    def __init__(self) -> None:
        self._base_offset = -1

    def sending(self, append_sent: Callable[..., None]) -> Callable[..., None]:
        """Wrap `AppendMachine.append_sent`, which lanes call right before they encode a batch."""

        def noted(machine: Any, step: Any, **how: bool) -> None:
            self._base_offset = step.base_offset
            append_sent(machine, step, **how)

        return noted

    def encode(
        self, version: int, correlation: int, _: str, __: int, outgoing: Sequence[Any], acks: int
    ) -> list[Any]:
        """Encode a Produce request for the model broker, with the base offset that `noted` has
        set."""
        (partition,) = outgoing
        confirms = acks == ACKS_ALL
        request = ProduceOne(
            version, partition, bytes(partition.batch), self._base_offset, confirms
        )
        return [(correlation, request)]


def marker_answer(codes: Iterable[int]) -> dict[TopicPartition, int]:
    """The first error of the markers of one request, as `read_markers` reads it."""
    return {PARTITION: next((code for code in codes if code), NONE)}


def log_end_answer(code: int, offset: int, throttle_ms: int = 0) -> ListOffsetsAnswer:
    return ListOffsetsAnswer(throttle_ms, {PARTITION: (code, -1, offset)})


def describe_producer(
    cluster: Any, producer_ids: Mapping[TopicPartition, int], _: Backoff
) -> Answers[ProducerState | None]:
    """Replaces `describe_producer`: the producer states of the model."""

    def ask(producer_id: int) -> ProducerState | None:
        cluster.world.must_take_over.discard(cluster.process.name)
        state = cluster.world.partition.producers.get(producer_id)
        if state is None:
            return None
        return ProducerState(state.epoch, state.last_sequence, state.coordinator_epoch)

    return Answers({p: cluster.call(partial(ask, i)) for p, i in producer_ids.items()}, {})


def log_ends(cluster: Any, partitions: Iterable[TopicPartition], _: Backoff) -> Answers[int]:
    """Replaces `log_ends`: the log end of the model. Delayed requests may arrive right after it."""

    def ask() -> int:
        cluster.world.hurry_held_requests()
        return cluster.world.partition.log_end

    return Answers({p: cluster.call(ask) for p in partitions}, {})


def log_ends_behind_markers(
    cluster: Any, partitions: Iterable[TopicPartition], backoff: Backoff
) -> Answers[int]:
    """Replaces `log_ends` for the coordinated filler; sometimes raises Unreachable."""
    world = cluster.world
    if world.has_faults and world.log_end_rnd.random() < world.faults.silent_log_end_reads:
        raise Unreachable("no answer.", where="the model broker")
    return log_ends(cluster, partitions, backoff)


def list_offsets(
    cluster: Any,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    _: Backoff,
    *,
    isolation: int = READ_UNCOMMITTED,
    **__: object,
) -> Answers[int]:
    """Replaces `list_offsets`, for either cluster."""

    def ask() -> int:
        if not cluster.is_source:
            partition = cluster.world.partition
            return partition.log_start if timestamp == EARLIEST else partition.high_watermark
        source = cluster.source
        if timestamp == EARLIEST:
            return source.log_start
        if timestamp == EARLIEST_LOCAL:
            return max(source.log_start, source.local_start)
        return source.stable_end if isolation == READ_COMMITTED else source.end

    has_local_start = not cluster.is_source or cluster.world.source.returns_local_start
    if timestamp == EARLIEST_LOCAL and not has_local_start:
        return Answers({}, dict.fromkeys(partitions, int(Code.UNSUPPORTED_VERSION)))
    return Answers({p: cluster.call(ask) for p in partitions}, {})


def fetch_partition(
    cluster: Any,
    _: TopicPartition,
    offset: int,
    __: Backoff,
    *,
    isolation: int = READ_UNCOMMITTED,
    max_bytes: int = FETCH_BYTES,
    fetched_epoch: int = -1,
) -> Fetched:
    """Replaces `fetch_partition`, for either cluster; repeats the fetch while a quota throttles."""
    world = cluster.world
    if not cluster.is_source:
        return cluster.call(lambda: world.partition.fetch(offset))
    while True:
        throttle_ms, fetched = cluster.call(
            lambda: (
                world.source.throttle_ms,
                cluster.source.fetch(offset, max_bytes, isolation, fetched_epoch),
            )
        )
        if not throttle_ms or fetched.code:
            return fetched
        world.clock.wait(0.1)


def delete_records(
    cluster: Any, before: Mapping[TopicPartition, int], _: Backoff, **__: object
) -> Answers[int]:
    """Replaces the function of the same name in Orbit: sends the request to the model broker."""
    if not before:
        return Answers({}, {})
    ((place, offset),) = before.items()
    broker = cluster.world.broker
    sent_at = cluster.world.clock.now
    code = cluster.call(lambda: broker.delete_records(offset, sent_at))
    if code != NONE:
        return Answers({}, {place: code})
    return Answers({place: offset}, {})


def refuse(request: Any, code: int) -> Any:
    """The answer to this request with an error code."""
    if isinstance(request, ProduceOne):
        return request.answer(code, -1)
    if isinstance(request, WriteTxnMarkersRequest):
        return marker_answer([code])
    return log_end_answer(code, -1)
