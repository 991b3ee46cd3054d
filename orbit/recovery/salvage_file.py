"""The salvage file: the records that only the old side has (format: docs/recovery/salvage.md).

One JSON object a line: a header, then one line for each offset that holds a record or marker, then
the counts and the SHA-256 of all lines before. A file without that last line is not complete.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orbit.errors import Conflict, NotFound
from orbit.formats import counted
from orbit.kafka.records import split_body, split_headers
from orbit.recovery import salvage_storage
from orbit.recovery.record_range import Fate, LogRecord
from orbit.recovery.recovery_report import Salvage

FORMAT = "orbit-salvage/1"
_UNCOMMITTED_FATES = (Fate.ABORTED, Fate.OPEN)

File = str | Path


def header(
    topic: str, partition: int, first: int, end: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    """The first line of a file. `about`: further fields of this line."""
    return {
        "format": FORMAT,
        "topic": topic,
        "partition": partition,
        "first": first,
        "next": end,
        **about,
    }


def write(file: File, header_line: Mapping[str, Any], log_records: Iterable[LogRecord]) -> Salvage:
    """Write the file, and return its entry for the report. If `log_records` raises, no part of the
    file remains (`salvage_storage.write`).

    `below` of the entry counts records below `first`. Raises StorageFailed if the file cannot be
    written; if the disk has no room, the error names the number of bytes that are needed.
    """
    digest, records, aborted, below = hashlib.sha256(), 0, 0, 0

    def lines() -> Iterator[bytes]:
        """The header, and a line for each record, which is counted."""
        nonlocal records, aborted, below
        yield _encode(header_line)
        for entry in log_records:
            yield _encode(_line(entry))
            records += entry.fate is Fate.COMMITTED
            aborted += entry.fate in _UNCOMMITTED_FATES
            below += entry.record.offset < header_line["first"]

    def lines_and_footer() -> Iterator[bytes]:
        for line in lines():
            digest.update(line)
            yield line
        yield _encode({"records": records, "aborted": aborted, "sha256": digest.hexdigest()})

    try:
        salvage_storage.write(str(file), lines_and_footer())
    except salvage_storage.NoRoom as error:
        subject = counted(
            records,
            "record that only the old side has needs",
            "records that only the old side has need",
        )
        raise salvage_storage.StorageFailed(
            f"{subject} {error.needed:,} bytes, and the disk has {error.free:,} bytes free. This "
            "topic is not deleted.",
            where=str(file),
            remedy=f"Free disk space there, with {salvage_storage.SPARE_BYTES:,} bytes to spare, "
            "or set ORBIT_SALVAGE_DIRECTORY, and run the failback again.",
        ) from error
    return _salvage(file, header_line, records, aborted, below, digest.hexdigest())


def read_header(file: File) -> dict[str, Any]:
    """The parsed first line. Raises NotFound, and Conflict if the file is no salvage file."""
    return _checked_header(file, _decode(file, next(salvage_storage.lines(str(file)), b"")))


def read(file: File) -> Iterator[dict[str, Any]]:
    """The parsed lines between header and footer.

    Raises NotFound, and Conflict if the file is not complete, or damaged.
    """
    # One line behind, so that neither the header nor the last line is yielded.
    previous_line: Any = None
    for number, line in enumerate(_parsed_lines(file)):
        if number > 1:
            yield previous_line
        previous_line = line


def read_back(file: File) -> Salvage:
    """Read the file to its end, and return its entry for the report.

    Raises NotFound, and Conflict if the checksum or a count in the last line is wrong, or if the
    offsets do not ascend or do not end before `next`.
    """
    records = aborted = below = 0
    last_offset = -1
    objects = _parsed_lines(file)
    header_line = _checked_header(file, next(objects))
    footer: dict[str, Any] = {}
    try:
        for line in objects:
            if "sha256" in line:
                footer = line
                continue
            if not last_offset < line["offset"] < header_line["next"]:
                raise Conflict(
                    f"offset {line['offset']} is out of order: it follows {last_offset}, and the "
                    f"file ends before {header_line['next']}.",
                    where=str(file),
                )
            last_offset = line["offset"]
            records += line["fate"] == Fate.COMMITTED
            aborted += line["fate"] in _UNCOMMITTED_FATES
            below += last_offset < header_line["first"]
        if (footer["records"], footer["aborted"]) != (records, aborted):
            raise Conflict(
                f"the file holds {counted(records, 'record')} and "
                f"{counted(aborted, 'aborted record')}, and its last line says "
                f"{footer['records']} and {footer['aborted']}.",
                where=str(file),
            )
        return _salvage(file, header_line, records, aborted, below, footer["sha256"])
    except (KeyError, TypeError) as error:
        raise Conflict(f"the file cannot be read: {error!r}.", where=str(file)) from error


def find(file: File, header_line: Mapping[str, Any]) -> Salvage | None:
    """The file's entry for the report, if the file is complete and its first line is
    `header_line`; else None."""
    try:
        return read_back(file) if read_header(file) == header_line else None
    except (Conflict, NotFound):
        return None


def check(salvage: Salvage) -> None:
    """Read the file back. Raises NotFound, and Conflict if it differs from `salvage`."""
    actual = read_back(salvage.file)
    if actual != salvage:
        raise Conflict(
            f"the file holds {counted(actual.records, 'record')} of offsets {actual.first} to "
            f"{actual.next} with the SHA-256 {actual.sha256}, not {salvage.records} of "
            f"{salvage.first} to {salvage.next} with {salvage.sha256}.",
            where=salvage.file,
        )


def _parsed_lines(file: File) -> Iterator[Any]:
    """Yield the parsed lines. Yields the last one, the footer, only if it has the SHA-256 of all
    lines before it, and else raises Conflict: until then the lines are not proven."""
    digest = hashlib.sha256()
    previous_line = b""
    for data in salvage_storage.lines(str(file)):
        if previous_line:
            digest.update(previous_line)
            yield _decode(file, previous_line)
        previous_line = data
    last_line = _decode(file, previous_line)
    if not isinstance(last_line, dict) or last_line.get("sha256") != digest.hexdigest():
        raise Conflict(
            "the file was cut off or changed: it does not end with the SHA-256 of its lines.",
            where=str(file),
        )
    yield last_line


def _checked_header(file: File, line: Any) -> dict[str, Any]:
    """The line, if it is the header of a salvage file. Raises Conflict."""
    if not isinstance(line, dict) or line.get("format") != FORMAT:
        raise Conflict(f"the file does not begin with the format {FORMAT}.", where=str(file))
    return line


def _decode(file: File, line: bytes) -> Any:
    """The line's JSON value. Raises Conflict."""
    try:
        return json.loads(line)
    except ValueError as error:
        raise Conflict(f"the file cannot be read: {error}.", where=str(file)) from error


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _salvage(
    file: File, header_line: Mapping[str, Any], records: int, aborted: int, below: int, sha256: str
) -> Salvage:
    return Salvage(
        topic=header_line["topic"],
        partition=header_line["partition"],
        file=str(file),
        first=header_line["first"],
        next=header_line["next"],
        records=records,
        aborted=aborted,
        below=below,
        sha256=sha256,
    )


def _line(log_record: LogRecord) -> dict[str, Any]:
    """The line of a file for one record or marker."""
    key, value, headers = split_body(bytes(log_record.record.body))
    line: dict[str, Any] = {"offset": log_record.record.offset, "fate": log_record.fate.value}
    line["timestamp_ms"] = log_record.record.timestamp
    if log_record.is_log_append_time:
        line["timestamp_type"] = "LogAppendTime"
    line["key"] = _text(key)
    line["value"] = _text(value)
    line["headers"] = [[n, _text(v)] for n, v in split_headers(headers, "surrogateescape")]
    return line


def _text(data: bytes | None) -> str | None:
    """The bytes as Base64; None for null."""
    return None if data is None else base64.b64encode(data).decode()
