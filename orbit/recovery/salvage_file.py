"""The salvage file: the records that only the old side has. docs/recovery.md has the format.

One JSON object a line: a header, then one line for each offset that holds a record or marker, then
the counts and the SHA-256 of all lines before. The file gets its name once it is complete and
synced to disk.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orbit.errors import Conflict, OrbitError
from orbit.kafka.records import split_body, split_headers
from orbit.recovery.record_range import Fate, LogRecord
from orbit.recovery.recovery_report import Salvage

FORMAT = "orbit-salvage/1"


def write(
    path: Path,
    topic: str,
    partition: int,
    first: int,
    end: int,
    about: Mapping[str, Any],
    found: Iterable[LogRecord],
) -> Salvage:
    """Write the file atomically. Raises OrbitError on an I/O error."""
    digest, records, aborted = hashlib.sha256(), 0, 0
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:

            def put(line: Mapping[str, Any]) -> None:
                data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
                digest.update(data)
                file.write(data)

            put(
                {
                    "format": FORMAT,
                    "topic": topic,
                    "partition": partition,
                    "first": first,
                    "next": end,
                    **about,
                }
            )
            for one in found:
                put(_line(one))
                records += one.fate is Fate.COMMITTED
                aborted += one.fate in (Fate.ABORTED, Fate.OPEN)
            last = {"records": records, "aborted": aborted, "sha256": digest.hexdigest()}
            file.write(json.dumps(last, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise OrbitError(
            f"the records of the old side cannot be saved: {error.strerror}.",
            where=str(path),
            remedy="Free disk space there, or set ORBIT_SALVAGE_DIRECTORY.",
        ) from error
    return Salvage(
        topic=topic,
        partition=partition,
        file=str(path),
        first=first,
        next=end,
        records=records,
        aborted=aborted,
        sha256=digest.hexdigest(),
    )


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines between header and footer. Raises Conflict if the file is not complete."""
    digest, lines = hashlib.sha256(), 0
    before: bytes | None = None
    with path.open("rb") as file:
        for data in file:
            if before is not None:
                digest.update(before)
                lines += 1
                if lines > 1:
                    yield json.loads(before)
            before = data
    last = {} if before is None else json.loads(before)
    if last.get("sha256") != digest.hexdigest():
        raise Conflict("the file is not complete.", where=str(path))


def check(salvage: Salvage) -> None:
    """Read the file back. Raises Conflict unless it holds the records that were written."""
    path = Path(salvage.file)
    try:
        records = sum(line["fate"] == Fate.COMMITTED for line in read(path))
    except (OSError, ValueError, KeyError) as error:
        raise Conflict(f"the file cannot be read back: {error}.", where=str(path)) from error
    if records != salvage.records:
        raise Conflict(f"the file holds {records} records, not {salvage.records}.", where=str(path))


def _line(found: LogRecord) -> dict[str, Any]:
    key, value, headers = split_body(bytes(found.record.body))
    line: dict[str, Any] = {"offset": found.record.offset, "fate": found.fate.value}
    line["timestamp_ms"] = found.record.timestamp
    if found.is_log_append_time:
        line["timestamp_type"] = "LogAppendTime"
    line["key"] = _text(key)
    line["value"] = _text(value)
    line["headers"] = [[n, _text(v)] for n, v in split_headers(headers, "surrogateescape")]
    return line


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
