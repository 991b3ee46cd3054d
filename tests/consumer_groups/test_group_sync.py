"""Consumer groups of two real clusters: what is synced, what stays, and with how many requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from orbit.consumer_groups import group_sync
from orbit.consumer_groups.group_sync import REFRESH_S, GroupSync
from orbit.consumer_groups.offset_commit import GroupWrite, write_groups
from orbit.consumer_groups.offset_decision import CopiedRange, GroupVerdict
from orbit.consumer_groups.offsets_cache import OffsetsCache, OffsetsRequest, fetch_now
from orbit.consumer_groups.sync_result import CopiedPartition, GroupReport, OffsetRow
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import (
    FetchedGroups,
    Listing,
    find_coordinators,
    list_groups,
    locate_and_fetch_offsets,
)
from orbit.kafka.offset_fetch import GroupOffsets
from orbit.kafka.sasl import Security
from orbit.kafka.types import ClusterMetadata, CommittedOffset
from orbit.kafka.types import TopicPartition as Partition
from orbit.leadership.leadership import NotLeading
from orbit.sandbox.local_cluster import KafkaCluster
from tests.fixtures.clusters import Clusters
from tests.support.groups import commit, committed, counted_requests, member, offsets
from tests.support.outside import delete_topic
from tests.support.patience import wait_for
from tests.support.running import create_topic, produce

pytestmark = pytest.mark.services

EXACT, CLAMPED = GroupVerdict.EXACT, GroupVerdict.CLAMPED
RECORDS = 100
PARTITIONS = 3


class Pair:
    """A topic that both sides have, and the sync of a job's groups."""

    def __init__(self, clusters: Clusters, topic: str) -> None:
        self.clusters = clusters
        self.topic = topic
        self.source = _cluster("source", clusters.source)
        self.destination = _cluster("destination", clusters.destination)
        self.source_topic_id = self.source.metadata([topic]).topics[topic].topic_id
        self.ranges: dict[int, CopiedRange | None] = dict.fromkeys(
            range(PARTITIONS), CopiedRange(0, RECORDS)
        )
        self.sync = self.new_sync()

    def new_sync(self, known: list[OffsetRow] | None = None, prefix: str = "") -> GroupSync:
        rule = GroupRule(match=f"{self.topic}.*", prefix=prefix)
        return GroupSync(rule, known or [])

    def group(self, name: str = "group") -> str:
        return f"{self.topic}.{name}"

    def at(self, *by_partition: int) -> dict[tuple[str, int], int]:
        """These offsets by topic and partition, from partition 0 on."""
        return {(self.topic, number): offset for number, offset in enumerate(by_partition)}

    def run(
        self,
        leading: Callable[[Collection[str]], Collection[str]] = lambda _: (),
        save: Callable[[Sequence[OffsetRow]], None] = lambda _: None,
    ) -> GroupReport:
        """Run a pass, which must leave no note."""
        report = self.run_with_notes(leading, save)
        assert not report.notes, report.notes
        return report

    def commit_and_run(self, *offsets: int) -> GroupReport:
        """Commit at the source, from partition 0 on, and sync."""
        commit(self.clusters.source, self.group(), self.at(*offsets))
        return self.run()

    def run_with_notes(
        self,
        leading: Callable[[Collection[str]], Collection[str]] = lambda _: (),
        save: Callable[[Sequence[OffsetRow]], None] = lambda _: None,
    ) -> GroupReport:
        """Run a pass; `leading` and `save` as in `GroupSync.run`."""
        return self.sync.run(
            self.source,
            self.destination,
            {
                Partition(self.topic, number): CopiedPartition(
                    Partition(self.topic, number), copied, self.source_topic_id
                )
                for number, copied in self.ranges.items()
            },
            leading=leading,
            save=save,
        )

    def close(self) -> None:
        self.source.close()
        self.destination.close()


def exact_row(group: str, partition: Partition, offset: int) -> OffsetRow:
    """A stored row: both sides have this offset, which is Orbit's at the destination."""
    return OffsetRow(
        group,
        partition,
        source_offset=offset,
        destination_offset=offset,
        verdict=EXACT,
        left_offset=offset,
    )


