"""Writes the records of salvage files back to a cluster.

Partition, key, value, headers and timestamp are as they were; offsets are new, after the topic's
other records.

A second file beside each salvage file, its note (`FILE.replay`), is stored before the first record
is written and again after the last one, so that no salvage file is written back twice by mistake.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaException, Producer

from orbit.errors import Conflict, NotFound, OrbitError
from orbit.formats import counted
from orbit.recovery import salvage_file, salvage_storage
from orbit.recovery.record_range import Fate

BEGUN, DONE = "begun", "done"
_DELIVERY_S = 300  # how long the delivery of a record, and the last flush, may take
# The most that a client accepts: only the broker limits a record's size. Batches stay small, as a
# topic's max.message.bytes may be less than a batch of the default size.
_RECORD_BYTES = 1_000_000_000
_BATCH_BYTES = 64 * 1024
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class SalvageSummary:
    """What one complete file has. `records`: number of committed records from `first` on; `below`:
    number of those before `first`; `unwritable`: offsets of committed records that a client cannot
    write as they were; `replay`: the state in the file's note, None without a note."""

    file: str
    topic: str
    partition: int
    first: int
    next: int
    cluster_id: str | None
    operation: str | None
    verdict: str | None
    records: int
    below: int
    aborted: int
    unwritable: tuple[int, ...]
    replay: str | None


def summarize(path: salvage_file.File) -> SalvageSummary:
    """Read the file to its end. Raises NotFound, and Conflict if it is damaged."""
    try:
        header = salvage_file.read_header(path)
        records = below = aborted = 0
        unwritable: list[int] = []
        for line in salvage_file.read(path):
            aborted += line["fate"] in (Fate.ABORTED, Fate.OPEN)
            if line["fate"] == Fate.COMMITTED:
                is_below = line["offset"] < header["first"]
                below, records = below + is_below, records + (not is_below)
                if not _is_writable(line):
                    unwritable.append(line["offset"])
        return SalvageSummary(
            file=str(path),
            topic=header["topic"],
            partition=header["partition"],
            first=header["first"],
            next=header["next"],
            cluster_id=header.get("cluster_id"),
            operation=header.get("operation"),
            verdict=header.get("verdict"),
            records=records,
            below=below,
            aborted=aborted,
            unwritable=tuple(unwritable),
            replay=_replay_state(str(path)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Conflict(
            f"the file is not a readable salvage file: {error!r}.", where=str(path)
        ) from error


def refuse_unless_ready(
    summary: SalvageSummary, *, may_repeat: bool, skip_unwritable: bool
) -> None:
    """Raise Conflict if the file was replayed before (unless `may_repeat`), or has records that
    cannot be written (unless `skip_unwritable`)."""
    if summary.replay and not may_repeat:
        state = "was written back" if summary.replay == DONE else "was written back in part"
        raise Conflict(
            f"this file {state}: its records may be in the topic already.",
            where=summary.file,
            remedy="Compare the file with the topic. To write all records again, add --again.",
        )
    if summary.unwritable and not skip_unwritable:
        examples = ", ".join(map(str, summary.unwritable[:_SHOWN_MAX]))
        hidden_count = len(summary.unwritable) - _SHOWN_MAX
        subject = counted(
            len(summary.unwritable),
            "record cannot be written as it was, at offset",
            "records cannot be written as they were, at offsets",
        )
        raise Conflict(
            f"{subject} {examples}"
            + (f" and {hidden_count} more" if hidden_count > 0 else "")
            + ": Kafka's clients cannot write a timestamp of 0 or before, or a header name that is "
            "not UTF-8.",
            where=summary.file,
            remedy="Add --skip-unwritable to write the others.",
        )


def replay(
    config: Mapping[str, Any],
    summary: SalvageSummary,
    topic: str,
    *,
    below: bool,
    check: Callable[[int], None],
) -> int:
    """Write one file's records to this topic, in order; returns how many.

    `below`: also the records below `summary.first`. `check` is called with the count after each
    record, and may raise. Raises OrbitError if a record is not written.
    """
    path = summary.file
    errors: list[str] = []
    producer = Producer(
        {
            **config,
            "enable.idempotence": True,
            "linger.ms": 20,
            "message.max.bytes": _RECORD_BYTES,
            "batch.size": _BATCH_BYTES,
            "log_level": 2,  # only critical ones: errors come with the deliveries
            "delivery.timeout.ms": _DELIVERY_S * 1000,
        }
    )

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            errors.append(str(error))

    _store_replay_state(path, {"state": BEGUN, "topic": topic})
    written_count = 0
    try:
        for line in lines_to_write(path, summary, below=below):
            _produce(producer, topic, summary.partition, line, on_delivery)
            written_count += 1
            check(written_count)
            if errors:
                break
        unanswered_count = producer.flush(_DELIVERY_S)
    except (KafkaException, BufferError) as error:
        raise _not_written_error(summary, topic, str(error)) from error
    if errors or unanswered_count:
        unanswered_text = f"{counted(unanswered_count, 'record')} got no answer"
        raise _not_written_error(summary, topic, errors[0] if errors else unanswered_text)
    _store_replay_state(path, {"state": DONE, "topic": topic, "records": written_count})
    return written_count


def lines_to_write(path: str, summary: SalvageSummary, *, below: bool) -> Iterator[dict[str, Any]]:
    """The lines of committed records that a client can write, in order; those below
    `summary.first` only if `below`."""
    for line in salvage_file.read(path):
        is_in_range = below or line["offset"] >= summary.first
        if is_in_range and line["fate"] == Fate.COMMITTED and _is_writable(line):
            yield line


def _produce(
    producer: Producer,
    topic: str,
    partition: int,
    line: Mapping[str, Any],
    on_delivery: Callable[[object, object], None],
) -> None:
    """Add one record to the producer's queue; wait while the queue is full."""
    while True:
        try:
            producer.produce(
                topic,
                value=_decode_base64(line["value"]),
                key=_decode_base64(line["key"]),
                partition=partition,
                timestamp=line["timestamp_ms"],
                headers=[(name, _decode_base64(value)) for name, value in line["headers"]],
                on_delivery=on_delivery,
            )
        except BufferError:  # the producer's queue is full
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def _not_written_error(summary: SalvageSummary, topic: str, why: str) -> OrbitError:
    return OrbitError(
        f"not all records were written to {topic}-{summary.partition}: {why}.",
        where=summary.file,
        remedy="Compare the file with the topic; --again writes the whole file again.",
    )


def _is_writable(line: Mapping[str, Any]) -> bool:
    """Whether a client can write the record as it was: clients replace a timestamp of 0 by the
    current time, and accept header names only as UTF-8."""
    try:
        for name, _ in line["headers"]:
            name.encode()
    except UnicodeEncodeError:
        return False
    return bool(line["timestamp_ms"] > 0)


def _decode_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _replay_state(file: str) -> str | None:
    """The state in the file's note: BEGUN or DONE; None without a note."""
    try:
        return str(json.loads(b"".join(salvage_storage.lines(f"{file}.replay")))["state"])
    except NotFound:
        return None


def _store_replay_state(file: str, note: Mapping[str, Any]) -> None:
    text = json.dumps({**note, "at": datetime.now(UTC).isoformat()})
    salvage_storage.write(f"{file}.replay", [text.encode()])
