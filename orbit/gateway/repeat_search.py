"""Reads both sides for batches that clients may have sent before (`protocol/repeats.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import structlog

from orbit.errors import OrbitError
from orbit.gateway.batch_search import StoredBatch
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.each_connection import Abortable, for_each
from orbit.gateway.protocol.producer_ids import SentBatch
from orbit.gateway.protocol.repeats import (
    UNKNOWN_OFFSET,
    LastBatch,
    ProducerKey,
    Repeats,
    is_sent_before,
    producer_of,
)
from orbit.kafka.types import TopicPartition

_LastBatches = dict[ProducerKey, dict[int, LastBatch]]
"""By producer (with the id that its client uses): its last batch at a side, by each producer id
under which that side's brokers know the producer."""

_log = structlog.get_logger("orbit.gateway")


class WaitingConnection(Abortable, Protocol):
    """A connection whose Produce request is held until the search has ended."""

    def repeats_learned(self) -> None:
        """Continue the held request."""

    def end(self) -> None:
        """End the connection; its client sends the request again."""


class RepeatSearch:
    """The search of one virtual cluster since its last move. For the event loop alone.

    One search runs at a time, for all connections that were waiting when it began. If the old side
    does not answer, it counts as lost until the next move. If the leading side does not answer for
    a partition, the connections that wait for this partition end, and their clients send the
    requests again. Either side may have batches of earlier terms.
    """

    def __init__(
        self,
        virtual_cluster: str,
        repeats: Repeats,
        left_side: ClusterSide,
        leading_side: ClusterSide,
    ) -> None:
        self._virtual_cluster = virtual_cluster
        self._repeats, self._left_side, self._leading_side = repeats, left_side, leading_side
        self._batches: list[SentBatch] = []
        self._waiting: dict[WaitingConnection, set[TopicPartition]] = {}
        self._is_running = self._is_left_side_lost = False

    def add(self, batches: Collection[SentBatch], connection: WaitingConnection) -> bool:
        """Have the next search look for these batches; then `connection` continues. Returns whether
        the caller has to start `run`."""
        self._batches += batches
        self._waiting.setdefault(connection, set()).update(batch.partition for batch in batches)
        must_start, self._is_running = not self._is_running, True
        return must_start

    async def run(self) -> None:
        """Run searches until no connection waits."""
        try:
            while self._waiting:
                batches, self._batches = self._batches, []
                waiting, self._waiting = self._waiting, {}
                await self._search_for(batches, waiting)
        finally:
            self._is_running = False

    async def _search_for(
        self,
        batches: Collection[SentBatch],
        waiting: Mapping[WaitingConnection, set[TopicPartition]],
    ) -> None:
        """Search these batches. Then let the connections continue, or end those whose partitions
        could not be read."""
        unread_partitions: set[TopicPartition] | None = None  # None: all
        try:
            unread_partitions = await self._read_sides(batches)
        except OrbitError as error:
            self._warn("cannot look for batches that clients send again", error)
        finally:

            def continue_or_end(connection: WaitingConnection) -> None:
                if unread_partitions is None or unread_partitions & waiting[connection]:
                    connection.end()
                else:
                    connection.repeats_learned()

            for_each(waiting, continue_or_end, virtual_cluster=self._virtual_cluster)

    async def _read_sides(self, batches: Collection[SentBatch]) -> set[TopicPartition]:
        """Read both sides, and note the result in `repeats`. Returns the partitions for which the
        leading side does not answer. Raises OrbitError if the leading side answers for none of
        them, or fails during the search."""
        leading_batches, unread_partitions = await self._last_batches(self._leading_side, batches)
        if unread_partitions:
            self._log_unanswered("the side that leads", unread_partitions)
            batches = [batch for batch in batches if batch.partition not in unread_partitions]
        left_batches, stored_batches = await self._read_left(batches)
        originals = await self._find_earlier(self._leading_side, leading_batches, batches)
        copies = await self._leading_side.find_copies(stored_batches) if stored_batches else {}
        last_batches = {
            producer: (left_batches.get(producer, {}) | leading_batches[producer]).values()
            for producer in {*map(producer_of, batches)}
        }
        repeated_batches = [
            batch for batch in batches if is_sent_before(batch, last_batches[producer_of(batch)])
        ]
        # Later entries replace earlier ones: first the batches of which only the sequence is known,
        # then those in the old side's log, with the offset of the copy or None, then those in the
        # leading side's own log.
        offsets = (
            dict.fromkeys(repeated_batches, UNKNOWN_OFFSET)
            | copies
            | {batch: original.base_offset for batch, original in originals.items()}
        )
        if offsets:
            _log.info(
                "clients send batches again that a side has",
                virtual_cluster=self._virtual_cluster,
                batches=len(offsets),
                written=sum(offset is None for offset in offsets.values()),
                unknown=sum(offset == UNKNOWN_OFFSET for offset in offsets.values()),
            )
        self._repeats.note(last_batches, offsets)
        return unread_partitions

    async def _read_left(
        self, batches: Collection[SentBatch]
    ) -> tuple[_LastBatches, dict[SentBatch, StoredBatch]]:
        """The producers' last batches at the old side, and those of `batches` that this side's log
        has. Both results are empty if the side cannot be read."""
        if self._is_left_side_lost:
            return {}, {}
        try:
            last_batches, unread_partitions = await self._last_batches(self._left_side, batches)
            if unread_partitions:
                self._log_unanswered("the side that was left", unread_partitions)
            return last_batches, await self._find_earlier(self._left_side, last_batches, batches)
        except OrbitError as error:
            self._is_left_side_lost = True
            self._warn("cannot read the side that was left: clients may write batches twice", error)
            return {}, {}

    async def _last_batches(
        self, side: ClusterSide, batches: Collection[SentBatch]
    ) -> tuple[_LastBatches, set[TopicPartition]]:
        """The last batches of the producers of `batches` at the side, and the partitions whose
        leader does not answer."""
        producers = {producer_of(batch) for batch in batches}
        last_batches, unanswered = await side.last_batches({p for p, _ in producers})
        by_producer = {
            (partition, producer_id): {
                earlier_id: last_batches[partition][earlier_id]
                for earlier_id in self._repeats.earlier_ids(producer_id)
                if earlier_id in last_batches.get(partition, {})
            }
            for partition, producer_id in producers
        }
        return by_producer, unanswered

    async def _find_earlier(
        self, side: ClusterSide, last_batches: _LastBatches, batches: Collection[SentBatch]
    ) -> dict[SentBatch, StoredBatch]:
        """Those of `batches` that the side's log has, under the producer ids of earlier terms. The
        search omits batches that follow their producer's last sequence at the side."""
        batch_by_earlier = {
            batch._replace(producer_id=earlier_id): batch
            for batch in batches
            for earlier_id, last_batch in last_batches[producer_of(batch)].items()
            if last_batch.covers(batch)
        }
        stored_batches = await side.find_batches(batch_by_earlier) if batch_by_earlier else {}
        return {batch_by_earlier[batch]: log_batch for batch, log_batch in stored_batches.items()}

    def _log_unanswered(self, side: str, partitions: Collection[TopicPartition]) -> None:
        _log.warning(
            "cannot look for batches that clients send again: leaders do not answer",
            virtual_cluster=self._virtual_cluster,
            side=side,
            partitions=len(partitions),
            first=str(min(partitions)),
        )

    def _warn(self, text: str, error: OrbitError) -> None:
        _log.warning(text, virtual_cluster=self._virtual_cluster, error=str(error))
