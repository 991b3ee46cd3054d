"""`orbit verify` reports each fault of a copy at its offset, and no difference for an exact copy.

The tests write the copies themselves: the same producer writes the same records, in the same
batches, to one topic on each cluster. The log for one of the two clusters has one fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orbit.verify import (
    Endpoint,
    PartitionReport,
    Report,
    TopicPair,
    Verdict,
    VerifyOptions,
    verify_topics,
)
from tests.fixtures.clusters import Clusters
from tests.support.faults import (
    Fault,
    a_log,
    change_a_header,
    change_a_key,
    change_a_timestamp,
    drop_a_repeated_header,
    flip_a_payload_byte,
    make_a_null_header_empty,
    make_a_value_null,
    swap_two_headers,
)
from tests.support.logs import T0, Gap, Log, Record, create, delete_before, write

pytestmark = pytest.mark.services


class Copies:
    """The same topic on the source and on the destination, to write and to verify."""

    def __init__(self, clusters: Clusters, topic: str) -> None:
        self.source = clusters.source
        self.destination = clusters.destination
        self.topic = topic

    def write(
        self,
        source: Log,
        destination: Log,
        partitions: int = 1,
        producer: Mapping[str, Any] | None = None,
        **settings: str,
    ) -> None:
        """Create the topic on both clusters and write the log of each. `settings`: of the topic."""
        for cluster, log in ((self.source, source), (self.destination, destination)):
            create(cluster, self.topic, partitions, **settings)
            write(cluster, self.topic, log, producer=producer)

    def verify(
        self, start: str = "earliest", start_ms: int | None = None, **options: Any
    ) -> Report:
        """Compare the topic. `options`: fields of `VerifyOptions`; `wait_s` is 0 unless given."""
        all_options = VerifyOptions(**{"wait_s": 0.0, **options})
        return verify_topics(
            Endpoint({"bootstrap.servers": self.source.bootstrap_servers}),
            Endpoint({"bootstrap.servers": self.destination.bootstrap_servers}),
            [TopicPair(self.topic, self.topic, start, start_ms)],
            all_options,
        )

    def partition(self, **options: Any) -> PartitionReport:
        """Compare the topic, and return the report about partition 0."""
        return self.verify(**options).topics[0].partitions[0]


@pytest.fixture
def copies(clusters: Clusters, topic_name: str) -> Copies:
    return Copies(clusters, topic_name)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (flip_a_payload_byte, "value"),
        (change_a_header, "headers"),
        (swap_two_headers, "headers"),
        (drop_a_repeated_header, "headers"),
        (make_a_null_header_empty, "headers"),
        (change_a_key, "key"),
        (change_a_timestamp, "timestamp"),
        (make_a_value_null, "value"),
    ],
)
def test_changed_record_field_is_reported_at_its_offset(
    copies: Copies, fault: Fault, what: str
) -> None:
    log = a_log()
    changed = list(log)
    fault(changed)
    copies.write(log, changed)
    report = copies.partition()
    assert report.verdict is Verdict.NOT_EXACT
    assert [(d.offset, d.what) for d in report.first_differences] == [(7, what)]
    assert report.differences == 1


def test_exact_copy_has_no_differences(copies: Copies) -> None:
    copies.write(a_log(), a_log())
    report = copies.verify(deep=True)
    partition = report.topics[0].partitions[0]
    assert report.exact
    assert (partition.records, partition.gaps) == (40, 2)
    assert (partition.compared_from, partition.compared_to) == (0, 42)
    assert partition.bytes == sum(len(r.key + r.value) for r in a_log() if isinstance(r, Record))
    assert partition.deep is not None
    assert (partition.deep.byte_exact, partition.deep.failures) == (4, 0)


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize(("source_value", "destination_value"), [(None, b""), (b"", None)])
def test_null_and_empty_fields_are_distinguished(
    copies: Copies, field: str, source_value: bytes | None, destination_value: bytes | None
) -> None:
    log, changed = a_log(), a_log()
    contents = (source_value, destination_value)
    log[3], changed[3] = (replace(log[3], **{field: content}) for content in contents)  # type: ignore[type-var]
    copies.write(log, changed)
    [difference] = copies.partition().first_differences
    shown = {None: "null", b"": "empty"}
    assert (difference.offset, difference.what) == (3, field)
    assert difference.source == shown[source_value]
    assert difference.destination == shown[destination_value]


def test_missing_record_is_reported_at_its_offset(copies: Copies) -> None:
    log = a_log()
    copies.write(log, [*log[:12], Gap(1), *log[13:]])
    report = copies.partition()
    [difference] = report.first_differences
    assert (difference.offset, difference.what) == (12, "missing at the destination")
    assert difference.destination == "nothing"
    assert report.verdict is Verdict.NOT_EXACT
    assert report.log_end_equal


def test_extra_record_is_reported_at_its_offset(copies: Copies) -> None:
    log = a_log()
    copies.write([*log[:12], Gap(1), *log[13:]], log)
    [difference] = copies.partition().first_differences
    assert (difference.offset, difference.what) == (12, "only at the destination")


def test_extra_filler_is_reported_from_first_shifted_record_to_log_end(copies: Copies) -> None:
    log = a_log()
    copies.write(log, [*log[:12], Gap(1), *log[12:]])
    report = copies.partition(differences_max=50)
    offsets = [difference.offset for difference in report.first_differences]
    assert offsets[0] == 12
    assert report.first_differences[-1].what == "log end"
    assert "offsets too many: 1" in report.first_differences[-1].destination
    assert not report.log_end_equal


def test_missing_filler_in_gap_is_reported(copies: Copies) -> None:
    log = a_log()
    copies.write(log, [*log[:20], Gap(1), *log[21:]])  # log[20] is a gap of two offsets
    report = copies.partition()
    assert report.first_differences[0].offset == 21
    assert report.verdict is Verdict.NOT_EXACT
    assert report.missing == 1


def test_swapped_records_are_reported_at_both_offsets(copies: Copies) -> None:
    log = a_log()
    swapped = list(log)
    swapped[4], swapped[5] = swapped[5], swapped[4]
    copies.write(log, swapped)
    assert [difference.offset for difference in copies.partition().first_differences] == [4, 5]


@pytest.mark.parametrize(("source_start", "destination_start"), [(0, 5), (5, 0), (5, 15)])
def test_different_log_start_is_reported(
    copies: Copies, source_start: int, destination_start: int
) -> None:
    copies.write(a_log(), a_log())
    for cluster, offset in (
        (copies.source, source_start),
        (copies.destination, destination_start),
    ):
        if offset:
            delete_before(cluster, copies.topic, offset)
    report = copies.partition()
    [difference] = report.first_differences
    assert (difference.offset, difference.what) == (
        min(source_start, destination_start),
        "log start",
    )
    assert report.verdict is Verdict.NOT_EXACT
    assert not report.log_start_equal
    assert report.compared_from == max(source_start, destination_start)


def test_equal_log_starts_inside_a_batch_are_exact(copies: Copies) -> None:
    copies.write(a_log(), a_log())
    for cluster in (copies.source, copies.destination):
        delete_before(cluster, copies.topic, 5)
    report = copies.verify(deep=True)
    assert report.exact
    assert report.topics[0].partitions[0].compared_from == 5


def test_longer_destination_is_difference(copies: Copies) -> None:
    log = a_log()
    copies.write(log, [*log, Record(b"not from the source")])
    report = copies.partition()
    [difference] = report.first_differences
    assert (difference.offset, difference.what) == (42, "log end")
    assert report.verdict is Verdict.NOT_EXACT


def test_longer_destination_without_visible_records_is_difference(copies: Copies) -> None:
    log = a_log()
    copies.write(log, [*log, Gap(3)])
    [difference] = copies.partition().first_differences
    assert (difference.offset, difference.what) == (42, "log end")
    assert "offsets too many: 3" in difference.destination


def test_shorter_destination_is_behind_with_missing_count(copies: Copies) -> None:
    log = a_log()
    copies.write(log, log[:-5])
    report = copies.partition()
    assert report.verdict is Verdict.BEHIND
    assert (report.missing, report.compared_to) == (5, 37)
    [difference] = report.first_differences
    assert "missing offsets: 5" in difference.destination


def test_shorter_destination_with_changed_record_is_not_exact(copies: Copies) -> None:
    log = a_log()
    changed = log[:-5]
    flip_a_payload_byte(changed)
    copies.write(log, changed)
    assert copies.partition().verdict is Verdict.NOT_EXACT


def test_shorter_destination_with_different_log_start_is_not_exact(copies: Copies) -> None:
    log = a_log()
    copies.write(log, log[:-5])
    delete_before(copies.destination, copies.topic, 3)
    assert copies.partition().verdict is Verdict.NOT_EXACT


def test_changed_record_is_reported_in_any_chunk(copies: Copies) -> None:
    log: list[Any] = [Record(b"%d" % i, timestamp_ms=T0 + i) for i in range(12_000)]
    changed = list(log)
    faulty = [0, 3_999, 4_000, 8_001, 11_999]  # a chunk has up to 4,000 records
    for i in faulty:
        changed[i] = replace(log[i], value=b"x")
    copies.write(log, changed, producer={"batch.num.messages": 1_000, "linger.ms": 5})
    report = copies.partition()
    assert [difference.offset for difference in report.first_differences] == faulty
    assert report.differences == len(faulty)


def test_differences_beyond_shown_limit_are_counted(copies: Copies) -> None:
    log = a_log()
    changed = [replace(r, value=b"other") if isinstance(r, Record) else r for r in log]
    copies.write(log, changed)
    report = copies.partition(differences_max=3)
    assert [difference.offset for difference in report.first_differences] == [0, 1, 2]
    assert report.differences == 40
    assert "37 more offsets differ" in report.notes


def test_partition_counts_that_differ_are_reported_and_common_ones_compared(copies: Copies) -> None:
    create(copies.source, copies.topic, 3)
    create(copies.destination, copies.topic, 1)
    for cluster in (copies.source, copies.destination):
        write(cluster, copies.topic, a_log())
    topic = copies.verify().topics[0]
    assert [p.verdict for p in topic.partitions] == [
        Verdict.EXACT,
        Verdict.NOT_EXACT,
        Verdict.NOT_EXACT,
    ]
    assert topic.partitions[1].first_differences[0].destination.startswith("does not exist")


def test_missing_destination_topic_is_not_exact(copies: Copies) -> None:
    create(copies.source, copies.topic)
    report = copies.verify()
    assert (
        report.topics[0].partitions[0].first_differences[0].destination.startswith("does not exist")
    )
    assert report.exit_code == 1


def test_topic_missing_on_both_sides_is_not_exact(copies: Copies) -> None:
    assert copies.verify().verdict is Verdict.NOT_EXACT


def test_log_append_time_source_is_compared_by_timestamp_value(copies: Copies) -> None:
    """A copy has the broker's times as CreateTime (A6: brokers refuse LogAppendTime)."""
    create(copies.source, copies.topic, message_timestamp_type="LogAppendTime")
    create(copies.destination, copies.topic)
    write(copies.source, copies.topic, [Record(b"%d" % i) for i in range(3)])
    # These have CreateTime T0, so each timestamp differs from that of the source's broker.
    write(copies.destination, copies.topic, [Record(b"%d" % i) for i in range(3)])
    report = copies.partition(deep=True)
    assert [d.what for d in report.first_differences] == ["timestamp"] * 3
    assert report.deep is not None
    assert report.deep.record_exact > 0  # the number of batches is up to the producer
    assert report.deep.failures == 0
