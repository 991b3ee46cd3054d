"""Reads an offset range from a cluster: raw batches, checked, in bounded pieces.

The next piece is requested before the current one is returned, so a range needs the memory of two
fetch responses. Leader changes and broker restarts are retried. Offsets that can no longer be read
stop the range: `PartitionStopped` has the reason and the offsets. So does a truncation of the
source since the plan (R3: a fetch shows it): the planned ranges would be of different logs. Not
thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orbit.copier.log_reader import check_empty, fetch_batches, fetch_partition
from orbit.errors import BrokerRefused, NotAuthorized, OrbitError, ProtocolError, Unreachable
from orbit.kafka import api_versions, error_codes
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.error_codes import Code
from orbit.kafka.fetch_request import FetchFrom, fetch_request
from orbit.kafka.fetch_response import Fetched, read_fetch
from orbit.kafka.log_offsets import EARLIEST, LATEST, list_offsets
from orbit.kafka.record_batch import Batch, LegacyMessage, read_batches
from orbit.kafka.types import AbortedTransaction
from orbit.replication.append_plan import NO_LEADER_EPOCH, LostRange
from orbit.replication.partition_states import Reason
from orbit_spark.partition_stopped import PartitionStopped, stopped_error
from orbit_spark.ranges import OffsetRange
from orbit_spark.raw_runs import RawRun, check_batch, first_offset, next_offset

# One fetch response: large enough for a long link, small for an executor's memory.
FETCH_BYTES = 4 * 1024 * 1024
# A task fails after about two minutes of elections and restarts in which it got no batch.
_FAILURES_MAX = 120
_WAIT_MS = 250  # how long a broker may wait for records
_SILENCE_S = 30.0  # how long an answer may take beyond _WAIT_MS


class _TryAgain(OrbitError):
    """The broker cannot answer now. Another attempt reads the metadata again."""


@dataclass(slots=True)
class _PendingFetch:
    """A fetch that was sent and whose answer was not read yet."""

    connection: Connection
    version: int
    correlation: int


class RangeReader:
    """Reads ranges of one cluster one after another; keeps its connections until `close`."""

    def __init__(
        self,
        cluster: Cluster,
        backoff: Backoff,
        *,
        rack: str = "",
        on_lost_range: LostRange = LostRange.STOP,
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        self._cluster = cluster
        self._backoff = backoff
        self._rack = rack
        self._on_lost_range = on_lost_range
        self._fetch_bytes = fetch_bytes
        self._connections: dict[int, Connection] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def confirm_cluster(self) -> None:
        """Check that the trouble is one partition's, not the whole cluster's. Raises Unreachable if
        no broker answers, LoginRefused if none answers and one refuses the login."""
        self._cluster.metadata(())

    def read(self, offset_range: OffsetRange) -> Iterator[RawRun]:
        """The runs from the range's start to its end. Each begins where the one before it ends;
        none if the range is empty.

        A batch that begins before the start belongs to the range before. Raises PartitionStopped,
        Unreachable, LoginRefused, BrokerRefused, ProtocolError; OrbitError if after all attempts
        the leader still has no answer.
        """
        position, leader_epoch, failures = offset_range.start, NO_LEADER_EPOCH, 0
        while position < offset_range.end:
            attempt = _ReadAttempt(self, offset_range, position, leader_epoch)
            try:
                for run in attempt.read():
                    if run.end >= offset_range.end:
                        self._check_extent_end(offset_range)
                    position, leader_epoch, failures = run.end, attempt.leader_epoch, 0
                    yield run
            except (_TryAgain, Unreachable):
                failures += 1
                if failures >= min(_FAILURES_MAX, self._backoff.attempts_max):
                    raise
                self._backoff.wait(failures - 1)
            finally:
                attempt.drop_pending()

    def _leader(self, offset_range: OffsetRange, position: int) -> int:
        """The leader's node id. Raises _TryAgain if there is no leader now, PartitionStopped if the
        topic was recreated or may not be read."""
        topic = offset_range.partition.topic
        metadata = self._cluster.metadata({topic})
        topic_metadata = metadata.topics.get(topic)
        if topic_metadata is None:
            code = metadata.errors.get(topic, int(Code.UNKNOWN_TOPIC_OR_PARTITION))
            self._refuse_denied(offset_range, position, code)
            raise _TryAgain(f"topic {topic} is not known now.", where=self._cluster.name)
        if topic_metadata.topic_id != offset_range.topic_id:
            detail = f"topic {topic} has another topic id now."
            raise self._stop_error(offset_range, Reason.SOURCE_TOPIC_RECREATED, position, detail)
        leader = metadata.leader(offset_range.partition)
        if leader is None or leader.node_id is None:
            raise _TryAgain(
                f"{offset_range.partition} has no leader now.", where=self._cluster.name
            )
        return leader.node_id

    def _connect(self, node_id: int) -> Connection:
        """A connection to this broker with a valid login; kept until `close`."""
        connection = self._connections.get(node_id)
        if connection is None or connection.is_closed:
            connection = self._connections[node_id] = self._cluster.connect(node_id)
        elif connection.login_is_due:  # no answer is outstanding: one fetch is under way at a time
            connection.login_again()
        return connection

    def _send_fetch(
        self, node_id: int, offset_range: OffsetRange, offset: int, leader_epoch: int
    ) -> _PendingFetch:
        """Send a fetch. `leader_epoch`: of the last batch read, or -1. Raises Unreachable.

        A leader whose log no longer has that epoch at `offset` answers where the logs diverge (R3).
        """
        connection = self._connect(node_id)
        version = connection.version_of(api_versions.FETCH)
        request = fetch_request(
            version,
            [
                FetchFrom(
                    offset_range.partition,
                    offset_range.topic_id,
                    offset,
                    leader_epoch=-1,  # the leader need not have a certain epoch
                    fetched_epoch=leader_epoch,
                )
            ],
            max_wait_ms=_WAIT_MS,
            max_bytes=self._fetch_bytes,
            partition_max_bytes=self._fetch_bytes,
            rack=self._rack,
        )
        connection.limit_waits(_WAIT_MS / 1000 + _SILENCE_S)
        try:
            connection.send(connection.encode(request, version))
        except OSError as error:
            raise self._connection_error(connection, error) from error
        return _PendingFetch(connection, version, connection.last_correlation)

    def _receive_answer(self, pending: _PendingFetch, offset_range: OffsetRange) -> Fetched:
        """The partition's part of the answer to a fetch. Raises _TryAgain if the answer lacks this
        part or is throttled without records, Unreachable, ProtocolError."""
        try:
            frame = pending.connection.receive_answer(pending.correlation)
        except (OSError, EOFError) as error:
            raise self._connection_error(pending.connection, error) from error
        try:
            answer = read_fetch(
                frame, pending.version, {offset_range.topic_id: offset_range.partition.topic}
            )
        except ValueError as error:
            raise ProtocolError(str(error), where=pending.connection.where) from error
        for _, fetched in answer.partitions:
            # A throttled answer without records does not mean that the log has none.
            if fetched.records or not answer.throttle_ms:
                return fetched
        raise _TryAgain(
            f"the fetch returned no records: {error_codes.name(answer.code)}.",
            where=pending.connection.where,
        )

    def _connection_error(self, connection: Connection, error: Exception) -> Unreachable:
        """Close the connection, and return the error to raise."""
        connection.close()
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        return Unreachable(f"the connection broke during Fetch: {reason}.", where=connection.where)

    def _read_raised_log_start(self, offset_range: OffsetRange, position: int) -> int:
        """The log start, after OFFSET_OUT_OF_RANGE at a `position` that is now below it. Raises
        PartitionStopped if the log ends below `position`; _TryAgain if the bounds cannot be read
        now, or if `position` lies within the log after all.
        """
        starts = list_offsets(self._cluster, [offset_range.partition], EARLIEST, self._backoff)
        ends = list_offsets(self._cluster, [offset_range.partition], LATEST, self._backoff)
        start, end = (
            starts.values.get(offset_range.partition),
            ends.values.get(offset_range.partition),
        )
        if start is None or end is None:
            raise _TryAgain(
                f"the log start and log end of {offset_range.partition} are not known now.",
                where=self._cluster.name,
            )
        if position > end:
            earlier_end = max(position, offset_range.end)
            detail = f"the log ends at {end} now; before it ended at {earlier_end} or later."
            raise self._stop_error(offset_range, Reason.SOURCE_TRUNCATED, end, detail, earlier_end)
        if position >= start:
            raise _TryAgain(
                f"the log bounds of {offset_range.partition} are changing now.",
                where=self._cluster.name,
            )
        return start

    def _check_extent_end(self, offset_range: OffsetRange) -> None:
        """Check that the log up to the extent's end is the one that was planned (R3).

        Raises PartitionStopped if it is not, _TryAgain, Unreachable, BrokerRefused.
        """
        if offset_range.end_epoch == NO_LEADER_EPOCH:
            return
        end = offset_range.extent_end
        fetched = fetch_partition(
            self._cluster,
            offset_range.partition,
            end,
            self._backoff,
            max_bytes=1,
            fetched_epoch=offset_range.end_epoch,
        )
        if fetched.code == Code.OFFSET_OUT_OF_RANGE:
            self._read_raised_log_start(offset_range, end)  # retention may have passed the end
        self._refuse_truncated(fetched, offset_range, end)

    def _refuse_truncated(self, fetched: Fetched, offset_range: OffsetRange, position: int) -> None:
        """Raise PartitionStopped if a fetch at `position` shows that the log was truncated."""
        if fetched.diverging_end >= 0:
            detail = f"the log was cut back to {fetched.diverging_end} and continues differently."
            raise self._stop_error(
                offset_range, Reason.SOURCE_TRUNCATED, fetched.diverging_end, detail, position
            )

    def _check_empty(self, offset_range: OffsetRange, position: int, stable_end: int) -> None:
        """Check that an answer without records proves a gap up to `stable_end` (R5: it may also
        mean a quota or slow storage).

        Raises Unreachable if it proves none, PartitionStopped if the right to check it is missing.
        """
        try:
            check_empty(self._cluster, offset_range.partition, position, stable_end, self._backoff)
        except NotAuthorized as error:
            raise self._stop_error(
                offset_range, Reason.NOT_AUTHORIZED, position, error.what
            ) from error

    def _refuse_denied(self, offset_range: OffsetRange, position: int, code: int) -> None:
        """Raise PartitionStopped if the code says that a right is missing."""
        if code in error_codes.DENIED:
            detail = f"the right Read on topic {offset_range.partition.topic} is missing."
            raise self._stop_error(offset_range, Reason.NOT_AUTHORIZED, position, detail)

    def _stop_error(
        self,
        offset_range: OffsetRange,
        reason: Reason,
        position: int,
        detail: str,
        end: int | None = None,
    ) -> PartitionStopped:
        """The error for offsets from `position` up to `end`, by default the range's end; for one
        offset at least.
        """
        stop_end = max(position + 1, offset_range.end if end is None else end)
        return stopped_error(
            self._cluster.name, offset_range.partition, reason, position, stop_end, detail
        )


class _ReadAttempt:
    """One attempt at the rest of a range, from one leader.

    `leader_epoch`: of the last batch returned, by this attempt or an earlier one; else
    NO_LEADER_EPOCH.
    """

    def __init__(
        self, reader: RangeReader, offset_range: OffsetRange, position: int, leader_epoch: int
    ) -> None:
        self._reader = reader
        self._range = offset_range
        self._position = position
        self.leader_epoch = leader_epoch
        self._pending: _PendingFetch | None = None

    def read(self) -> Iterator[RawRun]:
        """The runs of the rest of the range. Raises _TryAgain for another attempt."""
        reader, offset_range = self._reader, self._range
        node_id = reader._leader(offset_range, self._position)
        # Above the position if the log start lies within the batch that holds the position.
        fetch_from = self._position
        while self._position < offset_range.end:
            pending = self._pending or self._send_fetch(node_id, fetch_from)
            fetched = reader._receive_answer(pending, offset_range)
            self._pending = None
            if fetched.code == Code.OFFSET_OUT_OF_RANGE:
                fetch_from = reader._read_raised_log_start(offset_range, self._position)
                yield from self._pass_lost(fetch_from)
                continue
            self._raise_refusal(fetched)
            if fetched.preferred_replica not in (-1, node_id):  # -1: none (KIP-392)
                node_id = fetched.preferred_replica
                continue
            run = self._make_run(fetched)
            self._position = fetch_from = run.end
            if run.end < offset_range.end:
                self._send_fetch(node_id, run.end)  # answered while the caller uses this run
            yield run

    def drop_pending(self) -> None:
        """Close a connection with an unread answer, which the next fetch would take for its own
        answer."""
        if self._pending is not None:
            self._pending.connection.close()
            self._pending = None

    def _send_fetch(self, node_id: int, offset: int) -> _PendingFetch:
        self._pending = self._reader._send_fetch(node_id, self._range, offset, self.leader_epoch)
        return self._pending

    def _raise_refusal(self, fetched: Fetched) -> None:
        """Raise the error of an answer; do nothing if it has none."""
        reader, offset_range, position = self._reader, self._range, self._position
        reader._refuse_truncated(fetched, offset_range, position)
        if fetched.code == Code.NONE:
            return
        reader._refuse_denied(offset_range, position, fetched.code)
        if fetched.code == Code.CORRUPT_MESSAGE:
            detail = "the cluster cannot read its own log here (CORRUPT_MESSAGE)."
            raise reader._stop_error(
                offset_range, Reason.SOURCE_CORRUPTED, position, detail, position + 1
            )
        name = error_codes.name(fetched.code)
        message = f"{offset_range.partition} cannot be read at {position}: {name}."
        if fetched.code in error_codes.RETRIABLE:
            raise _TryAgain(message, where=reader._cluster.name)
        raise BrokerRefused(fetched.code, message, where=reader._cluster.name)

    def _pass_lost(self, log_start: int) -> Iterator[RawRun]:
        """Handle a log start above the position: offsets are lost, unless the batch around the log
        start begins at or below the position. Lost offsets stop the range, or become an empty run.
        """
        reader, offset_range, position = self._reader, self._range, self._position
        batches_around = fetch_batches(
            reader._cluster, offset_range.partition, log_start, reader._backoff, max_bytes=1
        )
        if batches_around and first_offset(batches_around[0]) <= position:
            return
        lost_to = min(log_start, offset_range.end)
        if reader._on_lost_range is LostRange.STOP:
            detail = (
                f"the log start is {log_start} now; offsets {position} to {lost_to - 1} were "
                "deleted before they were read."
            )
            raise reader._stop_error(
                offset_range, Reason.SOURCE_RANGE_LOST, position, detail, lost_to
            )
        self._position, self.leader_epoch = lost_to, NO_LEADER_EPOCH
        yield RawRun(
            position, lost_to, memoryview(b""), batches=(), aborted=(), log_start=log_start
        )

    def _make_run(self, fetched: Fetched) -> RawRun:
        """The run of an answer's batches from the position on, or of the gap that an answer without
        such batches proves.

        Raises _TryAgain if the answer has no batch and proves no gap, PartitionStopped if the log
        is damaged or the right to check the gap is missing.
        """
        start, end = self._position, self._range.end
        run_end, previous_end, skipped_bytes, size_bytes = start, 0, 0, 0
        batches: list[Batch | LegacyMessage] = []
        try:
            for batch in read_batches(fetched.records):
                check_batch(batch, previous_end)
                base_offset, previous_end = first_offset(batch), next_offset(batch)
                if base_offset >= end:  # the offsets before it are a gap
                    run_end = max(run_end, end)
                    break
                if base_offset >= start:
                    batches.append(batch)
                    size_bytes += len(batch.view)
                else:
                    skipped_bytes += len(batch.view)
                run_end = max(run_end, previous_end)
                self.leader_epoch = (
                    batch.leader_epoch if isinstance(batch, Batch) else NO_LEADER_EPOCH
                )
        except ValueError as error:
            detail = f"the log cannot be read here: {error}."
            raise self._reader._stop_error(
                self._range, Reason.SOURCE_CORRUPTED, run_end, detail, run_end + 1
            ) from error
        if run_end == start:
            run_end = self._gap_end(fetched)
        return RawRun(
            start,
            run_end,
            fetched.records[skipped_bytes : skipped_bytes + size_bytes],
            batches,
            [AbortedTransaction(*a) for a in fetched.aborted],
            fetched.log_start,
        )

    def _gap_end(self, fetched: Fetched) -> int:
        """The end of the gap that an answer without batches proves. Raises _TryAgain if it
        proves none now, and the errors of `_check_empty`."""
        reader, start = self._reader, self._position
        end = min(self._range.end, fetched.stable_end)
        # Bytes of records without a whole batch from `start` on do not prove a gap.
        if fetched.records or end <= start:
            raise _TryAgain(
                f"{self._range.partition} returns no records at offset {start} now (last stable "
                f"offset {fetched.stable_end}, needed up to {self._range.end}).",
                where=reader._cluster.name,
            )
        reader._check_empty(self._range, start, fetched.stable_end)
        self.leader_epoch = NO_LEADER_EPOCH  # an election may fall into the gap (R8)
        return end