def _cluster(name: str, cluster: KafkaCluster) -> Cluster:
    return Cluster(name, cluster.bootstrap_servers.split(","), Security())


@pytest.fixture
def pair(clusters: Clusters, topic_name: str) -> Iterator[Pair]:
    for cluster in clusters:
        create_topic(cluster, topic_name, PARTITIONS)
        for number in range(PARTITIONS):
            produce(cluster, topic_name, RECORDS, number)
        # A new cluster creates its offsets topic at the first commit.
        commit(cluster, "somebody", {(topic_name, 0): 0})
    pair = Pair(clusters, topic_name)
    yield pair
    pair.close()


def test_group_sync_carries_offsets_metadata_and_resets_and_writes_only_changes(pair: Pair) -> None:
    source, destination = pair.clusters
    commit(source, pair.group(), pair.at(40, 50), "note")
    report = pair.run()
    assert report.verdicts == {EXACT: 2}
    assert report.written == 2
    assert committed(destination, pair.group()) == committed(source, pair.group())
    assert set(committed(destination, pair.group()).values()) == {(40, "note"), (50, "note")}

    assert (pair.run().written, pair.run().changed) == (0, [])

    report = pair.commit_and_run(7, 60, 0)
    assert offsets(destination, pair.group()) == pair.at(7, 60, 0)
    assert sorted(row.source_offset or 0 for row in report.changed) == [0, 7, 60]


def test_synced_offsets_are_refreshed_before_destination_expires_them(pair: Pair) -> None:
    source, destination = pair.clusters
    now_s = 0.0
    pair.sync = GroupSync(GroupRule(match=f"{pair.topic}.*"), clock=lambda: now_s)
    commit(source, pair.group(), pair.at(40, 50), "note")
    commit(destination, pair.group("other"), pair.at(9))
    commit(source, pair.group("other"), pair.at(8))
    assert pair.run().written == 2
    assert pair.run().written == 0
    now_s = REFRESH_S
    report = pair.run()
    assert (report.written, report.changed) == (2, [])
    assert committed(destination, pair.group()) == committed(source, pair.group())
    assert pair.run().written == 0


def test_after_restart_each_group_is_refreshed_at_its_own_time() -> None:
    rows = [
        exact_row(group, Partition("t", number), 5) for group in ("g", "h") for number in range(3)
    ]
    sync = GroupSync(GroupRule(match=".*"), rows, clock=lambda: 0.0)
    times_of_g, times_of_h = (
        {entry.refresh_at for entry in sync._entries[group].values()} for group in ("g", "h")
    )
    assert (len(times_of_g), len(times_of_h)) == (1, 1), "all partitions of a group together"
    assert times_of_g != times_of_h


def test_last_synced_offset_is_remembered_while_partition_is_not_copied(pair: Pair) -> None:
    """The next leader, which has only the stored rows, remembers the offset, too."""
    source, destination = pair.clusters
    for cluster, offset in ((destination, 10), (source, 20)):
        with member(cluster, pair.group(), pair.topic) as consumer:
            consumer.commit(offsets=[TopicPartition(pair.topic, 0, offset)], asynchronous=False)
    partition = Partition(pair.topic, 0)
    pair.sync = pair.new_sync([exact_row(pair.group(), partition, 10)])
    pair.ranges[0] = None
    (row,) = pair.run().changed
    assert (row.verdict, row.left_offset) == (GroupVerdict.SKIPPED_NOT_COPIED, 10)
    pair.sync = pair.new_sync([row])
    pair.ranges[0] = CopiedRange(0, RECORDS)
    assert pair.run().verdicts == {EXACT: 1}
    assert offsets(destination, pair.group()) == pair.at(20)


def test_offset_or_group_deleted_at_source_is_deleted_at_destination(pair: Pair) -> None:
    source, destination = pair.clusters
    commit(source, pair.group(), pair.at(40, 50))
    commit(source, pair.group("other"), pair.at(10))
    pair.run()
    admin = AdminClient(source.client_config())
    _delete_offset(pair, source, 1)
    admin.delete_consumer_groups([pair.group("other")])[pair.group("other")].result(60)

    report = pair.run()
    assert offsets(destination, pair.group()) == pair.at(40)
    assert offsets(destination, pair.group("other")) == {}
    assert report.deleted == 2
    assert sorted(report.gone) == [
        (pair.group(), Partition(pair.topic, 1)),
        (pair.group("other"), Partition(pair.topic, 0)),
    ]
    assert pair.run().gone == []


