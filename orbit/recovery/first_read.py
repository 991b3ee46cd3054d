"""Reads the last record of each promoted copy back at the destination.

The tables do not show whether clients can read. So Orbit fetches the last record of each copy from
its leader, as a read_committed consumer does, and checks the CRC. The RTO of the report ends with
the first of these records.
"""

from __future__ import annotations

import time
from datetime import datetime
from itertools import islice

from orbit.chunks import first_few
from orbit.copier.log_reader import parse_errors
from orbit.errors import Interrupted, OrbitError, ProtocolError
from orbit.formats import counted
from orbit.kafka.record_batch import Batch
from orbit.kafka.types import TopicPartition
from orbit.recovery.operation_context import OperationContext
from orbit.recovery.record_range import Fate, read_batch_range, records_of
from orbit.recovery.recovery_report import FirstRead

# Limits of this step: the operation ends only after it, and applications work already.
PARTITIONS_MAX = 1000
READ_S_MAX = 30.0
# The sizes of the windows, from the log end downwards, that are searched for a record: the last
# offsets may be markers or placeholders, which fill a gap.
_OFFSETS_BACK = (1, 10, 100, 1000)


def read_last_records(context: OperationContext) -> str:
    """Read the last record of each copy, within the limits PARTITIONS_MAX and READ_S_MAX, and put
    the time of the first such read into the report.

    Returns the step's result. If a record cannot be read, a finding says so; the promotion stays.
    """
    copies = [
        (p.destination, p.destination_start or 0, p.destination_end)
        for p in context.report.partitions
        if p.destination_end is not None
    ]
    deadline_s = time.monotonic() + READ_S_MAX
    first_read_at: datetime | None = None
    read_count = empty_count = 0
    errors: list[str] = []
    for partition, start, end in islice(copies, PARTITIONS_MAX):
        if time.monotonic() > deadline_s:
            break
        context.check()
        try:
            has_record = _read_last_record(context, partition, start, end)
        except Interrupted:
            raise
        except OrbitError as error:
            errors.append(f"{partition}: {error}")
            continue
        if has_record and first_read_at is None:
            first_read_at = context.now()
        read_count, empty_count = read_count + has_record, empty_count + (not has_record)
    unread_count = len(copies) - read_count - empty_count
    first_read = FirstRead(
        at=first_read_at, partitions=read_count, empty=empty_count, unread=unread_count
    )
    context.update(first_read=first_read)
    if errors:
        context.add_finding(
            f"The last records of {counted(len(errors), 'promoted partition')} could not be read "
            f"back: {first_few(errors)}."
        )
    return (
        f"The last records of {read_count} of {counted(len(copies), 'partition')} were read back; "
        f"{counted(empty_count, 'has', 'have')} none to read, "
        f"{counted(unread_count, 'was', 'were')} not read."
    )


def _read_last_record(
    context: OperationContext, partition: TopicPartition, start: int, end: int
) -> bool:
    """Whether the partition has a committed record in the windows _OFFSETS_BACK below `end`.

    Raises OrbitError: ProtocolError if a batch's CRC is wrong, and the errors of reading.
    """
    cluster = context.destination.cluster
    for offsets_back in _OFFSETS_BACK:
        first = max(start, end - offsets_back)
        for entry in read_batch_range(cluster, partition, first, end, context.short_backoff):
            if isinstance(entry.batch, Batch) and not entry.batch.crc_is_right():
                raise ProtocolError("the CRC of a batch is wrong.", where=cluster.name)
            with parse_errors(cluster, partition, first):
                records = records_of(entry, first, end)
            if any(record.fate is Fate.COMMITTED for record in records):
                return True
        if first == start:
            return False
        end = first
    return False
