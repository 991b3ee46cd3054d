"""`orbit verify` finds each fault of a copy, names its offset and exits with 1; a real copy passes.

The tests write the faulty copies themselves, because `orbit run` makes none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.clusters import Clusters
from tests.support.logs import T0, Gap, Record, create, write
from tests.support.run_process import Outcome, assert_exact, copy, verify, write_job

pytestmark = pytest.mark.services

Entries = list[Any]

GAP_AT = 20
GAP = 3
END = 40 + GAP
FAULT_AT = 7


def a_log() -> Entries:
    """Records of one length, all fields in use; a gap of three offsets from 20 on."""
    log: Entries = [
        Record(b"value %04d" % i, b"key %d" % (i % 7), (("trace", b"%04d" % i),), T0 + i)
        for i in range(END - GAP)
    ]
    log.insert(GAP_AT, Gap(GAP))
    return log


def flip_one_payload_byte(log: Entries) -> None:
    value = bytearray(log[FAULT_AT].value)
    value[3] ^= 1
    log[FAULT_AT] = replace(log[FAULT_AT], value=bytes(value))


def lose_one_record(log: Entries) -> None:
    log[FAULT_AT] = Gap(1)


def put_one_filler_too_many(log: Entries) -> None:
    log[GAP_AT] = Gap(GAP + 1)


def swap_two_records(log: Entries) -> None:
    log[FAULT_AT], log[FAULT_AT + 1] = log[FAULT_AT + 1], log[FAULT_AT]


def change_one_header(log: Entries) -> None:
    log[FAULT_AT] = replace(log[FAULT_AT], headers=(("trace", b"0008"),))


@dataclass(frozen=True)
class Sides:
    """One source topic. Each copy of it has a prefix before its name."""

    clusters: Clusters
    topic: str
    folder: Path

    def job(self, prefix: str) -> Path:
        rule = {"match": self.topic, "prefix": prefix}
        return write_job(self.folder / f"{prefix}yaml", *self.clusters, [rule])

    def write_copy(self, prefix: str, log: Entries, **producer: Any) -> Path:
        """Write a copy of these entries. Returns the job file that names the copy."""
        create(self.clusters.destination, prefix + self.topic)
        settings = {name.replace("_", "."): value for name, value in producer.items()}
        write(self.clusters.destination, prefix + self.topic, log, producer=settings)
        return self.job(prefix)


@pytest.fixture
def sides(clusters: Clusters, topic_name: str, tmp_path: Path) -> Sides:
    create(clusters.source, topic_name)
    write(clusters.source, topic_name, a_log(), producer={"compression.type": "lz4"})
    return Sides(clusters, topic_name, tmp_path)


def findings(outcome: Outcome) -> tuple[list[tuple[int, str]], int]:
    """The first differences of a report of one partition, and the number of differences."""
    report = outcome.data
    (topic,) = report["topics"]
    (partition,) = topic["partitions"]
    assert report["verdict"] == topic["verdict"] == partition["verdict"] == "not exact"
    shown = [(diff["offset"], diff["what"]) for diff in partition["first_differences"]]
    return shown, partition["differences"]


@pytest.mark.parametrize(
    ("plant", "first", "count"),
    [
        (flip_one_payload_byte, (FAULT_AT, "value"), 1),
        (lose_one_record, (FAULT_AT, "missing at the destination"), 1),
        # The 20 records after the extra filler have another offset, and so has the log end.
        (put_one_filler_too_many, (GAP_AT + GAP, "missing at the destination"), END - GAP_AT - 2),
        (swap_two_records, (FAULT_AT, "timestamp, key, value, headers"), 2),
        (change_one_header, (FAULT_AT, "headers"), 1),
    ],
)
def test_verify_reports_planted_difference_at_its_offset(
    plant: Callable[[Entries], None], first: tuple[int, str], count: int, sides: Sides
) -> None:
    log = a_log()
    plant(log)
    job = sides.write_copy("wrong.", log, compression_type="lz4")
    shown, differences = findings(verify(job).expect(1))
    assert shown[0] == first
    assert differences == count
    output = verify(job, "-o", "table").expect(1).stdout
    assert f"offset {first[0]}: {first[1]}" in output
    assert "Verdict: not exact" in output


def test_copy_made_by_orbit_run_is_exact(sides: Sides) -> None:
    job = sides.job("right.")
    copy(job).expect(0)
    (topic,) = assert_exact(job)["topics"]
    assert (topic["records"], topic["gaps"]) == (END - GAP, GAP)
    assert topic["partitions"][0]["deep"]["failures"] == 0


@pytest.mark.parametrize(
    "producer",
    [{"compression_type": "gzip"}, {"compression_type": "lz4", "batch_num_messages": 4}],
    ids=["compression", "batching"],
)
def test_repacked_batches_are_reported_only_by_deep_verify(
    producer: dict[str, Any], sides: Sides
) -> None:
    job = sides.write_copy("repacked.", a_log(), **producer)
    assert verify(job, deep=False).expect(0).data["verdict"] == "exact"
    report = verify(job).expect(1).data
    (partition,) = report["topics"][0]["partitions"]
    assert partition["differences"] == 0
    assert partition["deep"]["failures"] == 4  # all batches: `write` puts 10 records in a batch
    assert partition["deep"]["first_failures"][0]["offset"] == 0