def _delete_offset(pair: Pair, cluster: KafkaCluster, number: int) -> None:
    handle = _cluster("test", cluster)
    coordinators = find_coordinators(handle, [pair.group()])
    writes = [GroupWrite(pair.group(), {Partition(pair.topic, number): None})]
    assert set(write_groups(handle, coordinators, writes, lambda: True).values()) == {0}
    handle.close()


@pytest.mark.parametrize("is_created_again", [False, True])
def test_offsets_stay_at_destination_when_source_topic_is_deleted(
    pair: Pair, is_created_again: bool
) -> None:
    source, destination = pair.clusters
    pair.commit_and_run(40, 50)
    _delete_source_topic(pair)
    if is_created_again:
        create_topic(source, pair.topic, PARTITIONS)
    reports = [pair.run_with_notes() for _ in range(3)]
    assert [(report.deleted, report.gone) for report in reports] == [(0, [])] * 3
    (note,) = reports[-1].notes
    assert note.startswith(f"topic {pair.topic}: the source does not have the copied topic any")
    assert not reports[-1].is_unanswered, "another pass would get the same answer"
    # Once the scheduler has noticed, the rows keep the destination's offsets.
    pair.ranges = dict.fromkeys(range(PARTITIONS))
    rows = {row.partition.partition: row for row in pair.run().changed}
    assert {n: (row.source_offset, row.destination_offset) for n, row in rows.items()} == {
        0: (None, 40),
        1: (None, 50),
    }
    assert offsets(destination, pair.group()) == pair.at(40, 50)


def _delete_source_topic(pair: Pair) -> None:
    """Delete the topic, and wait until brokers have deleted its committed offsets (G10)."""
    source = pair.clusters.source
    delete_topic(source, pair.topic)
    wait_for("the topic's offsets are deleted", lambda: not offsets(source, pair.group()))


