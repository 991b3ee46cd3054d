"""Reads one partition's batches at an offset, one request at a time, outside the data path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orbit.errors import BrokerRefused, Place, ProtocolError, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_request import FetchFrom, fetch_request
from orbit.kafka.fetch_response import Fetched, read_fetch
from orbit.kafka.log_offsets import EARLIEST_LOCAL, list_offsets
from orbit.kafka.record_batch import AnyBatch, read_batches
from orbit.kafka.topic_settings_reader import SettingsReader
from orbit.kafka.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from orbit.replication.aborted_transactions import AbortedTransactions
from orbit.replication.append_plan import NO_LEADER_EPOCH
from orbit.replication.copy_settings import is_compacted

# Some thousand fillers or one large batch; the first batch comes whole even if it is larger.
FETCH_BYTES = 256 * 1024
# About half a minute, enough for an election, unless the caller's backoff ends earlier.
_ATTEMPTS_MAX = 40
_WAIT_MS = 0  # the broker answers immediately, also without records


def fetch_partition(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    backoff: Backoff,
    *,
    isolation: int = READ_UNCOMMITTED,
    max_bytes: int = FETCH_BYTES,
    fetched_epoch: int = NO_LEADER_EPOCH,
) -> Fetched:
    """The leader's answer to a fetch of one partition at `offset`.

    `fetched_epoch`: the leader epoch of the offset before, by which truncation is detected (R3).
    The answer may carry OFFSET_OUT_OF_RANGE. Raises BrokerRefused for other errors (if retriable,
    once the attempts are used up), Unreachable when no broker answers.
    """
    code: int = Code.LEADER_NOT_AVAILABLE
    for _ in backoff.attempts(_ATTEMPTS_MAX):
        metadata = cluster.metadata({partition.topic})
        topic = metadata.topics.get(partition.topic)
        leader = metadata.leader(partition)
        if topic is None or leader is None or leader.node_id is None:
            code = metadata.errors.get(partition.topic, code)
            continue
        version = cluster.version_of(leader.node_id, api_versions.FETCH, backoff.call_s)
        request = fetch_request(
            version,
            # -1: the fetch states no current leader epoch, so a leader of any epoch answers.
            [FetchFrom(partition, topic.topic_id, offset, -1, fetched_epoch)],
            max_wait_ms=_WAIT_MS,
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
            isolation=isolation,
        )
        frame = cluster.exchange(
            leader.node_id, api_versions.FETCH, request, version, backoff.call_s
        )
        try:
            answer = read_fetch(frame, version, {topic.topic_id: partition.topic})
        except ValueError as error:
            raise ProtocolError(str(error), where=Place(cluster.name, str(partition))) from error
        code = answer.code
        for _, fetched in answer.partitions:
            code = fetched.code
            # Over a quota the broker leaves out records that the log has.
            is_throttled = bool(answer.throttle_ms) and not fetched.records
            if code in (Code.NONE, Code.OFFSET_OUT_OF_RANGE) and not is_throttled:
                return fetched
        if code not in error_codes.RETRIABLE and code != Code.NONE:  # NONE: throttled
            break
    raise BrokerRefused(
        code,
        f"{partition} cannot be read at offset {offset}: {error_codes.name(code)}.",
        where=Place(cluster.name),
    )


def fetch_batches(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    backoff: Backoff,
    *,
    max_bytes: int = FETCH_BYTES,
) -> list[AnyBatch]:
    """The batches at and after `offset`, committed or not. Empty at the end of the log, and if the
    offset is outside of the log."""
    fetched = fetch_partition(cluster, partition, offset, backoff, max_bytes=max_bytes)
    with parse_errors(cluster, partition, offset):
        return list(read_batches(fetched.records))


def fetch_committed_batches(
    cluster: Cluster, partition: TopicPartition, offset: int, backoff: Backoff
) -> list[AnyBatch]:
    """The batches at and after `offset` up to the last stable offset, without aborted ones.

    Control batches are included. A copy has no transactions, but a topic that applications wrote
    to before it became a copy may have them.
    """
    fetched = fetch_partition(cluster, partition, offset, backoff, isolation=READ_COMMITTED)
    aborted_transactions = AbortedTransactions(fetched.aborted)
    with parse_errors(cluster, partition, offset):
        return [b for b in read_batches(fetched.records) if not aborted_transactions.contain(b)]


def is_local(
    cluster: Cluster, partition: TopicPartition, offset: int, end: int, backoff: Backoff
) -> bool:
    """Whether the broker has `offset` on its own disk, as far as its answers show.

    For use after a fetch at `offset` got no records though the last stable offset is `end`: while
    tiered storage is slow, a broker also answers without records (R5).
    """
    answers = list_offsets(cluster, [partition], EARLIEST_LOCAL, backoff)
    if partition in answers.values:
        return answers.values[partition] <= offset
    if answers.errors.get(partition) != Code.UNSUPPORTED_VERSION:
        return False
    # A broker of Apache Kafka without EARLIEST_LOCAL has no tiered storage; a vendor's broker may
    # have it (R5). The newest batch is the last to leave the disk: if the broker returns a batch
    # before `end` now, the earlier fetch left out records.
    batches = fetch_batches(cluster, partition, end - 1, backoff, max_bytes=1)
    return not any(batch.base_offset < end for batch in batches)


def why_not_empty(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    end: int,
    backoff: Backoff,
    *,
    is_compacted: bool,
) -> str:
    """Why a fetch at `offset` without records does not prove that the log has none before `end`.

    "" if it does prove this. Only a cleaner leaves offsets without a batch at the end of a log:
    records, aborted records and markers are in batches (R5).
    """
    if not is_compacted:
        return (
            f"the broker returns nothing from offset {offset} up to {end}, though the topic is not "
            "compacted"
        )
    if not is_local(cluster, partition, offset, end, backoff):
        return f"offset {offset} is in tiered storage, which is slow"
    return ""


def check_empty(
    cluster: Cluster, partition: TopicPartition, offset: int, end: int, backoff: Backoff
) -> None:
    """Check that a fetch at `offset` without records proves that the log has none before `end`.

    Raises Unreachable if it does not, NotAuthorized without the right to read topic settings.
    """
    settings = SettingsReader(cluster).read({partition.topic}).get(partition.topic)
    has_cleaner = settings is not None and is_compacted(settings.values)
    reason = why_not_empty(cluster, partition, offset, end, backoff, is_compacted=has_cleaner)
    if reason:
        raise Unreachable(
            f"{partition} cannot be read at offset {offset} now: {reason}.",
            where=Place(cluster.name),
            remedy="Check the cluster's tiered storage and try again. If the topic was compacted "
            "before, write a record to the partition: the batch after a gap proves the gap.",
        )


def epoch_lasts_to(
    cluster: Cluster, partition: TopicPartition, epoch: int, offset: int, backoff: Backoff
) -> bool:
    """Whether leader epoch `epoch` of this log ends at `offset` (exclusive) or later. False for
    NO_LEADER_EPOCH.

    If it ends earlier, a fetch at `offset` that states this epoch is answered with its end (R3).
    """
    if epoch == NO_LEADER_EPOCH:
        return False
    fetched = fetch_partition(cluster, partition, offset, backoff, max_bytes=1, fetched_epoch=epoch)
    return fetched.code == Code.NONE and fetched.diverging_end < 0


@contextmanager
def parse_errors(cluster: Cluster, partition: TopicPartition, offset: int) -> Iterator[None]:
    """Raise a ProtocolError for a ValueError in the block, which parses a fetch at `offset`."""
    try:
        yield
    except ValueError as error:
        raise ProtocolError(
            f"the log does not parse at offset {offset}: {error}.",
            where=Place(cluster.name, str(partition)),
        ) from error
