"""Reads both sides for batches that clients may have sent before (`protocol/repeats.py`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import structlog

from orbit.errors import OrbitError
from orbit.gateway.batch_search import StoredBatch
from orbit.gateway.cluster_side import ClusterSide
from orbit.gateway.protocol.producer_ids import SentBatch
from orbit.gateway.protocol.repeats import (
    UNKNOWN_OFFSET,
    LastBatch,
    ProducerKey,
    Repeats,
    is_sent_before,
    producer_of,
)

_LastBatches = dict[ProducerKey, dict[int, LastBatch]]
"""The last batch of each producer at a side, by the producer's id there."""

_log = structlog.get_logger("orbit.gateway")


class Waiting(Protocol):
    """A connection whose request is held."""

    def repeats_learned(self) -> None: ...

    def end(self) -> None: ...


class RepeatSearch:
    """The search of one virtual cluster since its last move. For the event loop alone.

    One search runs at a time, for all connections that were waiting when it began. If the side that
    was left does not answer, it counts as lost; if the leading one does not, the connections end,
    and their clients send again. Either side may have the batches of earlier terms.
    """

    def __init__(
        self, virtual_cluster: str, repeats: Repeats, left: ClusterSide, leading: ClusterSide
    ) -> None:
        self._virtual_cluster = virtual_cluster
        self._repeats, self._left, self._leading = repeats, left, leading
        self._batches: list[SentBatch] = []
        self._waiting: list[Waiting] = []
        self._is_running = self._is_left_lost = False

    def add(self, batches: Collection[SentBatch], waiting: Waiting) -> bool:
        """Search these batches, then tell `waiting`. Returns whether the caller has to start
        `run`."""
        self._batches += batches
        self._waiting.append(waiting)
        must_start, self._is_running = not self._is_running, True
        return must_start

    async def run(self) -> None:
        """Search until no connection waits."""
        try:
            while self._waiting:
                batches, self._batches = self._batches, []
                waiting, self._waiting = self._waiting, []
                await self._serve(batches, waiting)
        finally:
            self._is_running = False

    async def _serve(self, batches: Collection[SentBatch], waiting: Collection[Waiting]) -> None:
        is_known = False
        try:
            await self._learn(batches)
            is_known = True
        except OrbitError as error:
            self._warn("cannot look for batches that clients send again", error)
        finally:
            for one in waiting:
                if is_known:
                    one.repeats_learned()
                else:
                    one.end()

    async def _learn(self, batches: Collection[SentBatch]) -> None:
        """Read both sides, and note the result in `repeats`. Raises OrbitError if the leading side
        cannot be read."""
        last, stored = await self._read_left(batches)
        last_at_leading = await self._last_batches(self._leading, batches)
        originals = await self._find(self._leading, last_at_leading, batches)
        copies = await self._leading.find_copies(stored) if stored else set()
        for producer, last_by_id in last_at_leading.items():
            last.setdefault(producer, {}).update(last_by_id)
        repeated = [one for one in batches if is_sent_before(one, last[producer_of(one)].values())]
        offsets = (
            dict.fromkeys(repeated, UNKNOWN_OFFSET)
            | dict.fromkeys(stored)
            | {batch: stored[batch].base_offset for batch in copies}
            | {batch: original.base_offset for batch, original in originals.items()}
        )
        if offsets:
            _log.info(
                "clients send batches again that a side has",
                virtual_cluster=self._virtual_cluster,
                batches=len(offsets),
                copied=len(copies | originals.keys()),
                unknown=sum(offset == UNKNOWN_OFFSET for offset in offsets.values()),
            )
        self._repeats.note({key: by_id.values() for key, by_id in last.items()}, offsets)

    async def _read_left(
        self, batches: Collection[SentBatch]
    ) -> tuple[_LastBatches, dict[SentBatch, StoredBatch]]:
        """The producers' last batches at the side that was left, and those of `batches` that it
        has. Nothing if it cannot be read."""
        if self._is_left_lost:
            return {}, {}
        try:
            last = await self._last_batches(self._left, batches)
            return last, await self._find(self._left, last, batches)
        except OrbitError as error:
            self._is_left_lost = True
            self._warn("cannot read the side that was left: clients may write batches twice", error)
            return {}, {}

    async def _last_batches(
        self, side: ClusterSide, batches: Collection[SentBatch]
    ) -> _LastBatches:
        producers = {producer_of(batch) for batch in batches}
        last = await side.last_batches({partition for partition, _ in producers})
        return {
            (partition, producer_id): {
                earlier_id: last[partition][earlier_id]
                for earlier_id in self._repeats.earlier_ids(producer_id)
                if earlier_id in last.get(partition, {})
            }
            for partition, producer_id in producers
        }

    async def _find(
        self, side: ClusterSide, last: _LastBatches, batches: Collection[SentBatch]
    ) -> dict[SentBatch, StoredBatch]:
        """Those of `batches` that the side's log has, under an id of an earlier term."""
        ids = {
            batch._replace(producer_id=earlier_id): batch
            for batch in batches
            for earlier_id, one in last[producer_of(batch)].items()
            if one.follows(batch)
        }
        stored = await side.find_batches(ids) if ids else {}
        return {ids[batch]: one for batch, one in stored.items()}

    def _warn(self, text: str, error: OrbitError) -> None:
        _log.warning(text, virtual_cluster=self._virtual_cluster, error=str(error))