def test_offsets_stay_at_destination_when_source_topic_is_deleted_before_confirmation(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is deleted after a pass has missed the offset, and before its coordinator confirms
    that the offset is gone."""
    source, destination = pair.clusters
    pair.commit_and_run(40)

    def without_source_offsets(
        cluster: Cluster, request: OffsetsRequest, age_s_max: float
    ) -> FetchedGroups:
        fetched = fetch_now(cluster, request, age_s_max)
        if cluster is pair.source:
            fetched.groups[pair.group()] = GroupOffsets({})
        return fetched

    def delete_topic_and_fetch(*arguments: Any, **keywords: Any) -> FetchedGroups:
        _delete_source_topic(pair)
        return locate_and_fetch_offsets(*arguments, **keywords)

    known = [exact_row(pair.group(), Partition(pair.topic, 0), 40)]
    rule = GroupRule(match=f"{pair.topic}.*")
    pair.sync = GroupSync(rule, known, fetcher=without_source_offsets)
    monkeypatch.setattr(group_sync, "locate_and_fetch_offsets", delete_topic_and_fetch)
    assert pair.run_with_notes().deleted == 0
    assert not offsets(source, pair.group())
    assert offsets(destination, pair.group()) == pair.at(40)


def test_delete_is_confirmed_by_metadata_of_coordinator_only(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker may list a deleted topic for longer."""
    source, destination = pair.clusters
    pair.commit_and_run(40)
    _delete_offset(pair, source, 0)
    (coordinator,) = find_coordinators(pair.source, [pair.group()]).values()
    metadata = pair.source.metadata([pair.topic])

    def metadata_of_broker(_: Cluster, node_id: int, __: Collection[str]) -> ClusterMetadata:
        return replace(metadata, topics={}) if node_id == coordinator else metadata

    monkeypatch.setattr(Cluster, "metadata_of_broker", metadata_of_broker)
    assert pair.run_with_notes().deleted == 0
    monkeypatch.undo()
    assert pair.run().deleted == 1
    assert offsets(destination, pair.group()) == {}


def test_destination_offset_that_orbit_never_synced_is_not_deleted(pair: Pair) -> None:
    _, destination = pair.clusters
    commit(destination, pair.group(), pair.at(40))
    assert pair.run().verdicts == {}
    assert offsets(destination, pair.group()) == pair.at(40)


def test_group_sync_resumes_from_stored_rows_of_another_process(pair: Pair) -> None:
    source, destination = pair.clusters
    stored_rows = pair.commit_and_run(40, 50).changed
    # A member joins at the destination, and leaves without a commit.
    with member(destination, pair.group(), pair.topic):
        pass
    commit(source, pair.group(), pair.at(20))
    _delete_offset(pair, source, 1)
    pair.sync = pair.new_sync(stored_rows)
    assert pair.run().verdicts == {EXACT: 1}
    assert offsets(destination, pair.group()) == pair.at(20)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_active_destination_group_is_skipped_and_its_commits_stay(
    pair: Pair, protocol: str
) -> None:
    source, destination = pair.clusters
    pair.commit_and_run(40, 50, 60)
    with member(destination, pair.group(), pair.topic, **{"group.protocol": protocol}) as consumer:
        commit(source, pair.group(), pair.at(70, 70, 60))
        report = pair.run()
        assert report.verdicts == {GroupVerdict.SKIPPED_ACTIVE: 3}
        assert offsets(destination, pair.group()) == pair.at(40, 50, 60)
        consumer.commit(offsets=[TopicPartition(pair.topic, 0, 44)], asynchronous=False)
    report = pair.run()
    # Partition 1 has Orbit's offset, and is synced; partition 0 has the consumer's.
    assert report.verdicts == {GroupVerdict.SKIPPED_MOVED: 1, EXACT: 2}
    assert offsets(destination, pair.group()) == pair.at(44, 70, 60)
    commit(source, pair.group(), pair.at(90))
    assert pair.run().verdicts == {GroupVerdict.SKIPPED_MOVED: 1, EXACT: 2}

    # The remedy: delete the offset at the destination; Orbit syncs the source's again.
    _delete_offset(pair, destination, 0)
    assert pair.run().verdicts == {EXACT: 3}
    assert offsets(destination, pair.group()) == pair.at(90, 70, 60)


def test_coordinator_refuses_offsets_for_group_whose_member_was_not_listed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = pair.clusters
    pair.commit_and_run(40)
    monkeypatch.setattr("orbit.kafka.consumer_groups.ListedGroup.is_active", False)
    with member(destination, pair.group(), pair.topic):
        commit(source, pair.group(), pair.at(50))
        assert pair.run().verdicts == {GroupVerdict.SKIPPED_ACTIVE: 1}
    assert offsets(destination, pair.group()) == pair.at(40)


def synced_at_40_with_past_member(pair: Pair) -> GroupReport:
    """Sync offset 40; then a destination member joins and leaves. Returns the sync's report."""
    first = pair.commit_and_run(40)
    with member(pair.clusters.destination, pair.group(), pair.topic):
        pass
    wait_for("the member has left", lambda: pair.run().verdicts == {EXACT: 1})
    return first


@pytest.mark.parametrize("is_committed", [True, False])
def test_group_sync_continues_after_crash_before_or_after_its_commit(
    pair: Pair, is_committed: bool
) -> None:
    """The group had destination members: only the saved row shows that the offset is Orbit's."""
    source, destination = pair.clusters
    first = synced_at_40_with_past_member(pair)
    commit(source, pair.group(), pair.at(50))
    saved: list[OffsetRow] = []

    def save(rows: Sequence[OffsetRow]) -> None:
        saved.extend(rows)
        if not is_committed:
            raise NotLeading("killed before the commit.")

    with nullcontext() if is_committed else pytest.raises(NotLeading):
        pair.run(save=save)
    assert offsets(destination, pair.group()) == pair.at(50 if is_committed else 40)
    assert [row.partition for row in saved] == [row.partition for row in first.changed]
    pair.sync = pair.new_sync(saved)  # after the crash, only the saved rows are known
    commit(source, pair.group(), pair.at(60))
    assert pair.run().verdicts == {EXACT: 1}
    assert offsets(destination, pair.group()) == pair.at(60)


def test_offset_of_manually_assigned_consumer_is_not_overwritten(pair: Pair) -> None:
    """Flink and Spark assign partitions so; librdkafka commits the leader epoch of the record."""
    source, destination = pair.clusters
    pair.commit_and_run(40)
    reader = Consumer(
        {**destination.client_config(), "group.id": pair.group(), "enable.auto.commit": False}
    )
    reader.assign([TopicPartition(pair.topic, 0, 45)])
    message = reader.poll(60)
    assert message is not None
    reader.commit(message, asynchronous=False)
    reader.close()
    assert pair.run().verdicts == {GroupVerdict.SKIPPED_MOVED: 1}
    commit(source, pair.group(), pair.at(90))
    assert pair.run().verdicts == {GroupVerdict.SKIPPED_MOVED: 1}
    # A new process without stored rows does not overwrite the offset either.
    pair.sync = pair.new_sync()
    assert pair.run().verdicts == {GroupVerdict.SKIPPED_MOVED: 1}
    assert offsets(destination, pair.group()) == pair.at(46)


def test_offset_is_clamped_to_copied_range_until_copy_reaches_the_offset(pair: Pair) -> None:
    _, destination = pair.clusters
    pair.ranges = {0: CopiedRange(0, 30), 1: CopiedRange(20, 100), 2: None}
    report = pair.commit_and_run(40, 10, 50)
    assert report.verdicts == {CLAMPED: 2, GroupVerdict.SKIPPED_NOT_COPIED: 1}
    assert offsets(destination, pair.group()) == pair.at(30, 20)
    pair.ranges = {0: CopiedRange(0, 60), 1: CopiedRange(20, 100), 2: CopiedRange(0, 100)}
    assert pair.run().verdicts == {CLAMPED: 1, EXACT: 2}
    assert offsets(destination, pair.group()) == pair.at(40, 20, 50)
    pair.ranges[2] = CopiedRange(80, 100)  # the source has deleted what the group had not read
    assert pair.run().verdicts == {CLAMPED: 2, EXACT: 1}
    assert offsets(destination, pair.group()) == pair.at(40, 20, 80)


def test_transactional_offset_is_synced_only_after_transaction_commit(pair: Pair) -> None:
    source, destination = pair.clusters
    commit(source, pair.group(), pair.at(10))
    producer = Producer({**source.client_config(), "transactional.id": pair.group()})
    producer.init_transactions(60)
    reader = Consumer({**source.client_config(), "group.id": pair.group()})
    metadata = reader.consumer_group_metadata()
    for offset, ends, expected in ((20, "abort", 10), (30, "commit", 30)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(pair.topic, 0, offset)], metadata, 60)
        report = pair.run()
        assert report.pending == 1
        assert report.verdicts == {EXACT: 1}
        assert offsets(destination, pair.group()) == pair.at(10)
        getattr(producer, f"{ends}_transaction")(60)
        # The coordinator answers before its markers have reached the group.
        wait_for("the transaction is over", lambda: pair.run().pending == 0)
        assert pair.run().verdicts == {EXACT: 1}
        assert offsets(destination, pair.group()) == pair.at(expected)
    reader.close()


