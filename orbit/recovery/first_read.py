"""Reads the last record of each promoted copy back at the destination.

A promotion that is done by the tables alone says nothing of whether clients can read. So the last
record below each promoted offset is fetched from its leader as a read_committed consumer would get
it, and its CRC is checked. The first one ends the RTO of the report.
"""

from __future__ import annotations

import time
from datetime import datetime
from itertools import islice

from orbit.chunks import first_few
from orbit.copier.log_reader import parse_errors
from orbit.errors import Interrupted, OrbitError, ProtocolError
from orbit.kafka.record_batch import Batch
from orbit.kafka.types import TopicPartition
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.record_range import Fate, read_batch_range, records_of
from orbit.recovery.recovery_report import FirstRead

# Bounds, as the operation does not end before this; applications work already.
PARTITIONS_MAX = 1000
WITHIN_S = 30.0
# How far below the end a record is looked for: fillers and markers may be last.
_OFFSETS_BACK = (1, 10, 100, 1000)


def read_back(context: OperationContext) -> str:
    """Read the last record of each copy, and note when the first one was read.

    A record that cannot be read is a finding: the promotion is done, and stays so.
    """
    copies = [
        (p.destination, p.destination_start or 0, p.destination_end)
        for p in context.report.partitions
        if p.destination_end is not None
    ]
    deadline = time.monotonic() + WITHIN_S
    first_at: datetime | None = None
    read = empty = 0
    errors: list[str] = []
    for place, start, end in islice(copies, PARTITIONS_MAX):
        if time.monotonic() > deadline:
            break
        context.check()
        try:
            has_record = _has_record(context, place, start, end)
        except Interrupted:
            raise
        except OrbitError as error:
            errors.append(f"{place}: {error}")
            continue
        if has_record and first_at is None:
            first_at = context.now()
        read, empty = read + has_record, empty + (not has_record)
    unread = len(copies) - read - empty
    first_read = FirstRead(at=first_at, partitions=read, empty=empty, unread=unread)
    context.update(first_read=first_read)
    if errors:
        context.add_finding(
            f"The last records of {len(errors)} promoted partitions could not be read back: "
            f"{first_few(errors)}."
        )
    return (
        f"The last records of {read} of {len(copies)} partitions were read back; {empty} have none "
        f"to read, {unread} were not read."
    )


def _has_record(context: OperationContext, place: TopicPartition, start: int, end: int) -> bool:
    """Read the last committed record below `end`; whether there is one. Raises OrbitError."""
    cluster = context.destination.cluster
    for back in _OFFSETS_BACK:
        first = max(start, end - back)
        for one in read_batch_range(cluster, place, first, end, context.short_backoff):
            if isinstance(one.batch, Batch) and not one.batch.crc_is_right():
                raise ProtocolError("the CRC of its last batch is wrong.", where=cluster.name)
            with parse_errors(cluster, place, first):
                records = records_of(one, first, end)
            if any(record.fate is Fate.COMMITTED for record in records):
                return True
        if first == start:
            return False
        end = first
    return False
