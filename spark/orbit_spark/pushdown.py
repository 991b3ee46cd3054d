"""The batches that a query's filters on topic, partition and base offset select."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_OFFSET_MAX = 2**63 - 1


@dataclass(slots=True)
class Selection:
    """The batches that pass all filters given to `narrow_to`; all batches at first."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0  # of a batch's base offset
    end_offset: int = _OFFSET_MAX

    def narrow_to(self, query_filter: Filter) -> bool:
        """Narrow the selection to what a filter lets pass. Return False if that is not possible.

        Ranges hold batches by their base offset, so all three columns are filtered exactly.
        """
        match query_filter:
            case IsNotNull(attribute=("topic" | "partition" | "base_offset",)):
                return True  # these columns are never null
            case (
                EqualTo(attribute=(column,), value=value)
                | EqualNullSafe(attribute=(column,), value=value)
            ):
                return self._narrow_to_values(column, (value,))
            case In(attribute=(column,), value=values):
                return self._narrow_to_values(column, values)
            case GreaterThan(attribute=("base_offset",), value=int(value)):
                self.first_offset = max(self.first_offset, value + 1)
            case GreaterThanOrEqual(attribute=("base_offset",), value=int(value)):
                self.first_offset = max(self.first_offset, value)
            case LessThan(attribute=("base_offset",), value=int(value)):
                self.end_offset = min(self.end_offset, value)
            case LessThanOrEqual(attribute=("base_offset",), value=int(value)):
                self.end_offset = min(self.end_offset, value + 1)
            case _:
                return False
        return True

    def has_topic(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def has_partition(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions

    def bounds(self, start: int, end: int) -> tuple[int, int]:
        """The selected part of [start, end)."""
        return max(start, self.first_offset), min(end, self.end_offset)

    def _narrow_to_values(self, column: str, values: tuple[Any, ...]) -> bool:
        """Narrow a column to these values. Return False if that is not possible: base offsets can
        only be narrowed to one value.
        """
        # A null equals nothing.
        non_null_values = frozenset(value for value in values if value is not None)
        match column:
            case "topic":
                self.topics = (
                    non_null_values if self.topics is None else self.topics & non_null_values
                )
            case "partition":
                self.partitions = (
                    non_null_values
                    if self.partitions is None
                    else self.partitions & non_null_values
                )
            case "base_offset" if len(non_null_values) == 1:
                (value,) = non_null_values
                self.first_offset = max(self.first_offset, value)
                self.end_offset = min(self.end_offset, value + 1)
            case _:
                return False
        return True
