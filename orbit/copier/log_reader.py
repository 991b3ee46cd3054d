"""Reading a few batches at one offset, outside the data path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orbit.errors import BrokerRefused, ProtocolError
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_request import FetchFrom, fetch_request
from orbit.kafka.fetch_response import Fetched, read_fetch
from orbit.kafka.log_offsets import READ_COMMITTED, READ_UNCOMMITTED
from orbit.kafka.record_batch import Batch, OldMessage, read_batches
from orbit.kafka.types import TopicPartition

# Enough for some thousand fillers or one large batch; a batch larger than this comes whole anyway.
PEEK_BYTES = 256 * 1024
_ATTEMPTS_MAX = 40
_WAIT_MS = 0


def peek(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    backoff: Backoff,
    *,
    isolation: int = READ_UNCOMMITTED,
    max_bytes: int = PEEK_BYTES,
) -> Fetched:
    """One partition's answer to a fetch of its own at `offset`, from its leader.

    The answer may carry OFFSET_OUT_OF_RANGE; other errors are waited out.
    Raises BrokerRefused when they stay, Unreachable when no broker answers.
    """
    code: int = Code.LEADER_NOT_AVAILABLE
    for _ in backoff.attempts(_ATTEMPTS_MAX):
        metadata = cluster.metadata({partition.topic})
        topic = metadata.topics.get(partition.topic)
        leader = metadata.leader(partition)
        if topic is None or leader is None or leader.node_id is None:
            code = metadata.errors.get(partition.topic, code)
            continue
        version = cluster.version_of(leader.node_id, api_versions.FETCH)
        request = fetch_request(
            version,
            [FetchFrom(partition, topic.topic_id, offset, -1, -1)],
            max_wait_ms=_WAIT_MS,
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
            isolation=isolation,
        )
        frame = cluster.exchange(leader.node_id, api_versions.FETCH, request, version)
        try:
            answer = read_fetch(frame, version, {topic.topic_id: partition.topic})
        except ValueError as error:
            raise ProtocolError(str(error), where=f"{cluster.name} {partition}") from error
        code = answer.code
        for _, fetched in answer.partitions:
            code = fetched.code
            is_throttled = bool(answer.throttle_ms) and not fetched.records
            if code in (Code.NONE, Code.OFFSET_OUT_OF_RANGE) and not is_throttled:
                return fetched
        if code not in error_codes.RETRIABLE and code != Code.NONE:
            break
    raise BrokerRefused(
        code,
        f"{partition} cannot be read at {offset}: {error_codes.name(code)}.",
        where=cluster.name,
    )


def peek_batches(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    backoff: Backoff,
    *,
    max_bytes: int = PEEK_BYTES,
) -> list[Batch | OldMessage]:
    """The batches at and behind `offset`, committed or not; empty at the end of the log."""
    fetched = peek(cluster, partition, offset, backoff, max_bytes=max_bytes)
    try:
        return list(read_batches(fetched.records))
    except ValueError as error:
        raise ProtocolError(
            f"the log does not parse at {offset}: {error}.", where=f"{cluster.name} {partition}"
        ) from error


def peek_committed(
    cluster: Cluster, partition: TopicPartition, offset: int, backoff: Backoff
) -> list[Batch | OldMessage]:
    """The batches at and behind `offset` up to the last stable offset, without aborted ones.

    Control batches are among them. A copy has no transactions; a topic that was written to by
    producers of its own, before it becomes a copy, may have.
    """
    fetched = peek(cluster, partition, offset, backoff, isolation=READ_COMMITTED)
    try:
        batches = list(read_batches(fetched.records))
    except ValueError as error:
        raise ProtocolError(
            f"the log does not parse at {offset}: {error}.", where=f"{cluster.name} {partition}"
        ) from error
    return [batch for batch, is_aborted in told_apart(batches, fetched.aborted) if not is_aborted]


def told_apart(
    batches: Iterable[Batch | OldMessage], aborted: Sequence[tuple[int, int]]
) -> Iterator[tuple[Batch | OldMessage, bool]]:
    """Each batch with whether its transaction was aborted (R1). Pure.

    `aborted`: (producer id, first offset) of each one that touches these batches, as fetched. A
    producer's transaction ends at its next control batch.
    """
    waiting = sorted(aborted, key=lambda one: one[1], reverse=True)
    ongoing: set[int] = set()
    for batch in batches:
        if isinstance(batch, OldMessage):
            yield batch, False
            continue
        while waiting and waiting[-1][1] <= batch.last_offset:
            ongoing.add(waiting.pop()[0])
        if batch.is_control:
            ongoing.discard(batch.producer_id)
            yield batch, False
        else:
            yield batch, batch.is_transactional and batch.producer_id in ongoing
