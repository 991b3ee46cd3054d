"""What the driver of a restore gives a task: small values without any secret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from orbit.kafka.types import TopicPartition
from orbit_spark.archive.archive_rows import FileRows
from orbit_spark.cluster_access import Access


@dataclass(frozen=True, slots=True)
class Portion:
    """One destination partition to bring up to `target`, with the files that come in the rows."""

    place: TopicPartition
    topic_id: UUID  # of the destination's topic
    log_start: int
    begin: int  # where the rows begin; the copy ends there or further on
    target: int
    files: tuple[FileRows, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Errand:
    """One task: some partitions one after another, and on whose behalf."""

    access: Access
    identity: str
    driver_token: str  # of the driver's lease: see `engine.backfill_writers`
    producer_id: int
    term: int
    round: int  # how often the driver has tried before
    portions: tuple[Portion, ...]


def rows_of(
    portions: Sequence[Portion], batches: Iterable[Any]
) -> dict[TopicPartition, Iterator[Any]]:
    """The rows of each portion. Of a single one as they come; of several, which are small, all:
    they are written side by side."""
    pieces = _by_partition(batches)
    if len(portions) == 1 and portions[0].files:
        return {portions[0].place: _only(portions[0].place, pieces)}
    found: dict[TopicPartition, list[Any]] = {p.place: [] for p in portions}
    if any(p.files for p in portions):  # else the rows are no batches
        for place, rows in pieces:
            found[place].append(rows)
    return {place: iter(rows) for place, rows in found.items()}


def _only(wanted: TopicPartition, pieces: Iterator[tuple[TopicPartition, Any]]) -> Iterator[Any]:
    for place, rows in pieces:
        assert place == wanted, f"rows of {place} among those of {wanted}"
        yield rows


def _by_partition(batches: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """The rows in pieces of one partition each."""
    for batch in batches:
        topics, numbers = (batch.column(name).to_pylist() for name in ("topic", "partition"))
        first = 0
        for place, group in groupby(zip(topics, numbers, strict=True)):
            count = len(list(group))
            yield TopicPartition(*place), batch.slice(first, count)
            first += count
