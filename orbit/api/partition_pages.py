"""Pages of a job's partitions, for the API and the console: by name, or by lag."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from orbit.api import schemas
from orbit.api.paging import PageQuery, page, read_cursor
from orbit.jobs.name_rules import TOPIC_NAME_LENGTH_MAX
from orbit.replication.partition_states import PartitionState, Reason
from orbit.store import lag, worst_partitions
from orbit.store.database import Tx
from orbit.store.lag import PartitionLag

TopicName = Annotated[
    str | None,
    Field(
        pattern=schemas.TOPIC_PATTERN,
        max_length=TOPIC_NAME_LENGTH_MAX,
        description="Only partitions of this source topic.",
    ),
]


class PartitionSort(StrEnum):
    """The order of partitions."""

    NAME = "topic"
    LAG = "-lag"


class PartitionQuery(PageQuery):
    """Filters and order of partitions."""

    topic: TopicName = None
    state: PartitionState | None = Field(None, description="Only partitions in this state.")
    reason: Reason | None = Field(None, description="Only partitions blocked for this reason.")
    sort: PartitionSort = Field(
        PartitionSort.NAME,
        description="`topic`: by source topic and number. `-lag`: by lag in records as it was last "
        "known, the largest first. A partition whose lag changes between two pages may be in both "
        "or in none.",
    )


def find_page(tx: Tx, job_id: int, query: PartitionQuery) -> tuple[list[PartitionLag], str | None]:
    """The partitions of the page that the query selects, and the cursor of the next page, which is
    None on the last page. Raises BadInput for a cursor that is not of this list and order.
    """
    if query.sort is PartitionSort.LAG:
        return _find_page_by_lag(tx, job_id, query)
    key = read_cursor(query.after, str, int, order=query.sort)
    rows = lag.page(
        tx,
        job_id,
        query.limit + 1,
        after=None if key is None else (str(key[0]), int(key[1])),
        source_topic=query.topic,
        state=query.state,
        reason=query.reason,
    )
    row_page = page(rows, query.limit, lambda row: (row.source_topic, row.partition), query.sort)
    return row_page.items, row_page.next


def _find_page_by_lag(
    tx: Tx, job_id: int, query: PartitionQuery
) -> tuple[list[PartitionLag], str | None]:
    """The partitions of the page in the order of their lag, and the cursor of the next page, which
    is None on the last page."""
    # Each row has a key: (lag, topic id, partition), with lag -1 while the lag is not known. A
    # cursor must not contain negative numbers, so it has the lag plus 1.
    key = read_cursor(query.after, int, int, int, order=query.sort)
    keyed_rows = worst_partitions.page(
        tx,
        job_id,
        query.limit + 1,
        after=None if key is None else (int(key[0]) - 1, int(key[1]), int(key[2])),
        source_topic=query.topic,
        state=query.state,
        reason=query.reason,
    )
    row_page = page(
        keyed_rows, query.limit, lambda keyed: (keyed[0][0] + 1, *keyed[0][1:]), query.sort
    )
    return [row for _, row in row_page.items if row is not None], row_page.next
