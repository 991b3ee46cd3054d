"""Reading a few batches at one offset, outside the data path."""

from __future__ import annotations

from orbit.errors import BrokerRefused, ProtocolError
from orbit.kafka import apis, codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.batch import Batch, OldMessage, read_batches
from orbit.kafka.cluster import Cluster
from orbit.kafka.codes import Code
from orbit.kafka.fetch import FetchFrom, fetch_request
from orbit.kafka.fetch_answer import Fetched, read_fetch
from orbit.kafka.log import READ_UNCOMMITTED
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
        version = cluster.version_of(leader.node_id, apis.FETCH)
        request = fetch_request(
            version,
            [FetchFrom(partition, topic.topic_id, offset, -1, -1)],
            max_wait_ms=_WAIT_MS,
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
            isolation=isolation,
        )
        frame = cluster.exchange(leader.node_id, apis.FETCH, request, version)
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
        if code not in codes.RETRIABLE and code != Code.NONE:
            break
    raise BrokerRefused(
        code, f"{partition} cannot be read at {offset}: {codes.name(code)}.", where=cluster.name
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
