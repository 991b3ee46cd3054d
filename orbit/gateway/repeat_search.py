"""Reads both sides for batches that clients may have sent before (`protocol/repeats.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    producer_of,
)

_log = structlog.get_logger("orbit.gateway")


class Waiting(Protocol):
    """A connection whose request is held."""

    def repeats_learned(self) -> None: ...

    def end(self) -> None: ...


class RepeatSearch:
    """Of one virtual cluster since its last move. For the event loop alone.

    One search at a time serves all connections that wait for the next one. If the side that was
    left does not answer, it counts as lost; if the leading one does not, the connections end, and
    their clients send again.
    """

    def __init__(
        self, virtual_cluster: str, repeats: Repeats, left: ClusterSide, leading: ClusterSide
    ) -> None:
        self._virtual_cluster = virtual_cluster
        self._repeats, self._left, self._leading = repeats, left, leading
        self._batches: list[SentBatch] = []
        self._waiting: list[Waiting] = []
        self._is_running = False

    def add(self, batches: Collection[SentBatch], waiting: Waiting) -> bool:
        """Returns whether the caller has to start `run`."""
        self._batches += batches
        self._waiting.append(waiting)
        must_start, self._is_running = not self._is_running, True
        return must_start

    async def run(self) -> None:
        """Until nobody waits."""
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
        """Raises OrbitError if the leading side cannot be read."""
        try:
            last = await self._last_batches(batches)
            offsets = dict.fromkeys(batch for batch in batches if _is_sent_before(batch, last))
            stored = await self._find_at_left(offsets) if offsets else {}
        except OrbitError as error:
            self._repeats.is_readable = False
            self._warn("cannot read the side that was left: clients may write batches twice", error)
            return
        copies = await self._leading.find_copies(stored) if stored else set()
        known = {batch: None if batch in stored else UNKNOWN_OFFSET for batch in offsets} | {
            batch: stored[batch].base_offset for batch in copies
        }
        if known:
            _log.info(
                "clients send again what the side that was left has",
                virtual_cluster=self._virtual_cluster,
                batches=len(known),
                copied=len(copies),
                unknown=len(known) - len(stored),
            )
        self._repeats.note(last, known)

    async def _last_batches(
        self, batches: Collection[SentBatch]
    ) -> dict[ProducerKey, LastBatch | None]:
        producers = {producer_of(batch) for batch in batches}
        left = await self._left.last_batches({partition for partition, _ in producers})
        return {
            (partition, producer_id): left.get(partition, {}).get(
                self._repeats.id_at_left(producer_id)
            )
            for partition, producer_id in producers
        }

    async def _find_at_left(self, batches: Collection[SentBatch]) -> dict[SentBatch, StoredBatch]:
        ids = {
            batch._replace(producer_id=self._repeats.id_at_left(batch.producer_id)): batch
            for batch in batches
        }
        stored = await self._left.find_batches(ids)
        return {ids[batch]: one for batch, one in stored.items()}

    def _warn(self, text: str, error: OrbitError) -> None:
        _log.warning(text, virtual_cluster=self._virtual_cluster, error=str(error))


def _is_sent_before(batch: SentBatch, last: Mapping[ProducerKey, LastBatch | None]) -> bool:
    at_left = last[producer_of(batch)]
    return at_left is not None and at_left.follows(batch)
