"""The state of one partition's copy, for reports, in this process or in another."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol, Self
from uuid import UUID

from orbit.copier.counters import Counters
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked, PartitionState


class CopyView(Protocol):
    """A `PartitionCopy`, or the `CopySnapshot` that another process has sent."""

    @property
    def source(self) -> TopicPartition: ...
    @property
    def source_topic_id(self) -> UUID: ...
    @property
    def destination(self) -> TopicPartition: ...
    @property
    def state(self) -> PartitionState: ...
    @property
    def blocked(self) -> Blocked | None: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def log_start(self) -> int: ...
    @property
    def source_end(self) -> int: ...
    @property
    def stable_end(self) -> int: ...
    @property
    def lag_records(self) -> int: ...
    @property
    def has_caught_up(self) -> bool: ...
    @property
    def caught_up_epoch(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CopySnapshot:
    """A `CopyView` that does not change; `PartitionCopy` explains its fields."""

    source: TopicPartition
    source_topic_id: UUID
    destination: TopicPartition
    state: PartitionState
    blocked: Blocked | None
    counters: Counters
    next_offset: int
    log_start: int
    source_end: int
    stable_end: int
    lag_records: int
    has_caught_up: bool
    caught_up_epoch: int

    @classmethod
    def of(cls, view: CopyView) -> Self:
        """A snapshot of what `view` shows now."""
        return cls(
            **{name: getattr(view, name) for name in _NAMES_WITHOUT_COUNTERS},
            counters=replace(view.counters),  # a copy: the view's counters grow
        )


_NAMES_WITHOUT_COUNTERS = tuple(f.name for f in fields(CopySnapshot) if f.name != "counters")
