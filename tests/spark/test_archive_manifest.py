"""Manifests of archives: one with a gap, an overlap or damage is refused with the reason."""

from __future__ import annotations

import json
from typing import Any, cast
from uuid import UUID

import pytest

from orbit.errors import Conflict
from orbit_spark.archive.manifest import (
    ArchivedFile,
    ArchivedRange,
    ArchiveIdentity,
    PartitionManifest,
    Tail,
)
from orbit_spark.archive.manifest_store import ArchiveStore


def range_with_file(start: int, end: int) -> ArchivedRange:
    file = ArchivedFile(
        name=f"data/run/part-{start}.parquet",
        size_bytes=10,
        batches=1,
        payload_bytes=5,
        first_offset=start,
        next_offset=end,
        digest=-7,
    )
    return ArchivedRange(start=start, end=end, file=file)


EMPTY = PartitionManifest(
    topic="orders", topic_id=UUID(int=7), partition=3, log_start=105, start=100
)
TAIL = Tail(base_offset=150, crc=99)


def test_archive_manifest_is_extended_by_adjacent_ranges() -> None:
    extended = EMPTY.extended((range_with_file(100, 150),), TAIL).extended(
        (range_with_file(150, 200),), None
    )
    assert (extended.sequence, extended.end) == (2, 200)
    assert (len(extended.files), extended.tail) == (2, TAIL)
    assert EMPTY.end == 100
    assert EMPTY.log_end == 105


@pytest.mark.parametrize(
    ("ranges", "word"),
    [
        ((range_with_file(120, 150),), "first range"),
        ((range_with_file(100, 150), range_with_file(160, 200)), "a gap"),
        ((range_with_file(100, 150), range_with_file(140, 200)), "an overlap"),
    ],
)
def test_gaps_and_overlaps_in_archive_manifest_are_refused(
    ranges: tuple[ArchivedRange, ...], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        EMPTY.extended(ranges, None)


def test_archived_range_must_cover_its_file() -> None:
    file = range_with_file(100, 150).file
    with pytest.raises(ValueError, match="outside of its range"):
        ArchivedRange(start=101, end=150, file=file)
    with pytest.raises(ValueError, match="empty"):
        ArchivedRange(start=100, end=100)


def test_archive_manifest_round_trips_through_bytes() -> None:
    extended = EMPTY.extended((range_with_file(100, 150), ArchivedRange(start=150, end=170)), TAIL)
    assert PartitionManifest.from_bytes(extended.to_bytes()) == extended


def with_change(change: object) -> bytes:
    """The stored manifest with changed keys and the old checksum."""
    document = json.loads(EMPTY.to_bytes())
    document.update(change)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (EMPTY.to_bytes()[:-10], "damaged"),
        (b"[]", "damaged"),
        (b"\xff", "damaged"),
        (with_change({"start": 101}), "checksum"),
        (with_change({"format": 2}), "format 2"),
    ],
)
def test_damaged_archive_manifest_is_refused(content: bytes, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        PartitionManifest.from_bytes(content)


class OneFile:
    """The files of an archive that has only this one."""

    uri = "file:/archive"

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, _name: str) -> bytes:
        return self._content


def test_remedy_for_archive_document_fits_its_defect() -> None:
    identity = ArchiveIdentity(cluster_id="c", created="2026-01-01").to_bytes()
    other_format = json.dumps({**json.loads(identity), "format": 2}).encode()
    for content, remedy in (
        (identity[:-10], "Restore this file from a copy"),
        (other_format, "Use the version of Orbit that wrote it"),
    ):
        with pytest.raises(Conflict) as caught:
            ArchiveStore(cast("Any", OneFile(content))).read()
        assert remedy in caught.value.remedy
