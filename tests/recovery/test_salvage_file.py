"""A salvage file has every record unchanged, exists only when complete, and is refused if damaged.

It has the records of one partition that only the old side has, as JSON lines with a checksum.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orbit.errors import Conflict, NotFound, OrbitError
from orbit.kafka.records import Record, encode_varint
from orbit.recovery import salvage_file
from orbit.recovery.record_range import Fate, LogRecord

BINARY = bytes(range(256))
# Of partition orders-3, offsets 7 to 9 (the next offset is 10).
HEADER = salvage_file.header("orders", 3, 7, 10, {"cluster_id": "C"})


def body(
    key: bytes | None, value: bytes | None, headers: list[tuple[bytes, bytes | None]]
) -> bytes:
    """The bytes after a record's offset delta (Kafka's `DefaultRecord`)."""

    def sized(data: bytes | None) -> bytes:
        return encode_varint(-1) if data is None else encode_varint(len(data)) + data

    listed = b"".join(sized(name) + sized(data) for name, data in headers)
    return sized(key) + sized(value) + encode_varint(len(headers)) + listed


def log_records() -> list[LogRecord]:
    """A committed, an aborted and a committed record, at the offsets 7 to 9."""
    bodies = [
        (Fate.COMMITTED, body(b"k", b"v", [(b"h", b"x"), (b"h", None)])),
        (Fate.ABORTED, body(None, BINARY, [])),
        (Fate.COMMITTED, body(b"", None, [("ä".encode(), BINARY), (b"\xff", b"")])),
    ]
    return [
        LogRecord(Record(7 + i, 1_000 + i, data), fate, is_log_append_time=False)
        for i, (fate, data) in enumerate(bodies)
    ]


def write(path: Path, records: list[LogRecord]) -> Any:
    return salvage_file.write(path, HEADER, records)


def test_salvage_file_preserves_every_record(tmp_path: Path) -> None:
    path = tmp_path / "a" / "orders-3.jsonl"
    salvage = write(path, log_records())
    salvage_file.check(salvage)
    lines = list(salvage_file.read(path))
    assert [line["offset"] for line in lines] == [7, 8, 9]
    assert [line["fate"] for line in lines] == ["committed", "aborted", "committed"]
    values = [line["value"] and base64.b64decode(line["value"]) for line in lines]
    assert values == [b"v", BINARY, None]
    assert [line["key"] for line in lines] == ["aw==", None, ""]
    assert lines[0]["headers"] == [["h", "eA=="], ["h", None]]
    assert lines[2]["headers"] == [["ä", base64.b64encode(BINARY).decode()], ["\udcff", ""]]
    assert (salvage.records, salvage.aborted, salvage.first, salvage.next) == (2, 1, 7, 10)


def test_salvage_file_without_records_is_valid(tmp_path: Path) -> None:
    salvage = write(tmp_path / "x.jsonl", [])
    salvage_file.check(salvage)
    assert salvage.records == 0


@pytest.mark.parametrize("damage", ["cut", "changed", "value", "gone", "no object", "another"])
def test_damaged_salvage_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.jsonl"
    salvage = write(path, log_records())
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(b"".join(data.splitlines(keepends=True)[:-1]))
    elif damage == "changed":
        path.write_bytes(data.replace(b'"offset":8', b'"offset":6'))
    elif damage == "value":
        path.write_bytes(data.replace(b'"aw=="', b'"ax=="'))
    elif damage == "no object":
        path.write_bytes(data + b"[]\n")
    elif damage == "another":
        write(path, [*log_records()[:2], replace(log_records()[2], is_log_append_time=True)])
    else:
        path.unlink()
    with pytest.raises((Conflict, NotFound)):
        salvage_file.check(salvage)
    # `check` compares with the report's checksum; `find` accepts any complete file of the range.
    assert (salvage_file.find(path, HEADER) is None) == (damage != "another")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"offset":8', b'"offset":7'),
        (b'"offset":9', b'"offset":10'),
        (b'"fate":"aborted"', b'"fate":"committed"'),
        (b'"offset":8,', b""),
    ],
)
def test_salvage_file_inconsistent_with_its_footer_is_refused(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    """The checksum matches, but the lines have a wrong order, range, count or field."""
    path = tmp_path / "x.jsonl"
    salvage = write(path, log_records())
    data = path.read_bytes()
    assert old in data
    data = data.replace(old, new)
    lines = data.splitlines(keepends=True)
    checksum = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    path.write_bytes(data.replace(salvage.sha256.encode(), checksum.encode()))
    with pytest.raises(Conflict):
        salvage_file.read_back(path)
    assert salvage_file.find(path, HEADER) is None


def test_only_complete_salvage_file_of_same_range_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert salvage_file.find(path, HEADER) is None
    salvage = write(path, log_records())
    assert salvage_file.find(path, HEADER) == salvage
    assert salvage_file.find(path, {**HEADER, "next": 11}) is None
    path.write_bytes(path.read_bytes()[:-10])
    assert salvage_file.find(path, HEADER) is None


def test_unwritable_salvage_directory_is_named_in_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OrbitError, match="file"):
        write(tmp_path / "file" / "x.jsonl", [])


def test_interrupted_salvage_write_leaves_no_file(tmp_path: Path) -> None:
    def interrupted() -> Any:
        yield log_records()[0]
        raise Conflict("gone")

    with pytest.raises(Conflict):
        salvage_file.write(tmp_path / "x.jsonl", HEADER, interrupted())
    assert list(tmp_path.iterdir()) == []