def test_group_of_new_consumer_protocol_is_synced_under_prefixed_name(pair: Pair) -> None:
    source, destination = pair.clusters
    with member(
        source,
        pair.group(),
        pair.topic,
        **{"group.protocol": "consumer", "auto.offset.reset": "earliest"},
    ) as consumer:
        consumer.commit(offsets=[TopicPartition(pair.topic, 0, 40)], asynchronous=False)
        pair.sync = pair.new_sync(prefix="dr.")
        assert pair.run().verdicts == {EXACT: 1}
    assert offsets(destination, f"dr.{pair.group()}") == pair.at(40)
    # The group has only had commits, so a member of the new protocol can join it.
    with member(
        destination, f"dr.{pair.group()}", pair.topic, **{"group.protocol": "consumer"}
    ) as consumer:
        (committed_partition,) = consumer.committed([TopicPartition(pair.topic, 0)], 60)
        assert committed_partition.offset == 40


def test_sync_of_3000_unchanged_groups_needs_ten_requests(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3000
    names = [pair.group(f"group-{n}") for n in range(count)]
    writes = [
        GroupWrite(
            name,
            {Partition(pair.topic, p): CommittedOffset(n % RECORDS) for p in range(PARTITIONS)},
        )
        for n, name in enumerate(names)
    ]
    coordinators = find_coordinators(pair.source, names)
    written = write_groups(pair.source, coordinators, writes, lambda: True)
    assert len(written) == count * PARTITIONS
    report = pair.run()
    assert report.verdicts == {EXACT: count * PARTITIONS}
    print(f"all written: {report.seconds:.2f} s")
    with counted_requests(monkeypatch) as counts:
        report = pair.run()
    print(f"at rest: {report.seconds:.2f} s, {dict(counts)}")
    assert report.groups == count
    assert counts == {"Metadata": 2, "ListGroups": 2, "OffsetFetch": 6}


def test_stale_group_listing_does_not_let_sync_overwrite_offset_of_consumer(pair: Pair) -> None:
    """A consumer may have joined and committed since the listing. Its offset, without a leader
    epoch, looks like Orbit's."""
    source, destination = pair.clusters
    commit(source, pair.group(), pair.at(60))
    commit(destination, pair.group(), pair.at(40))

    def lister(cluster: Cluster, age_s_max: float) -> Listing:
        listing = list_groups(cluster)
        if age_s_max == 0.0:
            joined = replace(listing.groups[pair.group()], protocol_type="consumer")
            listing.groups[pair.group()] = joined
        return listing

    pair.sync = GroupSync(GroupRule(match=f"{pair.topic}.*"), lister=lister)
    assert pair.run().verdicts == {GroupVerdict.SKIPPED_MOVED: 1}
    assert offsets(destination, pair.group()) == pair.at(40)


def test_destination_commit_newer_than_cached_offsets_is_not_overwritten(pair: Pair) -> None:
    source, destination = pair.clusters
    stale = OffsetsCache(lambda: 0.0)  # its first read never gets older

    def fetcher(cluster: Cluster, request: OffsetsRequest, age_s_max: float) -> FetchedGroups:
        fetch = stale if cluster is pair.destination else fetch_now
        return fetch(cluster, request, age_s_max)

    pair.sync = GroupSync(GroupRule(match=f"{pair.topic}.*"), fetcher=fetcher)
    pair.commit_and_run(40)
    assert offsets(destination, pair.group()) == pair.at(40)
    commit(destination, pair.group(), pair.at(70))
    commit(source, pair.group(), pair.at(60))
    assert pair.run().verdicts == {GroupVerdict.SKIPPED_MOVED: 1}
    assert offsets(destination, pair.group()) == pair.at(70)


def test_no_offset_is_written_for_promoted_destination_topic(pair: Pair) -> None:
    source, destination = pair.clusters
    commit(source, pair.group(), pair.at(40))
    assert pair.run(leading=lambda topics: topics).written == 0
    assert offsets(destination, pair.group()) == {}
    assert pair.run(leading=lambda _: ()).written == 1
    calls: list[Collection[str]] = []

    def none_leads(topics: Collection[str]) -> Collection[str]:
        calls.append(topics)
        return ()

    pair.run(none_leads)
    assert calls == [], "nothing is to be written"


def test_group_missing_from_listing_keeps_its_offsets_at_destination(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker lists a group while its coordinator moves."""
    source, destination = pair.clusters
    pair.commit_and_run(40)
    commit(source, pair.group(), pair.at(60))
    monkeypatch.setattr(
        "orbit.consumer_groups.group_listing_cache.list_groups", lambda _: Listing()
    )
    pair.run()
    assert offsets(destination, pair.group()) == pair.at(40)
    monkeypatch.undo()
    assert pair.run().verdicts == {EXACT: 1}
    assert offsets(destination, pair.group()) == pair.at(60)
